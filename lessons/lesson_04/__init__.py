"""The parts of lesson 4 besides its text."""
