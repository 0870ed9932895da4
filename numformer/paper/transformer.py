"""The Transformer of section 3: encoder, decoder and the projection onto symbols (Figure 1)."""

from typing import Any

import numpy as np

from numformer.errors import InputError
from numformer.layer import Array, Layer
from numformer.paper.config import Config
from numformer.paper.masks import Places, Reach
from numformer.paper.memory import Memory, SourceState, State
from numformer.symbols import DEFAULT_IDS, SpecialIds


class Transformer(Layer):
    """source ids (B, S), target ids (B, T) -> logits (B, T, V)   (Figure 1).

    Ids are host arrays of integers, padded with 0. `target` is the decoder's input: the start id
    and then the target without its last id. The logits at position t predict the target's id t + 1.
    `backward` takes dlogits and returns None, since ids have no gradient.

    With `skip_padding` the model computes real positions only, and the logits are (N, V), at
    the N real target positions. Their values stay the same, except under dropout, whose masks then
    have other shapes. The config builds the parts; the seed determines their initial weights.
    """

    config: Any

    def __init__(self, config: Config, seed: int | np.random.SeedSequence = 0):
        rng = np.random.default_rng(seed)
        self.config = config
        source, target, output = config.embeddings(rng)
        encoder = config.encoder(rng)
        self.source = config.input_embedding(source, rng)
        self.encoder = encoder
        decoder = config.decoder(rng)
        self.target = config.input_embedding(target, rng)
        self.decoder = decoder
        self.output = config.output(output.weight)

    def forward(self, source: Array, target: Array, skip_padding: bool = False) -> Array:
        special = self.config.special
        require_pair(source, target, skip_padding, special)
        sources = Places(source != special.padding, skip_padding)
        targets = Places(special.real(target), skip_padding)
        memory = self.encoder.forward(self.source.forward(source, sources), Reach(sources))
        x, reach = self.target.forward(target, targets), Reach(targets, causal=True)
        x = self.decoder.forward(x, reach, memory, Reach(targets, sources))
        return self.output.forward(x)

    def backward(self, dlogits: Array) -> None:
        dx, dmemory = self.decoder.backward(self.output.backward(dlogits))
        self.target.backward(dx)
        self.source.backward(self.encoder.backward(dmemory))

    # Generation (see paper/writing.py)

    def start(self, source, length: int) -> State:
        """source ids (B, S) -> the State before the first of at most `length` target ids.

        Raises InputError for a source that neither ends with the end id nor is all padding.
        """
        special = self.config.special
        require_source(source, special)
        past, sources = Memory(length), Places(source != special.padding)
        memory = self.encoder.forward(self.source.forward(source, sources), Reach(sources))
        past.state(self, lambda past: SourceState(memory=memory, valid=sources.valid))
        return State(np.full(len(source), special.start), past)

    def step(self, ids, state: State):
        """ids (B,) at the latest position of every row -> logits (B, V) for the next position."""
        past, source = state.past, state.past.state(self)
        latest = Places.without_padding(len(ids), 1, past.length, skip_padding=True)
        x = self.target.forward(ids[:, None], latest)
        sources = len(source["valid"])  # each source has several queries: its hypotheses
        hypotheses = Places.without_padding(sources, len(ids) // sources, skip_padding=True)
        memory_reach = Reach(hypotheses, Places(source["valid"]))
        reach = Reach(latest, causal=True)
        x = self.decoder.forward(x, reach, source["memory"], memory_reach, past)
        past.advance(1)
        return self.output.forward(x)


FIXES = dict(
    source="numformer.pad_sources(sources) makes the array from lists of ids.",
    target="numformer.PairBatch.of(pairs) makes the arrays from pairs of lists of ids.",
)


def require_pair(source, target, skip_padding: bool, special: SpecialIds = DEFAULT_IDS) -> None:
    """Raise InputError unless source and target form a batch for an encoder-decoder."""
    for ids, name in ((source, "source"), (target, "target")):
        require_batch(ids, f"{name} ids are a NumPy array (B, {name} length)", FIXES[name])
    if len(target) != len(source):
        raise InputError(
            "source and target hold the same number of sequences",
            f"{len(source)} sources and {len(target)} targets",
            "Pass one target for each source.",
        )
    if skip_padding and not special.real(target).any():
        raise InputError(
            "with skip_padding, at least one target position is not padding",
            f"only id {special.padding}",
            "Leave this batch out.",
        )


def require_source(source, special: SpecialIds = DEFAULT_IDS) -> None:
    """Raise InputError unless `source` is a batch whose rows end with the end id or are padding."""
    require_batch(source, "source ids are a NumPy array (B, source length)", FIXES["source"])
    for row, ids in enumerate(source):
        symbols = ids[ids != special.padding]
        if len(symbols) and symbols[-1] != special.end:
            raise InputError(
                f"a source ends with the end id {special.end}",
                f"row {row}, which ends with {symbols[-1]}",
                FIXES["source"],
            )


def require_batch(ids, rule: str, fix: str) -> None:
    """Raise InputError, with this rule and fix, unless `ids` is a nonempty array (B, length)."""
    if not isinstance(ids, np.ndarray) or ids.ndim != 2 or 0 in ids.shape:
        received = f"shape {ids.shape}" if isinstance(ids, np.ndarray) else type(ids).__name__
        raise InputError(f"{rule}, both at least 1", received, fix)
