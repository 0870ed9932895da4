"""A decoder-only language model (GPT): a causal stack that predicts the next symbol.

It is the Transformer's decoder without cross-attention (Liu et al. 2018, Radford et al. 2018): its
layers are encoder layers under a causal mask.
"""

from dataclasses import dataclass

import numpy as np

from numformer import settings
from numformer.data.vocabulary import SPECIAL
from numformer.later import ATTENTIONS
from numformer.later.feed_forward import Chain
from numformer.layer import Array, Layer, Parameter
from numformer.models import fields
from numformer.models.config import OWN_SETTINGS, TowerConfig
from numformer.models.model import Model
from numformer.paper.masks import Places, Reach
from numformer.paper.memory import Memory, State
from numformer.paper.transformer import require_batch


@fields.field_help(*OWN_SETTINGS)
@dataclass(frozen=True, kw_only=True)
class Config(TowerConfig):
    """The config of a language model. Raises InputError for values that do not fit together."""

    both_ways = False

    vocabulary: int = settings.vocabulary(len(SPECIAL))
    attention_function: str = settings.choice(
        "tiled", ATTENTIONS, "how each head computes attention; tiled: long sequences in tiles"
    )
    tied: bool = fields.without_flag(settings.switch(True, "embedding and output share weights"))
    head: bool = fields.without_flag(settings.switch(True, "logits; False: the stack's output"))

    def output(self, weight: Parameter) -> Layer:
        return super().output(weight) if self.head else Chain()

    @property
    def least_parameters(self) -> int:
        """A lower bound on the number of parameters: the entries of the matrices."""
        return self.entries() + (2 - self.tied) * self.embedding_width * self.vocabulary


BATCH = (
    "ids are a NumPy array (B, T)",
    "Use numpy.array(rows), with the same number of symbols in each row, at least one.",
)


_Config = Config  # because the model below has a class attribute `Config`


class LanguageModel(Model):
    """ids (B, T) -> logits (B, T, V): the logits at position t predict the id at t + 1.

    Ids are host arrays without padding. With `tied` the output shares the weights of the embedding;
    without a `head` it is that of the stack (B, T, D). `backward` takes dlogits and returns None,
    since ids have no gradient.
    """

    Config: type[_Config] = Config

    def __init__(self, config: _Config, seed: int | np.random.SeedSequence = 0):
        rng = np.random.default_rng(seed)
        self.config: _Config = self.require_config(config)
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
        return self.output.forward(self.hidden(ids, places, past))

    def hidden(self, ids: Array, places: Places, past: Memory | None = None) -> Array:
        """ids (B, T), their Places -> the stack's output (B, T, D), from which logits come."""
        x = self.input.forward(ids, places)
        return self.tower.forward(x, Reach(places, causal=True), past=past)

    def backward(self, dlogits: Array) -> None:
        return self.input.backward(self.tower.backward(self.output.backward(dlogits)))

    def predictions(self, ids, following, *valid):
        """Ids (B, T) and the ids that follow them (B, T) -> logits (B, T, V), targets (B, T).

        With the optional third array, `valid` (B, T), only ids where it is True are predicted.
        """
        return self.forward(ids), following, *valid

    # Generation

    def start(self, ids, length: int) -> State:
        """Prompts (B, S) -> the State from which up to `length` further ids are generated."""
        require_batch(ids, *BATCH)
        before = ids[:, :-1]
        past = Memory(before.shape[1] + length)
        if before.size:
            self.forward(before, past)
            past.advance(before.shape[1])
        return State(ids[:, -1], past)

    def step(self, ids, state: State):
        """The ids (B,) of the next position -> logits (B, V) for the position after it."""
        here = Places.without_padding(len(ids), 1, state.past.length, skip_padding=True)
        logits = self._logits(ids[:, None], here, state.past)
        state.past.advance(1)
        return logits
