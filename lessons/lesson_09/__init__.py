"""What lesson 9 shows."""
