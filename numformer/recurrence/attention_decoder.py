"""A recurrent decoder with attention (Bahdanau, Cho and Bengio 2015)."""

from typing import Any

import numpy as np

from numformer.arithmetic import rows
from numformer.backend import array_module
from numformer.layer import Array, Layer
from numformer.paper.linear import Linear
from numformer.recurrence.additive_attention import AdditiveAttention
from numformer.recurrence.cells import Cell
from numformer.recurrence.recurrent import Steps


class AttentionDecoder(Layer):
    """x (B, T, D), lengths (B,), start (B, H), memory (B, S, M), mask (B, S) -> (B, T, H + M).

    Before each step, the state h attends to the memory; the resulting context enters the cell
    together with x. The output at a position is the new h and the context, side by side; at padding
    it is 0. `lengths` are as in Recurrent, or None without padding. `backward` returns dx, dstart,
    dmemory.
    """

    def __init__(self, cell: Cell, d_model: int, d_memory: int, rng: np.random.Generator):
        self.input = cell.new_input(d_model, rng)
        self.context = cell.new_input(d_memory, rng, bias=False)
        self.keys = Linear(d_memory, cell.size, rng, bias=False)
        self.cross_attention = AdditiveAttention(cell.size, cell.size, rng)
        self.cell = cell

    def forward(self, x: Array, lengths: Any, start: Any, memory: Array, mask: Any) -> Array:
        xp, (batch, longest, _) = array_module(x), x.shape
        steps = Steps(batch, longest, lengths, xp)
        start, memory, mask = (x.take(steps.order, axis=0) for x in (start, memory, mask))
        a, keys = self.input.forward(rows(x).take(steps.places, axis=0)), self.keys.forward(memory)
        state = self.cell.initial_state(batch, a, start)
        y = xp.zeros((batch, longest, self.cell.size + memory.shape[-1]), a.dtype)
        for t, count, active in steps.loop:
            if count:
                inputs = state[:count], keys[:count], memory[:count], mask[:count]
                state, y[:count, t] = self._step(a[active], *inputs)
        self.save(steps=steps, shape=memory.shape)
        return y.take(steps.inverse, axis=0)

    def _step(self, a, state, keys, memory, mask):
        size = self.cell.size
        context = self.cross_attention.forward(state[:, :size], keys, memory, mask)
        state = self.cell.forward(a + self.context.forward(context), state)
        return state, array_module(a).concatenate([state[:, :size], context], axis=-1)

    def step(self, x, state, keys, memory, mask):
        """x (B, D), state, and the `step_inputs` -> the next state, the output (B, H + M)."""
        return self._step(self.input.forward(x), state, keys, memory, mask)

    def step_inputs(self, memory, mask) -> list:
        """Return the inputs of `step` that are the same at every step."""
        return [self.keys.forward(memory), memory, mask]

    def backward(self, dy: Array) -> Any:
        saved, size = self.pop_saved(), self.cell.size
        steps, shape = saved["steps"], saved["shape"]
        xp, (batch, longest, _) = array_module(dy), dy.shape
        dy = dy.take(steps.order, axis=0)
        dstate = self.cell.initial_state(batch, dy)
        da = xp.empty((len(steps.places), self.cell.gates * size), dy.dtype)
        dmemory, dkeys = xp.zeros(shape, dy.dtype), xp.zeros((*shape[:2], size), dy.dtype)
        for t, count, active in reversed(steps.loop):
            if not count:
                continue
            dstate[:count, :size] += dy[:count, t, :size]
            da[active], dprevious = self.cell.backward(dstate[:count])
            dcontext = self.context.backward(da[active])
            dcontext += dy[:count, t, size:]  # the context is part of the output, too
            dquery, dkeys_here, dmemory_here = self.cross_attention.backward(dcontext)
            dprevious[:, :size] += dquery  # the h of the previous state is the query
            dstate[:count] = dprevious
            dkeys[:count] += dkeys_here  # every step attends to the same memory
            dmemory[:count] += dmemory_here
        dmemory += self.keys.backward(dkeys)
        dx = xp.zeros((batch * longest, self.input.weight.shape[0]), dy.dtype)
        dx[steps.places] = self.input.backward(da)
        dstart, dmemory = (x.take(steps.inverse, axis=0) for x in (dstate[:, :size], dmemory))
        return dx.reshape(batch, longest, -1), dstart, dmemory
