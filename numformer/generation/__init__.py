"""Generation: greedy choice, beam search and sampling, and pipelines from text to text."""

from numformer.paper.beam import Hypothesis, length_penalty
from numformer.generation.binding import greedy
from numformer.generation.beam import beam_search, by_length, n_best
from numformer.generation.ensemble import Ensemble
from numformer.generation.sampling import Sampling, log_probabilities, sample
from numformer.generation.text_pipeline import TextPipeline
from numformer.generation.transduction import Transduction
from numformer.generation.translation import Translation
from numformer.generation.parsing import Parsing
from numformer.generation.continuation import Continuation
from numformer.generation.infilling import Infilling
from numformer.generation.reading import Reading
from numformer.generation.listening import Listening
from numformer.generation.labelling import Labelling

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
    "TextPipeline",
    "Transduction",
    "Translation",
    "Parsing",
    "Continuation",
    "Infilling",
    "Reading",
    "Listening",
    "Labelling",
]
