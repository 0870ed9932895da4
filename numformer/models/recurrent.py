"""The recurrent encoder-decoder, which the Transformer replaced.

An encoder reads the source position by position; a decoder generates the target in the same way.
The decoder sees the source either as one vector, which has to hold everything that was read
(`context` "fixed"; Cho et al. 2014, Sutskever et al. 2014), or by attention to every position of
the source before each symbol ("attention"; Bahdanau, Cho and Bengio 2015).
"""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from numformer import settings
from numformer.backend import array_module
from numformer.data.vocabulary import PADDING, SPECIAL, START
from numformer.later.activations import Tanh
from numformer.later.pick import pick, pick_backward
from numformer.layer import Array
from numformer.models import fields
from numformer.models.model import Model
from numformer.paper.dropout import Dropout
from numformer.paper.embedding import Embedding, OutputProjection
from numformer.paper.linear import Linear
from numformer.paper.memory import ArrayState, Memory, State
from numformer.paper.transformer import require_pair, require_source
from numformer.recurrence import CELLS
from numformer.recurrence.attention_decoder import AttentionDecoder
from numformer.recurrence.cells import Cell
from numformer.recurrence.recurrent import Recurrent


@fields.field_help()
@dataclass(frozen=True, kw_only=True)
class Config(settings.Settings):
    """The config of a recurrent encoder-decoder. Raises InputError for invalid values."""

    source_vocabulary: int = settings.vocabulary(len(SPECIAL))
    target_vocabulary: int = settings.vocabulary(len(SPECIAL))
    d_model: int = settings.size(256, "width of embeddings, states and attention")
    cell: str = settings.choice("gru", CELLS, "kind of recurrent cell")
    context: str = settings.choice(
        "attention",
        ("attention", "fixed"),
        "what the decoder sees: all positions, or one vector",
    )
    p_drop: float = settings.share(0.1, "dropout on embeddings and before the output")

    longest = None
    layers = 1

    @property
    def attends(self) -> bool:
        """Whether the decoder has attention."""
        return self.context == "attention"

    @property
    def least_parameters(self) -> int:
        """A lower bound on the number of parameters: the entries of the matrices."""
        vectors, gates = self.source_vocabulary + self.target_vocabulary, CELLS[self.cell].gates
        matrices = 8 * gates + 7 if self.attends else 5 * gates + 2
        return self.d_model * (matrices * self.d_model + vectors + self.attends)

    @property
    def least_saved(self) -> int:
        """A lower bound on how many numbers are saved for backward at each position."""
        return CELLS[self.cell].gates * self.d_model


PARTS = {"source": "embedding", "target": "embedding", "readout": "output"}
PARTS |= {"encoder": "encoder", "backwards": "encoder", "bridge": "decoder", "decoder": "decoder"}
"""The name under which the parameters of each part are counted, except those of attention."""

_Config = Config  # because the model below has a class attribute `Config`


class RecurrentEncoderDecoder(Model):
    """source ids (B, S), target ids (B, T) -> logits (B, T, V).

    With `skip_padding` padding is skipped, and the logits are (N, V), at the N real
    target positions, sequence by sequence. Ids are host arrays of integers, padded with 0 after
    each sequence. `target` is the decoder's input: the start id and then the target without its
    last id; the logits at position t predict the id at t + 1. `backward` takes dlogits and returns
    None, since ids have no gradient.

    The decoder's first state is tanh(last W + b), where `last` is the encoder's last state. With
    attention the source is read in both directions, as in the paper of Bahdanau et al., and `last`
    is the last state of the backward direction. An output y of the decoder gives the logits
    tanh(y W + b) E^T, where E (V, D) is the embedding of the target.
    """

    Config: type[_Config] = Config
    backwards: Any  # a Recurrent, or None without attention

    def __init__(self, config: _Config, seed: int | np.random.SeedSequence = 0):
        self.config: _Config = self.require_config(config)
        rng, size = np.random.default_rng(seed), config.d_model

        def cell() -> Cell:
            return CELLS[config.cell](size, rng)

        self.dropout, self.tanh = Dropout(config.p_drop), Tanh()
        self.source = Embedding(config.source_vocabulary, size, rng)
        self.encoder = Recurrent(cell(), size, rng)
        self.backwards = Recurrent(cell(), size, rng, backwards=True) if config.attends else None
        self.bridge = Linear(size, size, rng)
        self.target = Embedding(config.target_vocabulary, size, rng)
        self.decoder = (
            AttentionDecoder(cell(), size, 2 * size, rng)
            if config.attends
            else Recurrent(cell(), size, rng, d_context=size)
        )
        self.readout = Linear(3 * size if config.attends else size, size, rng)
        self.output = OutputProjection(self.target.weight)

    def forward(self, source: Array, target: Array, skip_padding: bool = False) -> Array:
        require_pair(source, target, skip_padding)
        start, context = self._encode(source)
        x = self.dropout.forward(self.target.forward(target))
        y = self.decoder.forward(x, _lengths(target) if skip_padding else None, start, *context)
        real = self._xp.asarray(np.flatnonzero(target != PADDING)) if skip_padding else None
        self.save(real=real, shape=y.shape)
        return self._logits(y if real is None else pick(y, real))

    def backward(self, dlogits: Array) -> None:
        saved = self.pop_saved()
        real, shape = saved["real"], saved["shape"]
        dy = self.tanh.backward(self.dropout.backward(self.output.backward(dlogits)))
        dy = self.readout.backward(dy)
        if real is not None:
            dy = pick_backward(dy, real, shape)
        dx, dstart, dcontext = self.decoder.backward(dy)
        self.target.backward(self.dropout.backward(dx))
        self.source.backward(self.dropout.backward(self._encode_backward(dstart, dcontext)))
        return None

    def predictions(self, source, target_in, target_out):
        """A batch's ids (B, S), (B, T), (B, T) -> logits (N, V), targets (N,), without padding."""
        logits = self.forward(source, target_in, skip_padding=True)
        return logits, target_out[target_in != PADDING]

    def parameter_counts(self) -> dict[str, int]:
        """Return the number of parameters of each part, and in total.

        The "attention" includes its keys, the "decoder" the layer that computes its first state;
        "output" is the layer before the target's embedding.
        """
        counts: Counter[str] = Counter()
        for name, parameter in self.named_parameters().items():
            first, second, *_ = name.split(".")
            attends = second in ("keys", "cross_attention")
            counts["attention" if attends else PARTS[first]] += parameter.size
        return {**counts, "total": counts.total()}

    # Generation

    def start(self, source, length: int) -> State:
        """source ids (B, S) -> the State from which targets of up to `length` ids are generated.

        Raises InputError for a source that does not end with the end id.
        """
        require_source(source)
        start, context = self._encode(source)
        state = self.decoder.cell.initial_state(len(source), start, start)
        inputs = ArrayState(enumerate([state, *self.decoder.step_inputs(*context)]))
        past = Memory(length)
        past.state(self, lambda past: inputs)
        return State(np.full(len(source), START), past)

    def step(self, ids, state: State):
        """The ids (B,) of the next position -> logits (B, V) for the position after it."""
        inputs = state.past.state(self, lambda past: ArrayState())
        inputs[0], y = self.decoder.step(self.target.forward(ids), *inputs.values())
        state.past.advance(1)
        return self._logits(y)

    # Training and generation

    def _encode(self, source):
        """source (B, S) -> the decoder's first state (B, D), and the context, a tuple.

        The context is the encoder's last state (B, D), or memory (B, S, 2 D) and its mask (B, S).
        """
        x, lengths = self.dropout.forward(self.source.forward(source)), _lengths(source)
        h = self.encoder.forward(x, lengths)
        last = h[:, -1]
        context: tuple = (last,)
        self.save(shape=h.shape)
        if self.config.attends:
            other = self.backwards.forward(x, lengths)
            memory = self._xp.concatenate([h, other], axis=-1)
            last, context = other[:, 0], (memory, self._xp.asarray(source != PADDING))
        return self.tanh.forward(self.bridge.forward(last)), context

    def _encode_backward(self, dstart, dcontext):
        """dstart, dcontext -> the gradient of the embedded source."""
        dlast = self.bridge.backward(self.tanh.backward(dstart))
        shape = self.pop_saved()["shape"]
        if self.config.attends:
            dh, dother = self._xp.split(dcontext, 2, axis=-1)
            dother[:, 0] += dlast
            dx = self.backwards.backward(dother)
            dx += self.encoder.backward(dh)
            return dx
        dlast += dcontext  # the last state is also the context
        dh = self._xp.zeros(shape, dlast.dtype)
        dh[:, -1] = dlast
        return self.encoder.backward(dh)

    def _logits(self, y):
        return self.output.forward(self.dropout.forward(self.tanh.forward(self.readout.forward(y))))

    @property
    def _xp(self):
        return array_module(self.output.weight.data)


def _lengths(ids: np.ndarray) -> np.ndarray:
    """ids (B, T) -> (B,): the number of positions up to the last real one."""
    return ((ids != PADDING) * np.arange(1, ids.shape[1] + 1)).max(axis=-1)
