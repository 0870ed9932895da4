"""A recurrent layer: a cell goes over a padded batch, forward in time, and backward through it."""

from typing import Any

import numpy as np

from numformer.arithmetic import rows
from numformer.backend import array_module
from numformer.errors import InputError
from numformer.layer import Array, Layer
from numformer.recurrence.cells import Cell


class Steps:
    """The order in which a loop takes the positions of a padded batch (B, T).

    Step after step it takes one position of every sequence that is long enough. With the longest
    sequence first, in this `order` (B,), those at work are the first rows of the batch, so padding
    is never computed. `loop` has for each step the position, how many are at work and their rows
    among the N real positions, which lie in the order of the loop; `places` (N,) are their indices
    among the B T of the batch, `sequences` (N,) those of their sequences in `order`, and `back`
    undoes the order.

    `lengths` (B,) are on the host, T for all unless given. With `backwards` the loop begins at the
    last position. Raises InputError for lengths that no sequence of the batch has.
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
        self.order, self.back, self.places, self.sequences = map(xp.asarray, indices)


class Recurrent(Layer):
    """x (B, T, D) -> h (B, T, H): a cell goes from position to position with its state.

    `lengths` (B,), a host array, says how many positions of each sequence are real; at the padding
    after them the state is kept, so h[:, -1] is the last one of every sequence. With `backwards`
    the cell goes from the last real position to the first, and h[:, 0] is its last state. `start`
    (B, H) is h before the first step, 0 unless given. Where `d_context` is set, `context`
    (B, d_context) goes into every step beside x. `backward` returns dx, and dstart and dcontext
    where forward got them.
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
        self.input = cell.input(d_model, rng)
        self.context = cell.input(d_context, rng, bias=False) if d_context else None
        self.cell, self.backwards = cell, backwards

    def forward(
        self, x: Array, lengths: Any = None, start: Any = None, context: Any = None
    ) -> Array:
        xp, (batch, longest, _) = array_module(x), x.shape
        steps = Steps(batch, longest, lengths, xp, self.backwards)
        a = self.input.forward(rows(x).take(steps.places, axis=0))
        if (context is None) != (self.context is None):
            raise InputError(
                "a context goes into every step where d_context is set, and only there",
                f"{'no' if context is None else 'a'} context",
                "Set d_context, or leave both out.",
            )
        if context is not None:
            share = self.context.forward(context.take(steps.order, axis=0))
            a = a + share.take(steps.sequences, axis=0)
        state = self.cell.start(
            batch, a, None if start is None else start.take(steps.order, axis=0)
        )
        h = xp.empty((batch, longest, self.cell.size), a.dtype)
        for t, count, at_work in steps.loop:
            if count:
                new = self.cell.forward(a[at_work], state[:count])
                state = new if count == batch else xp.concatenate([new, state[count:]])
            h[:, t] = state[:, : self.cell.size]
        self.save(steps=steps, given=(start is not None, context is not None))
        return h.take(steps.back, axis=0)

    def looking_at(self, context) -> list:
        """context (B, d_context) -> [share (B, gates H)]: what `step` takes of it every time."""
        return [self.context.forward(context)]

    def step(self, x, state, share):
        """x (B, D), state (B, states H), share (B, gates H) -> the next state, its h (B, H)."""
        state = self.cell.forward(self.input.forward(x) + share, state)
        return state, state[:, : self.cell.size]

    def backward(self, dh: Array) -> Any:
        """Backward through time is the loop reversed, and there is no more to it.

        Each step of the loop was a forward of the one cell, which saved a record on its stack. The
        loop reversed meets the records in reverse order, the latest first, as the stack gives them;
        and each adds to the gradient of the one weight.
        """
        saved = self.pop_saved()
        steps, (started, with_context) = saved["steps"], saved["given"]
        xp, (batch, longest, size) = array_module(dh), dh.shape
        dh = dh.take(steps.order, axis=0)
        dstate = xp.zeros((batch, self.cell.states * size), dh.dtype)
        da = xp.empty((len(steps.places), self.cell.gates * size), dh.dtype)
        for t, count, at_work in reversed(steps.loop):
            dstate[:, :size] += dh[:, t]  # at padding the state is kept, and so is its gradient
            if count:
                da[at_work], dstate[:count] = self.cell.backward(dstate[:count])
        dx = xp.zeros((batch * longest, self.input.weight.shape[0]), dh.dtype)
        dx[steps.places] = self.input.backward(da)
        gradients = [dx.reshape(batch, longest, -1)]
        if started:
            gradients.append(dstate[:, :size].take(steps.back, axis=0))
        if with_context:
            dshare = xp.zeros((batch, da.shape[1]), dh.dtype)
            for _, count, at_work in steps.loop:
                dshare[:count] += da[at_work]  # the context goes into every step
            gradients.append(self.context.backward(dshare).take(steps.back, axis=0))
        return tuple(gradients) if len(gradients) > 1 else gradients[0]
