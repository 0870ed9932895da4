"""The parts of lesson 13: its simulations, measurements and exercises."""
