"""What lesson 13 is made of."""
