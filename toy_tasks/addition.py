# PYTHON_ARGCOMPLETE_OK
"""Add two numbers of three digits.

The sum is written with its last digit first, the order in which people add on paper: 123+989
becomes 2111. So each digit depends only on its column and on the carry from the digit before it.
"""

import numpy as np

from toy_tasks.text_to_text.sequences import Rule, run_program


def draw_source(rng: np.random.Generator) -> str:
    """Two random numbers, 000 to 999: "047+921"."""
    return "{:03}+{:03}".format(*rng.integers(1000, size=2))


def add(source: str) -> str:
    """The four digits of a sum, the last one first: "8690" for "047+921"."""
    first, second = source.split("+")
    return f"{int(first) + int(second):04}"[::-1]


RULE = Rule(
    name="addition",
    description="Add two numbers of three digits. The sum is written with its last digit first "
    "(123+989 becomes 2111). Target: exact match 0.99 on unseen pairs.",
    symbols="0123456789+",
    draw_source=draw_source,
    make_target=add,
    required=0.99,
    defaults=dict(steps=3000, warmup=400, factor=0.2),
)

if __name__ == "__main__":
    run_program(RULE)
