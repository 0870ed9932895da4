"""The simulations and the exercises of lesson 1."""
