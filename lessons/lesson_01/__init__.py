"""What lesson 1 is made of, besides its text."""
