"""Pictures of trees: labels above, the words in a row below."""

from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from numformer.plots import fonts_for, new_figure, with_code_points
from toy_tasks.data.trees import Tree

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEVEL, MARGIN = 0.5, 0.3
"""Inches between a constituent and its parts, and around the tree."""
LETTER = 0.085
"""The width of a letter in inches."""
LINE = dict(color="#999999", linewidth=0.9)
LOOK = dict(ha="center", va="center", parse_math=False)


def draw_tree(path: Path | None, tree: Tree) -> "Figure":
    """Draw a tree: each constituent above the middle of its parts, all words on one line."""
    words = tree.words()
    families, lacking = fonts_for({*"".join(words)})
    labels = [with_code_points(word, lacking) for word in words]
    rights = [0.0]
    for word in labels:
        rights.append(rights[-1] + LETTER * max(3, len(word)) + 0.15)
    middles = iter((left + right) / 2 for left, right in pairwise(rights))
    depth = _depth(tree)
    width, height = rights[-1] + 2 * MARGIN, LEVEL * depth + 2 * MARGIN
    figure = new_figure(width, height)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(-MARGIN, width - MARGIN), ylim=(-MARGIN, height - MARGIN))
    axes.axis("off")

    def draw(part: Tree | str, level: int) -> tuple[float, float]:
        """Draw a constituent or a word -> its position (x, y)."""
        if isinstance(part, str) or part.is_tag:
            x = next(middles)
            axes.text(x, 0, next(texts), fontsize=10, family=families, **LOOK)
            return x, 0.0
        y = LEVEL * (depth - level)
        places = [draw(child, level + 1) for child in part.children]
        x = (places[0][0] + places[-1][0]) / 2
        # Vertical lines below a bar cross no other line, however far down a word is.
        bar = y - 0.2
        axes.plot([places[0][0], places[-1][0]], [bar, bar], **LINE)
        axes.plot([x, x], [y - 0.1, bar], **LINE)
        for below, bottom in places:
            axes.plot([below, below], [bar, bottom + 0.11], **LINE)
        axes.text(x, y, part.label, fontsize=10, color="#0072B2", weight="bold", **LOOK)
        return x, y

    texts = iter(labels)
    draw(tree, 0)
    return figure.save(path)


def _depth(tree: Tree | str) -> int:
    """The number of levels of constituents, not counting parts of speech."""
    if isinstance(tree, str) or tree.is_tag:
        return 0
    return 1 + max(map(_depth, tree.children))
