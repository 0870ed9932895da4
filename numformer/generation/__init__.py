"""Generation: what a trained model writes, by greedy choice or by beam search; texts."""

from numformer.generation.greedy import greedy, log_probabilities
from numformer.generation.beam import Hypothesis, beam_search, length_penalty, n_best
from numformer.generation.texts import Continuation, Infilling, Transduction

__all__ = [
    "greedy",
    "log_probabilities",
    "Hypothesis",
    "beam_search",
    "length_penalty",
    "n_best",
    "Transduction",
    "Continuation",
    "Infilling",
]
