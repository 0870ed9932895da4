"""Numbers and tables as text."""

from collections.abc import Sequence

WIDTH = 100
"""The longest line of a table in a terminal."""


def mean_and_range(values: Sequence[float], form: str = ".3f") -> str:
    """The mean of numbers, and in brackets the lowest and the highest if there are several."""
    mean, low, high = sum(values) / len(values), min(values), max(values)
    return f"{mean:{form}}" + f" ({low:{form}} to {high:{form}})" * (len(values) > 1)


def markdown_table(rows: Sequence[Sequence[str]]) -> str:
    """Rows of cells as an aligned Markdown table; the first row is the head."""
    widths = [max(3, *map(len, column)) for column in zip(*rows, strict=True)]
    head, *body = (" | ".join(map(str.ljust, row, widths)) for row in rows)
    line = " | ".join("-" * width for width in widths)
    return "\n".join(f"| {row} |" for row in (head, line, *body))


def fitted_table(rows: Sequence[Sequence[str]]) -> str:
    """Rows of cells as lines; if these are longer than WIDTH, rows and columns change places.

    They stay as they are if that would not make the lines shorter.
    """
    table, turned = aligned_table(rows), aligned_table([*zip(*rows, strict=True)])
    width, turned_width = (text.find("\n") for text in (f"{table}\n", f"{turned}\n"))
    return table if width <= max(WIDTH, turned_width) else turned


def aligned_table(rows: Sequence[Sequence[str]]) -> str:
    """Rows of cells as lines: the first column aligned left, all others aligned right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])] for row in rows)
    return "\n".join(map("  ".join, lines))
