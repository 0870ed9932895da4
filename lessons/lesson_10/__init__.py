"""Lesson 10: its simulations, its exercises, and what was measured on trained models."""
