"""What lesson 8 is made of beside its text."""
