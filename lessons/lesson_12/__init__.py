"""What lesson 12 is made of."""
