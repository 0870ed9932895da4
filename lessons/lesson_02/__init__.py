"""What lesson 2 is made of, besides its text."""
