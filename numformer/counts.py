"""Counts with their nouns, as text."""


def counted(number: float, noun: str) -> str:
    """Return a number and its noun, such as "1 step" and "2,000 steps"."""
    return f"{number:,.15g} {noun}{'s' * (number != 1)}"
