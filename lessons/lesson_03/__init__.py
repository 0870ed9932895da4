"""The parts of lesson 3 besides its text."""
