"""The exercises of lesson 7."""

EXERCISES = []
