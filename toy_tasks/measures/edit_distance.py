"""The edit distance between two sequences."""

from collections.abc import Sequence


def edit_distance(a: Sequence, b: Sequence) -> int:
    """The fewest insertions, deletions and substitutions that turn a into b (Levenshtein)."""
    distances = list(range(len(b) + 1))
    for i, symbol in enumerate(a, start=1):
        diagonal, distances[0] = distances[0], i
        for j, other in enumerate(b, start=1):
            substituted = diagonal + (symbol != other)
            diagonal = distances[j]
            distances[j] = min(substituted, distances[j] + 1, distances[j - 1] + 1)
    return distances[-1]
