"""The recurrent encoder-decoder, which the Transformer replaced.

An encoder reads the source position by position; a decoder writes the target in the same way. In
between stands one vector that has to hold all that was read (`context` "fixed"; Cho et al. 2014,
Sutskever et al. 2014), or the attention by which the decoder looks at every position of the source
again before each symbol ("attention"; Bahdanau, Cho and Bengio 2015).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from numformer import settings
from numformer.arithmetic import rows
from numformer.backend import array_module
from numformer.data.vocabulary import PADDING, SPECIAL, START
from numformer.later.activations import Tanh
from numformer.layer import Array, Layer
from numformer.models.model import Model
from numformer.paper.dropout import Dropout
from numformer.paper.embedding import Embedding, OutputProjection
from numformer.paper.linear import Linear
from numformer.paper.memory import ArrayState, Memory, State
from numformer.paper.transformer import require_pair, require_source
from numformer.recurrence import CELLS
from numformer.recurrence.additive_attention import AdditiveAttention
from numformer.recurrence.cells import Cell
from numformer.recurrence.recurrence import Recurrent, Steps


@dataclass(frozen=True, kw_only=True)
class Config(settings.Settings):
    """What a recurrent encoder-decoder is made of; InputError for values that cannot be."""

    source_vocabulary: int = settings.vocabulary(len(SPECIAL))
    target_vocabulary: int = settings.vocabulary(len(SPECIAL))
    d_model: int = settings.size(256, "width of embeddings, states and attention")
    cell: str = settings.choice("gru", CELLS, "what goes from position to position")
    context: str = settings.choice(
        "attention", ("attention", "fixed"), "what the decoder sees: all positions, or one vector"
    )
    p_drop: float = settings.share(0.1, "dropout on embeddings and before the output")

    longest = None
    layers = 1

    @property
    def attends(self) -> bool:
        """Whether the decoder looks at every position."""
        return self.context == "attention"

    @property
    def least_parameters(self) -> int:
        """No model of this Config has fewer: the entries of its matrices."""
        vectors, gates = self.source_vocabulary + self.target_vocabulary, CELLS[self.cell].gates
        matrices = 8 * gates + 7 if self.attends else 5 * gates + 2
        return self.d_model * (matrices * self.d_model + vectors + self.attends)

    @property
    def least_saved(self) -> int:
        """Numbers that every position at least saves, for backward."""
        return CELLS[self.cell].gates * self.d_model


class AttentionDecoder(Layer):
    """x (B, T, D), lengths (B,), start (B, H), memory (B, S, M), mask (B, S) -> (B, T, H + M).

    Before each step the state h looks at the memory; the context that it finds there goes into the
    cell beside x. The output holds state and context of each position, and 0 at padding. `lengths`
    are as in Recurrent, None where no position is padding. `backward` returns dx, dstart, dmemory.
    """

    def __init__(self, cell: Cell, d_model: int, d_memory: int, rng: np.random.Generator):
        self.input = cell.input(d_model, rng)
        self.context = cell.input(d_memory, rng, bias=False)
        self.keys = Linear(d_memory, cell.size, rng, bias=False)
        self.cross_attention = AdditiveAttention(cell.size, cell.size, rng)
        self.cell = cell

    def forward(self, x: Array, lengths: Any, start: Any, memory: Array, mask: Any) -> Array:
        xp, (batch, longest, _) = array_module(x), x.shape
        steps = Steps(batch, longest, lengths, xp)
        start, memory, mask = (x.take(steps.order, axis=0) for x in (start, memory, mask))
        a, keys = self.input.forward(rows(x).take(steps.places, axis=0)), self.keys.forward(memory)
        state = self.cell.start(batch, a, start)
        y = xp.zeros((batch, longest, self.cell.size + memory.shape[-1]), a.dtype)
        for t, count, at_work in steps.loop:
            if count:
                looked_at = keys[:count], memory[:count], mask[:count]
                state, y[:count, t] = self._step(a[at_work], state[:count], *looked_at)
        self.save(steps=steps, looked_at=memory.shape)
        return y.take(steps.back, axis=0)

    def _step(self, a, state, keys, memory, mask):
        size = self.cell.size
        context = self.cross_attention.forward(state[:, :size], keys, memory, mask)
        state = self.cell.forward(a + self.context.forward(context), state)
        return state, array_module(a).concatenate([state[:, :size], context], axis=-1)

    def step(self, x, state, keys, memory, mask):
        """x (B, D) -> the state after one more position, its output (B, H + M)."""
        return self._step(self.input.forward(x), state, keys, memory, mask)

    def looking_at(self, memory, mask) -> list:
        """What `step` looks at every time."""
        return [self.keys.forward(memory), memory, mask]

    def backward(self, dy: Array) -> Any:
        saved, size = self.pop_saved(), self.cell.size
        steps, looked_at = saved["steps"], saved["looked_at"]
        xp, (batch, longest, _) = array_module(dy), dy.shape
        dy = dy.take(steps.order, axis=0)
        dstate = self.cell.start(batch, dy)
        da = xp.empty((len(steps.places), self.cell.gates * size), dy.dtype)
        dmemory, dkeys = xp.zeros(looked_at, dy.dtype), xp.zeros((*looked_at[:2], size), dy.dtype)
        for t, count, at_work in reversed(steps.loop):
            if not count:
                continue
            dstate[:count, :size] += dy[:count, t, :size]
            da[at_work], before = self.cell.backward(dstate[:count])
            dcontext = self.context.backward(da[at_work])
            dcontext += dy[:count, t, size:]  # the context is an output, too
            dquery, dkeys_of_step, dmemory_of_step = self.cross_attention.backward(dcontext)
            before[:, :size] += dquery  # the state before is the query
            dstate[:count] = before
            dkeys[:count] += dkeys_of_step  # every step looks at the same memory
            dmemory[:count] += dmemory_of_step
        dmemory += self.keys.backward(dkeys)
        dx = xp.zeros((batch * longest, self.input.weight.shape[0]), dy.dtype)
        dx[steps.places] = self.input.backward(da)
        dstart, dmemory = (x.take(steps.back, axis=0) for x in (dstate[:, :size], dmemory))
        return dx.reshape(batch, longest, -1), dstart, dmemory


_Config = Config  # which a model has under the same name


class RecurrentEncoderDecoder(Model):
    """source ids (B, S), target ids (B, T) -> logits (B, T, V).

    With `skip_padding` only what stands for a real position is computed, and the logits are
    (N, V): those of the N real target positions, row after row. Ids are host arrays of integers,
    padded with 0 after each sequence. `target` is the decoder's input: the start id and then the
    target without its last id; logits at position t predict the id at t + 1. `backward` takes
    dlogits and returns None, since ids have no gradient.

    The decoder's state begins as tanh(last W + b), where `last` is the encoder's last state. With
    attention the source is read in both directions, as in its paper, and `last` is that of the
    direction that ends at the first position. Output y of the decoder gives the logits
    E tanh(y W + b), with the embedding E of the target.
    """

    Config: type[_Config] = Config
    backwards: Any  # a Recurrent, or None without attention

    def __init__(self, config: _Config, seed: int | np.random.SeedSequence = 0):
        self.config: _Config = self.fitting(config)
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
        start, looked_at = self._encode(source)
        x = self.dropout.forward(self.target.forward(target))
        y = self.decoder.forward(x, _lengths(target) if skip_padding else None, start, *looked_at)
        real = self._xp.asarray(np.flatnonzero(target != PADDING)) if skip_padding else None
        self.save(real=real, shape=y.shape)
        return self._logits(y if real is None else rows(y).take(real, axis=0))

    def backward(self, dlogits: Array) -> None:
        saved = self.pop_saved()
        real, shape = saved["real"], saved["shape"]
        dy = self.tanh.backward(self.dropout.backward(self.output.backward(dlogits)))
        dy = self.readout.backward(dy)
        if real is not None:
            of_real, dy = dy, self._xp.zeros(shape, dy.dtype)
            rows(dy)[real] = of_real
        dx, dstart, dlooked_at = self.decoder.backward(dy)
        self.target.backward(self.dropout.backward(dx))
        self.source.backward(self.dropout.backward(self._encode_backward(dstart, dlooked_at)))
        return None

    def predictions(self, source, target_in, target_out):
        """A batch's ids (B, S), (B, T), (B, T) -> logits (N, V), targets (N,): the real ones."""
        logits = self.forward(source, target_in, skip_padding=True)
        return logits, target_out[target_in != PADDING]

    # Writing

    def start(self, source, length: int) -> State:
        """source ids (B, S) -> the State in which targets of up to `length` ids begin.

        Raises InputError for a source that does not end with the end id, or all but padding.
        """
        require_source(source)
        start, looked_at = self._encode(source)
        state = self.decoder.cell.start(len(source), start, start)
        kept = ArrayState(enumerate([state, *self.decoder.looking_at(*looked_at)]))
        past = Memory(length)
        past.state(self, lambda past: kept)
        return State(np.full(len(source), START), past)

    def step(self, ids, state: State):
        """The next position of every row: ids (B,) -> logits (B, V), given those before it."""
        kept = state.past.state(self)
        kept[0], y = self.decoder.step(self.target.forward(ids), *kept.values())
        state.past.advance(1)
        return self._logits(y)

    # Both

    def _encode(self, source):
        """source (B, S) -> the decoder's start (B, D), and what the decoder looks at, a tuple.

        That is the last state (B, D), or memory (B, S, 2 D) and its mask (B, S).
        """
        x, lengths = self.dropout.forward(self.source.forward(source)), _lengths(source)
        h = self.encoder.forward(x, lengths)
        last = h[:, -1]
        looked_at: tuple = (last,)
        self.save(shape=h.shape)
        if self.config.attends:
            other = self.backwards.forward(x, lengths)
            memory = self._xp.concatenate([h, other], axis=-1)
            last, looked_at = other[:, 0], (memory, self._xp.asarray(source != PADDING))
        return self.tanh.forward(self.bridge.forward(last)), looked_at

    def _encode_backward(self, dstart, dlooked_at):
        """-> the gradient of the embedded source."""
        dlast = self.bridge.backward(self.tanh.backward(dstart))
        shape = self.pop_saved()["shape"]
        if self.config.attends:
            dh, dother = self._xp.split(dlooked_at, 2, axis=-1)
            dother[:, 0] += dlast
            dx = self.backwards.backward(dother)
            dx += self.encoder.backward(dh)
            return dx
        dlast += dlooked_at  # the last state is the decoder's context, too
        dh = self._xp.zeros(shape, dlast.dtype)
        dh[:, -1] = dlast
        return self.encoder.backward(dh)

    def _logits(self, y):
        return self.output.forward(self.dropout.forward(self.tanh.forward(self.readout.forward(y))))

    @property
    def _xp(self):
        return array_module(self.output.weight.data)


def _lengths(ids: np.ndarray) -> np.ndarray:
    """ids (B, T) -> (B,): how many positions there are up to the last real one."""
    return ((ids != PADDING) * np.arange(1, ids.shape[1] + 1)).max(axis=-1)
