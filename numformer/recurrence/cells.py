"""Recurrent cells: one step of a recurrent network.

A state passes from position to position, so every step waits for the previous one (section 1).
There are three cells: the simple one (Elman 1990), the LSTM (Hochreiter and Schmidhuber 1997, with
the forget gate of Gers et al. 2000) and the GRU (Cho et al. 2014). The input of a cell is
a = x W + b, which the layer around it computes for all positions in one product.
"""

from typing import Any

import numpy as np

from numformer.arithmetic import matmul
from numformer.backend import array_module
from numformer.later.activations import sigmoid, tanh_backward
from numformer.layer import Array, Layer, Parameter
from numformer.paper.linear import Linear, linear, linear_backward


def rnn(a, state, weight):
    """h' = tanh(a + h W)   (Elman 1990).

    a (B, H), state h (B, H), weight W (H, H) -> state h' (B, H).
    """
    new = matmul(state, weight)
    new += a
    array_module(new).tanh(new, out=new)
    return new


def rnn_backward(dnew, state, weight, new):
    """dnew (B, H) -> da, dstate (B, H), dweight (H, H)."""
    da = tanh_backward(dnew, new)
    dstate, dweight, _ = linear_backward(da, state, weight)
    return da, dstate, dweight


def lstm(a, state, weight):
    """i, f, o = sigmoid(a + h W), g = tanh(a + h W); c' = f c + i g; h' = o tanh(c').

    a (B, 4 H) in the order i, f, o, g; state (B, 2 H) = [h | c]; weight W (H, 4 H)
    -> state (B, 2 H) = [h' | c'], gates (B, 4 H), tanh_c = tanh(c') (B, H). From step to step, the
    memory c passes through no weight and no tanh: only the forget gate f shrinks its gradient.
    """
    xp, size = array_module(a), len(weight)
    h, c = state[:, :size], state[:, size:]
    gates = matmul(h, weight)
    gates += a
    gated = gates[:, : 3 * size]
    sigmoid(gated, out=gated)
    i, f, o, g = _parts(gates, size)
    xp.tanh(g, out=g)
    new = xp.empty_like(state)
    new_h, new_c = new[:, :size], new[:, size:]
    xp.multiply(f, c, out=new_c)
    new_c += i * g
    tanh_c = xp.tanh(new_c)
    xp.multiply(o, tanh_c, out=new_h)
    return new, gates, tanh_c


def lstm_backward(dnew, state, weight, gates, tanh_c):
    """dnew (B, 2 H) -> da (B, 4 H), dstate (B, 2 H), dweight (H, 4 H)."""
    xp, size = array_module(dnew), len(weight)
    i, f, o, g = _parts(gates, size)
    dh, h, c = dnew[:, :size], state[:, :size], state[:, size:]
    dc = tanh_backward(dh * o, tanh_c)  # h' = o tanh(c')
    dc += dnew[:, size:]
    da = gates * gates
    gated, da_g = da[:, : 3 * size], da[:, 3 * size :]
    xp.subtract(gates[:, : 3 * size], gated, out=gated)  # sigmoid' = sigmoid - sigmoid^2
    xp.subtract(1, da_g, out=da_g)
    di, df, do, dg = _parts(da, size)
    di *= dc * g  # c' = f c + i g
    df *= dc * c
    do *= dh * tanh_c  # h' = o tanh(c')
    dg *= dc * i
    dstate = xp.empty_like(dnew)
    dstate[:, :size], dweight, _ = linear_backward(da, h, weight)
    xp.multiply(dc, f, out=dstate[:, size:])
    return da, dstate, dweight


def gru(a, state, weight, bias=None):
    """r, z = sigmoid(a + h W); n = tanh(a + r (h W)); h' = (1 - z) n + z h.

    a (B, 3 H) in the order r, z, n; state h (B, H); weight W (H, 3 H) -> state h' (B, H),
    gates (B, 3 H), product (B, H) of h and n's part of W. The reset gate r acts after the product,
    as in the first version of Cho et al. 2014 (arXiv 1406.1078v1), in cuDNN and in PyTorch, so that
    one product h W serves r, z and n. Later versions of the paper have tanh(a + (r h) W). With a
    bias b (3 H,), as cuDNN and PyTorch have it, h W + b takes the place of h W.
    """
    xp, size = array_module(a), len(weight)
    gates = linear(state, weight, bias)
    product = gates[:, 2 * size :].copy()
    gated, n = gates[:, : 2 * size], gates[:, 2 * size :]
    gated += a[:, : 2 * size]
    sigmoid(gated, out=gated)
    n *= gates[:, :size]
    n += a[:, 2 * size :]
    xp.tanh(n, out=n)
    new = state - n
    new *= gates[:, size : 2 * size]
    new += n  # n + z (h - n)
    return new, gates, product


def gru_backward(dnew, state, weight, gates, product, bias=None):
    """dnew (B, H) -> da (B, 3 H), dstate (B, H), dweight (H, 3 H), dbias (3 H,) or None."""
    xp, size = array_module(dnew), len(weight)
    r, z, n = _parts(gates, size)
    da = gates * gates
    gated, da_n = da[:, : 2 * size], da[:, 2 * size :]
    xp.subtract(gates[:, : 2 * size], gated, out=gated)  # sigmoid' = sigmoid - sigmoid^2
    xp.subtract(1, da_n, out=da_n)
    dr, dz, dn = _parts(da, size)
    dstate = dnew * z  # h' = n + z (h - n)
    dn *= dnew - dstate
    dz *= dnew * (state - n)
    dr *= dn * product  # n = tanh(a + r product)
    dproducts = da.copy()
    dproducts[:, 2 * size :] *= r
    dstate_products, dweight, dbias = linear_backward(dproducts, state, weight, bias)
    dstate += dstate_products
    return da, dstate, dweight, dbias


def _parts(x, size: int) -> list:
    """x (B, N size) -> N views (B, size)."""
    return [x[:, start : start + size] for start in range(0, x.shape[1], size)]


class Cell(Layer):
    """One step of a recurrence: a (B, gates H), state (B, states H) -> the next state.

    The first H values of a state are h, the output. The initial weight (H, gates H) of h has an
    orthogonal matrix for each gate (Saxe et al. 2014), whose product with h is as long as h. There
    is no bias, because `a` includes one. `backward` returns da, dstate.
    """

    gates = states = 1

    def __init__(self, size: int, rng: np.random.Generator):
        self.size = size
        normal = rng.standard_normal((self.gates, size, size))
        self.weight = Parameter(np.concatenate([np.linalg.qr(gate)[0] for gate in normal], axis=-1))

    def new_input(self, d_in: int, rng: np.random.Generator, bias: bool = True) -> Linear:
        """Make the layer that computes the cell's input, x (..., d_in) -> a (..., gates H)."""
        return Linear(d_in, self.gates * self.size, rng, bias)

    def initial_state(self, batch: int, like, h=None):
        """Return the first state (batch, states H): h (batch, H), zeros if None, and then zeros."""
        state = array_module(like).zeros((batch, self.states * self.size), like.dtype)
        if h is not None:
            state[:, : self.size] = h
        return state

    def _add(self, da, dstate, dweight):
        self.weight.grad += dweight
        return da, dstate


class RNNCell(Cell):
    """a (B, H), state h (B, H) -> h' = tanh(a + h W)."""

    def forward(self, a: Array, state: Array) -> Array:
        new = rnn(a, state, self.weight.data)
        self.save(state=state, new=new)
        return new

    def backward(self, dnew: Array) -> Any:
        return self._add(*rnn_backward(dnew, weight=self.weight.data, **self.pop_saved()))


class LSTMCell(Cell):
    """a (B, 4 H), state [h | c] (B, 2 H) -> [h' | c']: gates write to and erase the memory c.

    The bias of the forget gate starts at 1 (Gers et al. 2000; Jozefowicz et al. 2015), which opens
    the gate, so that memory lasts until the cell has learned what to forget. A bias of 0 would lose
    half of the memory at every step.
    """

    gates, states = 4, 2

    def new_input(self, d_in: int, rng: np.random.Generator, bias: bool = True) -> Linear:
        linear = super().new_input(d_in, rng, bias)
        if linear.bias is not None:
            linear.bias.data[self.size : 2 * self.size] = 1
        return linear

    def forward(self, a: Array, state: Array) -> Array:
        new, gates, tanh_c = lstm(a, state, self.weight.data)
        self.save(state=state, gates=gates, tanh_c=tanh_c)
        return new

    def backward(self, dnew: Array) -> Any:
        return self._add(*lstm_backward(dnew, weight=self.weight.data, **self.pop_saved()))


class GRUCell(Cell):
    """a (B, 3 H), state h (B, H) -> h' = (1 - z) n + z h: the gate z keeps or replaces h.

    With `inner_bias` the state's product with the weight has a bias (3 H,), too, which starts at 0:
    the reset gate multiplies the part of n.
    """

    gates = 3
    bias: Any  # a Parameter, or None without inner_bias

    def __init__(self, size: int, rng: np.random.Generator, inner_bias: bool = False):
        super().__init__(size, rng)
        self.bias = Parameter(np.zeros(3 * size)) if inner_bias else None

    def forward(self, a: Array, state: Array) -> Array:
        bias = self.bias and self.bias.data
        new, gates, product = gru(a, state, self.weight.data, bias)
        self.save(state=state, gates=gates, product=product)
        return new

    def backward(self, dnew: Array) -> Any:
        weights = dict(weight=self.weight.data, bias=self.bias and self.bias.data)
        *gradients, dbias = gru_backward(dnew, **weights, **self.pop_saved())
        if self.bias:
            self.bias.grad += dbias
        return self._add(*gradients)
