"""What lesson 5 is made of, besides its text."""
