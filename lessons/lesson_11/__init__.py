"""What lesson 11 is made of."""
