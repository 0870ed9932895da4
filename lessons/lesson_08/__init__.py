"""The simulations, exercises and measurements of lesson 8."""
