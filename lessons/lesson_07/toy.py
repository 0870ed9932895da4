"""A small language to translate, and Transformers that learn it.

"son chat noir saute" becomes "her black cat is jumping". "son" is his, her or its, each a third of
the time: nothing in the French sentence tells which, so no honest model can be sure of that word.
"""

import functools
import itertools
import math
from dataclasses import dataclass

import numpy as np
from threadpoolctl import threadpool_limits

from numformer import Adam, PairBatch, Transformer, Vocabulary, greedy, pack
from numformer.data.batching import pad_sources
from numformer.data.vocabulary import PADDING, START
from numformer.later.attention.tiles import TiledAttention
from numformer.layer import inference, mode
from numformer.paper import Places, Reach
from numformer.paper.softmax import softmax

DETERMINERS = {"le": ["the"], "son": ["his", "her", "its"]}
NOUNS = dict(chat="cat", chien="dog", cheval="horse", lapin="rabbit", renard="fox")
ADJECTIVES = dict(noir="black", blanc="white", brun="brown", gris="grey")
VERBS = dict(dort="sleeping", mange="eating", court="running", saute="jumping", chante="singing")
ONE_WORD = NOUNS | ADJECTIVES | VERBS
ENGLISH = [*itertools.chain(*DETERMINERS.values()), "is", *ONE_WORD.values()]
WORDS = Vocabulary([*DETERMINERS, *ONE_WORD, *ENGLISH], " ")
STEPS, SENTENCES, RATE = 200, 32, 0.005  # each step draws other sentences
SEEDS = 2, 3


def translations(french: str) -> list[str]:
    """Every right translation of a sentence."""
    determiner, noun, *adjective, verb = french.split()
    rest = [*map(ADJECTIVES.get, adjective), NOUNS[noun], "is", VERBS[verb]]
    return [" ".join([first, *rest]) for first in DETERMINERS[determiner]]


def sentences() -> tuple[list[str], list[str]]:
    """The French sentences that are trained on, and 50 that are held out."""
    adjectives = ["", *(f" {each}" for each in ADJECTIVES)]
    parts = itertools.product(DETERMINERS, NOUNS, adjectives, VERBS)
    every = [f"{first} {noun}{adjective} {verb}" for first, noun, adjective, verb in parts]
    np.random.default_rng(7).shuffle(every)
    return every[:-50], every[-50:]


KNOWN, NEW = sentences()


def floor(french: list[str]) -> float:
    """The lowest mean loss of a position that is possible without seeing the translation."""
    right = [translations(each) for each in french]
    return sum(math.log(len(r)) for r in right) / sum(len(r[0].split()) + 1 for r in right)


def ids_of(sentence: str) -> list[int]:
    return WORDS.encode(sentence.split())


def batch(french: list[str], rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    """Sentences, each with one translation: source ids, ids that are read, ids to be said."""
    choices = map(translations, french)
    english = [ids_of(each[rng.integers(len(each))]) for each in choices]
    return PairBatch.of(zip(map(ids_of, french), english, strict=True)).inputs


class Leaky(Transformer):
    """A Transformer whose decoder sees the whole target: someone forgot the causal mask."""

    def forward(self, source, target, skip_padding: bool = False):
        sources, targets = (Places(ids != PADDING, skip_padding) for ids in (source, target))
        memory = self.encoder.forward(self.source.forward(source, sources), Reach(sources))
        x = self.target.forward(target, targets)
        everything = Reach(targets)  # here `causal=True` is missing
        x = self.decoder.forward(x, everything, memory, Reach(targets, sources))
        return self.output.forward(x)


class Zeroed(Leaky):
    """The same, but its dropout sets the weights of later words to 0, after the softmax."""

    def __init__(self, config, seed=0):
        super().__init__(config, seed)
        for layer in self.decoder.layers:
            attention = layer.self_attention.sublayer.attention = TiledAttention()
            attention.dense.dropout.draw = self.keep

    @staticmethod
    def keep(shape: tuple[int, ...], like):
        """(..., T, S): 1 where the queries, the last T of S positions, may look, else 0."""
        return np.tril(np.ones(shape, like.dtype), shape[-1] - shape[-2])


# Models by the way in which the future is hidden from their decoders.
KINDS = {"before the softmax": Transformer, "not at all": Leaky, "after the softmax": Zeroed}


@dataclass(frozen=True)
class Trained:
    """A model and its losses (STEPS,); for NEW its loss, its translations, the share right."""

    model: Transformer
    losses: np.ndarray
    held_out: float
    written: dict[str, str]
    right: float


@functools.cache
def trained(kind: type[Transformer], seed: int) -> Trained:
    """One of KINDS after training; it is trained once in a process."""
    sizes = dict(d_model=32, d_ff=64, heads=2, layers=1, p_drop=0.0)
    model, losses = kind(kind.Config.base(len(WORDS), **sizes), seed), []
    rng = np.random.default_rng(seed)
    with threadpool_limits(1, "blas"):
        objective, vectors = model.objective(), pack(model)
        adam = Adam(vectors)
        for step in range(1, STEPS + 1):
            vectors.zero_grad()
            losses.append(float(objective.forward(*batch(rng.choice(KNOWN, SENTENCES), rng))))
            objective.backward()
            adam.step(RATE * min(1, step / 50))
        with inference():
            held_out = float(objective.forward(*batch(NEW, rng)))
        written = dict(zip(NEW, writes(model, NEW), strict=True))
    right = np.mean([written[each] in translations(each) for each in NEW])
    return Trained(model, np.array(losses), held_out, written, right)


def writes(model: Transformer, french: list[str]) -> list[str]:
    """What a model writes for each of these sentences, reading its own words."""
    ids = greedy(model, pad_sources([*map(ids_of, french)]), max_length=8)
    return [" ".join(WORDS.decode(each)) for each in ids]


def look(model: Transformer, french: str, inputs: list[int]):
    """A sentence and T ids that the decoder reads -> what it says and where it looks.

    The results are the probability (T, V) of each word at each position and the weights of
    self-attention (T, T) and of cross-attention (T, S), each the mean over the heads.
    """
    with mode(training=False, saving=True):
        logits = model.forward(pad_sources([ids_of(french)]), np.array([inputs]))
    layer, weights = model.decoder.layers[0], []
    for one in (layer.self_attention.sublayer, layer.cross_attention.sublayer):
        attention = getattr(one.attention, "dense", one.attention)  # Zeroed has it inside
        saved = attention.saved[-1]
        weights.append(saved.get("dropped", saved["weights"])[0].mean(axis=0))
    model.clear_saved()
    return softmax(logits[0].astype(float)), *weights


def inputs_of(model: Transformer, french: str, english: str, own: bool, position: int) -> list[int]:
    """What the decoder reads: the start id and the right words, or its own up to a position.

    To write its own words, the model reads all of them again before each new one.
    """
    if not own:
        return [START, *ids_of(english)]
    ids = [START]
    for _ in range(position):
        ids.append(int(look(model, french, ids)[0][-1].argmax()))
    return ids
