"""A selective state space (Gu and Dao 2023, Mamba): a state that each position writes and erases.

Each position computes what it writes, what it reads and how much of the state decays. So the state
keeps what matters, as in a recurrent cell, but no step needs a matrix product with the previous
state. As in Mamba-2 (Dao and Gu 2024), the whole state of a head decays by one factor, so the scan
along the sequence can be computed by matrix products, chunk by chunk.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from numformer import settings
from numformer.arithmetic import dot_last, sum_rows
from numformer.backend import array_module
from numformer.errors import InputError
from numformer.later.activations import Swish, sigmoid, swish, swish_backward
from numformer.later.mixers.convolution import Convolution
from numformer.later.mixers.mixer import Mixer, settings_from
from numformer.later.mixers.running_sums import running_sums, running_sums_backward, sequence_reach
from numformer.layer import Array, Parameter
from numformer.paper.attention import head_size, merge_heads, split_heads
from numformer.paper.linear import Linear
from numformer.paper.masks import Reach
from numformer.paper.memory import ArrayState, Memory


def selective_scan(x, step, rate, write, read, skip, start=None):
    """h_t = exp(-rate step_t) h_{t-1} + write_t^T (step_t x_t), y_t = read_t h_t + skip x_t.

    x (B, H, T, P); step (B, H, T) > 0, which scales x_t as it enters the state h (N, P), and the
    decay; rate, skip (H); write, read (B, 1, T, N), which all heads share; start (B, H, N, P), or
    None for 0 (Gu and Dao 2023, equations 1 and 2 and algorithm 2; like their code, this uses step
    in place of (exp(step A) - 1) / A, A = -rate)
    -> y (B, H, T, P), y_before_skip (the part of y from the state), the states, the last state.
    """
    written = x * step[..., None]
    log_decay = step * -rate[:, None]
    y_before_skip, states, last = running_sums(read, write, written, log_decay, start)
    return y_before_skip + x * skip[:, None, None], y_before_skip, states, last


def selective_scan_backward(dy, x, step, rate, write, read, skip, y_before_skip, states):
    """dy (B, H, T, P) -> the gradients of x, step, rate, write, read and skip."""
    written = x * step[..., None]
    log_decay = step * -rate[:, None]
    dread, dwrite, dwritten, dlog_decay = running_sums_backward(
        dy, read, write, written, log_decay, y_before_skip, states
    )
    dstep = dot_last(dwritten, x)[..., 0]  # written = step * x
    dstep -= dlog_decay * rate[:, None]  # log_decay = -rate * step
    drate = -(dlog_decay * step).sum(axis=(0, 2))
    dskip = dot_last(dy, x)[..., 0].sum(axis=(0, 2))
    dwritten *= step[..., None]
    dwritten += dy * skip[:, None, None]  # y = y_before_skip + skip * x
    return dwritten, dstep, drate, dwrite, dread, dskip


def softplus(x):
    """x (...) -> log(1 + exp(x)) (...): positive, near 0 for negative x and near x for positive."""
    return array_module(x).logaddexp(x, x.dtype.type(0))


def softplus_backward(dy, x):
    """dy (...) -> dx (...): the slope is sigmoid(x)."""
    return dy * sigmoid(x)


class StateSpace(Mixer):
    """x (B, T, D), reach -> (B, T, D): y = (scan(swish(convolution(u))) * swish(gate)) W_out.

    One projection of x gives the input u and the gate (H P features each), the vectors write and
    read (N each), and the step of each head, which softplus makes positive. A position sees itself
    and earlier positions, except padding. The scan follows the order of positions, so it needs no
    position encodings.

    As in Mamba, rates start between 1 and 16 and steps between 0.001 and 0.1 (uniform in the
    logarithm): some heads remember a few positions, others a thousand.
    """

    @dataclass(frozen=True, kw_only=True)
    class Settings(settings.Settings):
        """The sizes of a state space."""

        d_state: int = settings.size(64, "numbers in the state for each feature")
        expansion: int = settings.size(2, "features of a state space, in multiples of heads x d_v")

    def __init__(
        self,
        d_model: int,
        heads: int,
        rng: np.random.Generator,
        d_v: int | None = None,
        d_state: int = 64,
        expansion: int = 2,
    ):
        self.heads, self.d_state = heads, d_state
        self.features = expansion * heads * (head_size(d_model, heads) if d_v is None else d_v)
        self.input = Linear(d_model, 2 * self.features + 2 * d_state + heads, rng, bias=False)
        self.convolution = Convolution(self.features, rng)
        self.swish = Swish()
        steps = np.exp(rng.uniform(math.log(1e-3), math.log(0.1), heads))
        self.step_bias = Parameter(np.log(np.expm1(steps)))  # softplus(step_bias) = steps
        self.log_rate = Parameter(np.log(rng.uniform(1, 16, heads)))
        self.skip = Parameter(np.ones(heads))
        self.output = Linear(self.features, d_model, rng, bias=False)

    def forward(self, x: Array, reach: Any = None, past: Memory | None = None) -> Array:
        reach = sequence_reach("a state space", reach, x)
        self._require_causal(reach)
        xp, places = array_module(x), reach.queries
        u, gate, write, read, raw_step = self._parts(self._spread(self.input.forward(x), reach))
        state = past.state(self, lambda past: ArrayState()) if past else {}
        before = state.get("before")
        v = self.swish.forward(self.convolution.forward(u, before))
        raw_step = raw_step.swapaxes(1, 2) + self.step_bias.data[:, None]
        inputs = dict(
            x=split_heads(v, self.heads),
            step=softplus(raw_step),
            rate=xp.exp(self.log_rate.data),
            write=write[:, None],
            read=read[:, None],
        )
        y, y_before_skip, states, last = selective_scan(
            **inputs, skip=self.skip.data, start=state.get("state")
        )
        if past:
            state.update(state=last, before=self.convolution.latest(u, before))
        y, (swish_gate, sigmoid_gate) = merge_heads(y), swish(gate)
        scan = dict(inputs=inputs, y_before_skip=y_before_skip, states=states, raw_step=raw_step)
        self.save(**scan, y=y, swish_gate=swish_gate, sigmoid_gate=sigmoid_gate, reach=reach)
        y = y * swish_gate
        return self.output.forward(places.gather(y[:, None]) if places.skip_padding else y)

    def backward(self, dy: Array) -> Array:
        saved = self.pop_saved()
        places, inputs = saved["reach"].queries, saved["inputs"]
        dy = self.output.backward(dy)
        if places.skip_padding:
            dy = places.spread(dy, 1)[:, 0]
        dgate = swish_backward(dy * saved["y"], saved["swish_gate"], saved["sigmoid_gate"])
        dy = split_heads(dy * saved["swish_gate"], self.heads)  # y = scan * swish_gate
        dv, dstep, drate, dwrite, dread, dskip = selective_scan_backward(
            dy,
            **inputs,
            skip=self.skip.data,
            y_before_skip=saved["y_before_skip"],
            states=saved["states"],
        )
        self.skip.grad += dskip
        self.log_rate.grad += drate * inputs["rate"]  # rate = exp(log_rate)
        dstep = softplus_backward(dstep, saved["raw_step"]).swapaxes(1, 2)
        self.step_bias.grad += sum_rows(dstep)
        du = self.convolution.backward(self.swish.backward(merge_heads(dv)))
        parts = du, dgate, dwrite[:, 0], dread[:, 0], dstep
        dparts = self._spread_backward(array_module(dy).concatenate(parts, axis=-1), saved["reach"])
        return self.input.backward(dparts)

    def _parts(self, x) -> list:
        """x (B, T, W) -> u, gate (B, T, H P), write, read (B, T, N), step (B, T, H), all views."""
        sizes = self.features, self.features, self.d_state, self.d_state, self.heads
        ends = np.cumsum(sizes)
        return [x[..., end - size : end] for end, size in zip(ends, sizes, strict=True)]

    def _spread(self, x, reach: Reach):
        """Return x as sequences (B, T, W), with zeros at padding: padding then writes nothing."""
        places = reach.queries
        if places.skip_padding:
            return places.spread(x, 1)[:, 0]
        return x if places.all_valid else x * self._visible(x, reach)

    def _spread_backward(self, dx, reach: Reach):
        places = reach.queries
        if places.skip_padding:
            return places.gather(dx[:, None])
        return dx if places.all_valid else dx * self._visible(dx, reach)

    @staticmethod
    def _visible(x, reach: Reach):
        return array_module(x).asarray(reach.queries.valid[..., None])

    @staticmethod
    def _require_causal(reach: Reach) -> None:
        if not reach.causal:
            raise InputError(
                "in a state space, a position sees only itself and earlier positions",
                "a reach that is not causal",
                "Pass Reach(places, causal=True), or choose attention, which can look both ways.",
            )

    @classmethod
    def build(cls, config, rng: np.random.Generator, causal: bool) -> "StateSpace":
        return cls(
            config.d_model, config.heads, rng, d_v=config.d_v, **settings_from(config, cls.Settings)
        )

    @classmethod
    def entries(cls, config) -> int:
        d_v = config.d_v or head_size(config.d_model, config.heads)
        features = config.expansion * config.heads * d_v
        columns = 3 * features + 2 * config.d_state + config.heads
        return config.d_model * columns + 4 * features  # the convolution has 4 weights per feature
