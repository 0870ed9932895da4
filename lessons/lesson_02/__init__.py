"""The simulations and the exercises of lesson 2."""
