"""What lesson 9 needs besides its text: the wrong backwards, the whole model, the exercises."""
