"""What lesson 9 needs besides its text: the broken backwards, the roads, the exercises."""
