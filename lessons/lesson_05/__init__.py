"""The parts of lesson 5 besides its text."""
