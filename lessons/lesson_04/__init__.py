"""What lesson 4 is made of, besides its text."""
