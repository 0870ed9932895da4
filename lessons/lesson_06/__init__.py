"""What lesson 6 is made of beside its text."""
