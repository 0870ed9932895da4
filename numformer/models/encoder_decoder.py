"""The Transformer of section 3: encoder, decoder and the projection onto symbols (Figure 1)."""

from dataclasses import dataclass, replace

import numpy as np

from numformer import settings
from numformer.data.vocabulary import OURS, SPECIAL, Special
from numformer.errors import InputError
from numformer.further_settings import unflagged
from numformer.layer import Array
from numformer.layers import Embedding, Memory, OutputProjection, Places, Reach
from numformer.layers.memory import Shared
from numformer.models.block import InputEmbedding, Tower, TowerConfig
from numformer.models.model import Model, State, require_batch


@dataclass(frozen=True, kw_only=True)
class Config(TowerConfig):
    """What a Transformer is made of; defaults are the paper's base model.

    The two vocabulary sizes belong to the task. All else is the paper's: sections 3 and 5, and
    Table 3 for what it varies. Raises InputError for values that do not fit together.
    """

    source_vocabulary: int = settings.vocabulary(len(SPECIAL))
    target_vocabulary: int = settings.vocabulary(len(SPECIAL))
    tying: str = settings.choice(
        "all", ("all", "inputs", "target", "none"), "what shares weights with the output (3.4)"
    )
    decoder_layers: int | None = unflagged(settings.size(None, "as many as the encoder has"))

    def __post_init__(self):
        super().__post_init__()
        if self.tying in ("all", "inputs") and self.source_vocabulary != self.target_vocabulary:
            raise InputError(
                f"tying {self.tying} needs one vocabulary for source and target",
                f"sizes {self.source_vocabulary} and {self.target_vocabulary}",
                'Use one vocabulary for both, or tying "target" or "none".',
            )
        if self.start_id is None or self.end_id in (None, self.padding_id):
            raise InputError(
                "what an encoder-decoder reads and writes has a start id, and an end id that is no "
                "padding",
                f"start_id {self.start_id}, end_id {self.end_id}, padding_id {self.padding_id}",
                "Give ids of the vocabulary.",
            )

    @property
    def least_parameters(self) -> int:
        """No model of this Config has fewer: the entries of its matrices."""
        of_target = dict(all=0, inputs=1, target=1, none=2)[self.tying]
        symbols = self.source_vocabulary + of_target * self.target_vocabulary
        return self.entries() + self.of_decoder.entries(cross=True) + self.d_model * symbols

    @property
    def of_decoder(self) -> "Config":
        """The config of the decoder's tower."""
        return replace(self, layers=self.decoder_layers or self.layers)

    @classmethod
    def base(cls, vocabulary: int, **changes) -> "Config":
        """The paper's base model (Table 3, first row) on one shared vocabulary."""
        return cls(source_vocabulary=vocabulary, target_vocabulary=vocabulary, **changes)

    @classmethod
    def big(cls, vocabulary: int, **changes) -> "Config":
        """The paper's big model (Table 3, last row) on one shared vocabulary."""
        big = dict(d_model=1024, d_ff=4096, heads=16, p_drop=0.3)
        return cls.base(vocabulary, **(big | changes))


_Config = Config  # which a model has under the same name


class Transformer(Model):
    """source ids (B, S), target ids (B, T) -> logits (B, T, V)   (Figure 1).

    With `skip_padding` only what stands for a real position is computed, and the logits are
    (N, V): those of the N real target positions, row after row. Without dropout, whose masks have
    other shapes then, the numbers are the same.

    Ids are host arrays of integers, padded with 0. `target` is the decoder's input: the start id
    and then the target without its last id; logits at position t predict the id at t + 1.
    `backward` takes dlogits and returns None, since ids have no gradient.
    """

    Config: type[_Config] = Config

    def __init__(self, config: _Config, seed: int | np.random.SeedSequence = 0):
        rng = np.random.default_rng(seed)
        self.config: _Config = self.fitting(config)
        scaled = config.embedding_scale
        source = Embedding(config.source_vocabulary, config.d_model, rng, scaled=scaled)
        shared = source.weight if config.tying in ("all", "inputs") else None
        target = Embedding(config.target_vocabulary, config.d_model, rng, shared, scaled)
        output = target
        if config.tying in ("inputs", "none"):
            output = Embedding(config.target_vocabulary, config.d_model, rng)
        encoder = Tower(config, rng)
        self.source = InputEmbedding(config, source, rng)
        self.encoder = encoder
        decoder = Tower(config.of_decoder, rng, cross=True, causal=True)
        self.target = InputEmbedding(config, target, rng)
        self.decoder = decoder
        self.output = OutputProjection(output.weight, config.output_bias)

    def forward(self, source: Array, target: Array, skip_padding: bool = False) -> Array:
        special = self.config.special
        require_pair(source, target, skip_padding, special)
        sources = Places(source != special.padding, skip_padding)
        targets = Places(special.real(target), skip_padding)
        memory = self._encode(source, sources)
        x = self.target.forward(target, targets)
        reach = Reach(targets, causal=True)
        x = self.decoder.forward(x, reach, memory, Reach(targets, sources))
        return self.output.forward(x)

    def backward(self, dlogits: Array) -> None:
        dx, dmemory = self.decoder.backward(self.output.backward(dlogits))
        self.target.backward(dx)
        self.source.backward(self.encoder.backward(dmemory))
        return None

    def predictions(self, source, target_in, target_out):
        """A batch's ids (B, S), (B, T), (B, T) -> logits (N, V), targets (N,): the real ones."""
        logits = self.forward(source, target_in, skip_padding=True)
        return logits, target_out[self.config.special.real(target_in)]

    # Writing

    def start(self, source, length: int) -> State:
        """source ids (B, S) -> the State in which targets of up to `length` ids begin.

        Raises InputError for a source that does not end with the end id, or all but padding.
        """
        special = self.config.special
        require_source(source, special)
        past, places = Memory(length), Places(source != special.padding)
        memory = self._encode(source, places)
        past.of(self, lambda past: Shared(memory=memory, valid=places.valid))
        return State(np.full(len(source), special.start), past)

    def step(self, ids, state: State):
        """The next position of every row: ids (B,) -> logits (B, V), given those before it."""
        past, kept = state.past, state.past.of(self, lambda past: Shared())
        here = Places.whole(len(ids), 1, past.length, skip_padding=True)
        x = self.target.forward(ids[:, None], here)
        sources = len(kept["valid"])  # hypotheses of a source are so many positions that look at it
        looking = Places.whole(sources, len(ids) // sources, skip_padding=True)
        reach = Reach(looking, Places(kept["valid"]))
        x = self.decoder.forward(x, Reach(here, causal=True), kept["memory"], reach, past)
        past.advance(1)
        return self.output.forward(x)

    def _encode(self, source, places: Places):
        return self.encoder.forward(self.source.forward(source, places), Reach(places))


FIXES = {
    "source": "numformer.pad_sources(sources) makes it of lists of ids.",
    "target": "numformer.PairBatch.of(pairs) makes it of pairs of lists of ids.",
}


def require_pair(source, target, skip_padding: bool, special: Special = OURS) -> None:
    """Raise InputError for what no encoder-decoder reads as sources and targets of a batch."""
    _require_batch(source, "source")
    _require_batch(target, "target")
    if len(target) != len(source):
        raise InputError(
            "source and target hold the same number of sequences",
            f"{len(source)} sources and {len(target)} targets",
            "Pass one target for each source.",
        )
    if skip_padding and not special.real(target).any():
        raise InputError(
            "with skip_padding some target position is no padding",
            f"only id {special.padding}",
            "Leave this batch out.",
        )


def require_source(source, special: Special = OURS) -> None:
    """Raise InputError unless sources are a batch, each with the end id last, or all padding."""
    _require_batch(source, "source")
    for row, ids in enumerate(source):
        symbols = ids[ids != special.padding]
        if len(symbols) and symbols[-1] != special.end:
            raise InputError(
                f"a source ends with the end id {special.end}",
                f"row {row}, which ends with {symbols[-1]}",
                FIXES["source"],
            )


def _require_batch(ids, name: str) -> None:
    require_batch(ids, f"{name} ids are a NumPy array (B, {name} length)", FIXES[name])
