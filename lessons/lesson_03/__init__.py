"""What lesson 3 is made of, besides its text."""
