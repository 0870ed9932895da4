"""Generation: what a trained model writes, by greedy choice or by beam search."""

from numformer.generation.greedy import greedy, log_probabilities
from numformer.generation.beam import Hypothesis, beam_search, length_penalty, n_best

__all__ = [
    "greedy",
    "log_probabilities",
    "Hypothesis",
    "beam_search",
    "length_penalty",
    "n_best",
]
