"""A decoder-only language model: a stack that looks back, from symbols to the next symbol.

The Transformer's decoder without an encoder to look at (Liu et al. 2018, Radford et al. 2018). Its
layers are then those of the encoder, under a causal mask.
"""

from dataclasses import dataclass

import numpy as np

from numformer import settings
from numformer.data.vocabulary import SPECIAL
from numformer.later import ATTENTIONS
from numformer.layer import Array
from numformer.models import kinds
from numformer.models.config import TowerConfig
from numformer.models.model import Model
from numformer.paper.masks import Places, Reach
from numformer.paper.memory import Memory, State
from numformer.paper.transformer import require_batch


@dataclass(frozen=True, kw_only=True)
class Config(TowerConfig):
    """What a language model is made of; InputError for values that do not fit together."""

    both_ways = False

    vocabulary: int = settings.vocabulary(len(SPECIAL))
    attention_function: str = settings.choice(
        "tiled", ATTENTIONS, "what each head computes; tiled: long sequences in tiles"
    )
    tied: bool = kinds.unflagged(settings.switch(True, "embedding and output share weights"))

    @property
    def least_parameters(self) -> int:
        """No model of this Config has fewer: the entries of its matrices."""
        return self.entries() + (2 - self.tied) * self.d_model * self.vocabulary


BATCH = (
    "ids are a NumPy array (B, T)",
    "Make it by numpy.array(rows), each row with the same number of symbols, at least one.",
)


_Config = Config  # which a model has under the same name


class LanguageModel(Model):
    """ids (B, T) -> logits (B, T, V): those at position t predict the id at t + 1.

    Ids are host arrays without padding. The output shares the weights of the embedding, where the
    config says `tied`.
    `backward` takes dlogits and returns None, since ids have no gradient.
    """

    Config: type[_Config] = Config

    def __init__(self, config: _Config, seed: int | np.random.SeedSequence = 0):
        rng = np.random.default_rng(seed)
        self.config: _Config = self.fitting(config)
        embedding = config.embedding(config.vocabulary, rng)
        self.input = config.input_embedding(embedding, rng)
        self.tower = config.encoder(rng, causal=True)
        output = embedding if config.tied else config.embedding(config.vocabulary, rng)
        self.output = config.output(output.weight)

    def forward(self, ids: Array, past: Memory | None = None) -> Array:
        require_batch(ids, *BATCH)
        places = Places.without_padding(len(ids), ids.shape[1], past.length if past else 0)
        return self._logits(ids, places, past)

    def _logits(self, ids, places: Places, past: Memory | None):
        x = self.input.forward(ids, places)
        return self.output.forward(self.tower.forward(x, Reach(places, causal=True), past=past))

    def backward(self, dlogits: Array) -> None:
        return self.input.backward(self.tower.backward(self.output.backward(dlogits)))

    def predictions(self, ids, following, *valid):
        """Ids (B, T) and the ids that follow them (B, T) -> logits (B, T, V), targets (B, T).

        A third array, `valid` (B, T), is True where what follows is to be predicted; without it,
        everywhere.
        """
        return self.forward(ids), following, *valid

    # Writing

    def start(self, ids, length: int) -> State:
        """Beginnings (B, S) -> the State in which up to `length` further ids are written."""
        require_batch(ids, *BATCH)
        before = ids[:, :-1]
        past = Memory(before.shape[1] + length)
        if before.size:
            self.forward(before, past)
            past.advance(before.shape[1])
        return State(ids[:, -1], past)

    def step(self, ids, state: State):
        """The next position of every row: ids (B,) -> logits (B, V), given those before it."""
        here = Places.without_padding(len(ids), 1, state.past.length, skip_padding=True)
        logits = self._logits(ids[:, None], here, state.past)
        state.past.advance(1)
        return logits
