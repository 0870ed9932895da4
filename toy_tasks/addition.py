"""Add two numbers of three digits: the carry runs from the last digit to the first.

The sum is written with its last digit first, as one adds on paper: each digit then needs only
the carry of the one before it. 123+989 becomes 2111.
"""

import numpy as np

from toy_tasks.text_to_text.sequences import Rule, start


def draw(rng: np.random.Generator) -> str:
    """Two random numbers, 000 to 999: "047+921"."""
    return "{:03}+{:03}".format(*rng.integers(1000, size=2))


def add(source: str) -> str:
    """The sum of "047+921", four digits, the last one first: "8690"."""
    first, second = source.split("+")
    return f"{int(first) + int(second):04}"[::-1]


RULE = Rule(
    name="addition",
    description="Add two numbers of three digits, the sum written with its last digit first "
    "(123+989 becomes 2111). Target: exact match 0.99 on unseen pairs.",
    symbols="0123456789+",
    source=draw,
    target=add,
    reached=0.99,
    defaults=dict(steps=3000, warmup=400, factor=0.2),
)

if __name__ == "__main__":
    start(RULE)
