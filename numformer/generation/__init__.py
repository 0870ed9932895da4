"""Generation: what a trained model writes, by greedy choice, beam search or sampling."""

from numformer.generation.greedy import greedy, log_probabilities
from numformer.generation.beam import Hypothesis, beam_search, by_length, length_penalty, n_best
from numformer.generation.ensemble import Ensemble
from numformer.generation.sampling import Sampling, sample
from numformer.generation.transduction import Transduction
from numformer.generation.translation import Translation
from numformer.generation.parsing import Parsing
from numformer.generation.continuation import Continuation
from numformer.generation.infilling import Infilling

__all__ = [
    "greedy",
    "log_probabilities",
    "Hypothesis",
    "beam_search",
    "length_penalty",
    "by_length",
    "n_best",
    "Ensemble",
    "sample",
    "Sampling",
    "Transduction",
    "Translation",
    "Parsing",
    "Continuation",
    "Infilling",
]
