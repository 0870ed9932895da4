"""The parts of lesson 6 besides its text."""
