"""A recurrent layer: a cell moves along a padded batch; backward goes back through time."""

from typing import Any

import numpy as np

from numformer.arithmetic import rows
from numformer.backend import array_module
from numformer.errors import InputError
from numformer.layer import Array, Layer
from numformer.recurrence.cells import Cell


class Steps:
    """The order in which a loop visits the positions of a padded batch (B, T).

    Each step visits one position of every sequence that is long enough. `order` (B,) sorts the
    sequences by length, the longest first, so that the active sequences are the first rows of the
    batch and padding is never computed. For each step, `loop` has the position, the number of
    active sequences, and the slice of their rows among the N real positions, which are numbered in
    the order of the loop. For each real position, `places` (N,) has its index among all B T
    positions, and `sequences` (N,) the index of its sequence in `order`. `inverse` undoes `order`.

    `lengths` (B,) are on the host; the default is T for all. With `backwards`, the loop starts at
    the last position. Raises InputError unless there are B lengths from 0 to T.
    """

    def __init__(self, batch: int, longest: int, lengths=None, xp=np, backwards: bool = False):
        lengths = np.full(batch, longest) if lengths is None else lengths
        if lengths.shape != (batch,) or not 0 <= lengths.min() <= lengths.max() <= longest:
            raise InputError(
                f"lengths (B,) count the real positions of {batch} sequences, at most {longest}",
                f"{lengths}",
                "Pass (ids != PADDING).sum(axis=1).",
            )
        order = np.argsort(-lengths)
        positions = np.arange(longest)[:: -1 if backwards else 1]
        counts = np.count_nonzero(lengths > positions[:, None], axis=-1)
        steps = zip(positions, counts, counts.cumsum(), strict=True)
        self.loop = [(t, count, slice(end - count, end)) for t, count, end in steps]
        sequences = np.concatenate([np.arange(count) for count in counts])
        places = order[sequences] * longest + positions.repeat(counts)
        indices = order, np.argsort(order), places, sequences
        self.order, self.inverse, self.places, self.sequences = map(xp.asarray, indices)


class Recurrent(Layer):
    """x (B, T, D) -> h (B, T, H): a cell passes its state from position to position.

    `lengths` (B,), a host array, are the numbers of real positions; at the padding after them the
    state stays the same, so h[:, -1] is the last h of every sequence. With `backwards`, the cell
    moves from the last real position to the first, and h[:, 0] is its last h. `start` (B, H) is
    h before the first step; the default is 0. If `d_context` is set, every step also gets the same
    `context` (B, d_context). `backward` returns dx, then dstart if forward got `start`, and
    dcontext if it got `context`.
    """

    context: Any  # a Linear, or None without d_context

    def __init__(
        self,
        cell: Cell,
        d_model: int,
        rng: np.random.Generator,
        backwards: bool = False,
        d_context: int | None = None,
    ):
        self.input = cell.new_input(d_model, rng)
        self.context = cell.new_input(d_context, rng, bias=False) if d_context else None
        self.cell, self.backwards = cell, backwards

    def forward(
        self, x: Array, lengths: Any = None, start: Any = None, context: Any = None
    ) -> Array:
        xp, (batch, longest, _) = array_module(x), x.shape
        steps = Steps(batch, longest, lengths, xp, self.backwards)
        a = self.input.forward(rows(x).take(steps.places, axis=0))
        if (context is None) != (self.context is None):
            raise InputError(
                "a layer takes a context if d_context is set, and only then",
                f"{'no' if context is None else 'a'} context",
                "Set d_context and pass a context, or leave both out.",
            )
        if context is not None:
            share = self.context.forward(context.take(steps.order, axis=0))
            a = a + share.take(steps.sequences, axis=0)
        start_h = None if start is None else start.take(steps.order, axis=0)
        state = self.cell.initial_state(batch, a, start_h)
        h = xp.empty((batch, longest, self.cell.size), a.dtype)
        for t, count, active in steps.loop:
            if count:
                new = self.cell.forward(a[active], state[:count])
                state = new if count == batch else xp.concatenate([new, state[count:]])
            h[:, t] = state[:, : self.cell.size]
        self.save(steps=steps, has_start=start is not None, has_context=context is not None)
        return h.take(steps.inverse, axis=0)

    def step_inputs(self, context) -> list:
        """context (B, d_context) -> the inputs of `step` that are the same at every step."""
        return [self.context.forward(context)]

    def step(self, x, state, share):
        """x (B, D), state (B, states H), share (B, gates H) -> the next state, its h (B, H)."""
        state = self.cell.forward(self.input.forward(x) + share, state)
        return state, state[:, : self.cell.size]

    def backward(self, dh: Array) -> Any:
        """Propagate the gradient backward through time, in the reversed loop.

        In forward, every step saved a record on the stack of the same cell. The reversed loop pops
        the records, latest first, and each step adds to the gradient of the same weight.
        """
        saved = self.pop_saved()
        steps = saved["steps"]
        xp, (batch, longest, size) = array_module(dh), dh.shape
        dh = dh.take(steps.order, axis=0)
        dstate = xp.zeros((batch, self.cell.states * size), dh.dtype)
        da = xp.empty((len(steps.places), self.cell.gates * size), dh.dtype)
        for t, count, active in reversed(steps.loop):
            dstate[:, :size] += dh[:, t]  # at padding the state stays the same
            if count:
                da[active], dstate[:count] = self.cell.backward(dstate[:count])
        dx = xp.zeros((batch * longest, self.input.weight.shape[0]), dh.dtype)
        dx[steps.places] = self.input.backward(da)
        gradients = [dx.reshape(batch, longest, -1)]
        if saved["has_start"]:
            gradients.append(dstate[:, :size].take(steps.inverse, axis=0))
        if saved["has_context"]:
            dshare = xp.zeros((batch, da.shape[1]), dh.dtype)
            for _, count, active in steps.loop:
                dshare[:count] += da[active]  # the context enters every step
            gradients.append(self.context.backward(dshare).take(steps.inverse, axis=0))
        return tuple(gradients) if len(gradients) > 1 else gradients[0]
