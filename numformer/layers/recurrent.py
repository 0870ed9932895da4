"""Recurrent cells and their loop over a padded batch: what the Transformer replaced.

A state goes from position to position, so that every step waits for the one before it (section 1).
Three cells: the simple one (Elman 1990), the LSTM (Hochreiter and Schmidhuber 1997, with the forget
gate of Gers et al. 2000) and the GRU (Cho et al. 2014). What a cell gets is `a` = x W + b, the
input's share, which the layer around it computes for all positions in one product.
"""

import numpy as np

from numformer.backend import array_module, matmul, rows
from numformer.errors import InputError
from numformer.layer import Layer, Parameter
from numformer.layers.linear import Linear


def tanh(x):
    """x (...) -> y (...): y = tanh(x)."""
    return array_module(x).tanh(x)


def tanh_backward(dy, y):
    """dy (...) -> dx (...): tanh' = 1 - tanh^2."""
    return dy * (1 - y * y)


class Tanh(Layer):
    """x (...) -> tanh(x) (...), between -1 and 1."""

    def forward(self, x):
        y = tanh(x)
        self.save(y=y)
        return y

    def backward(self, dy):
        return tanh_backward(dy, **self.pop_saved())


def gate(z):
    """z (...) -> 1 / (1 + exp(-z)), in place: how far a gate is open.

    Written as (1 + tanh(z / 2)) / 2, in which nothing overflows. Its derivative is g - g^2.
    """
    z *= 0.5
    array_module(z).tanh(z, out=z)
    z += 1
    z *= 0.5
    return z


def rnn(a, state, weight):
    """h' = tanh(a + h W)   (Elman 1990).

    a (B, H), state h (B, H), weight W (H, H) -> state h' (B, H).
    """
    new = matmul(state, weight)
    new += a
    return array_module(new).tanh(new, out=new)


def rnn_backward(dnew, weight, new):
    """dnew (B, H) -> da, dproduct, which is da itself, and dstate, each (B, H).

    dproduct is the gradient of h W; the weight's is h^T dproduct.
    """
    da = tanh_backward(dnew, new)
    return da, da, matmul(da, weight.T)


def lstm(a, state, weight):
    """i, f, o = gates of a + h W, g = tanh of it; c' = f c + i g; h' = o tanh(c').

    a (B, 4 H) in the order i, f, o, g; state (B, 2 H) = [h | c]; weight W (H, 4 H)
    -> state (B, 2 H) = [h' | c'], gates (B, 4 H), tanh_c = tanh(c') (B, H). What is remembered, c,
    passes through no weight and no tanh from step to step, so its gradient does not fade.
    """
    xp, size = array_module(a), len(weight)
    h, c = state[:, :size], state[:, size:]
    gates = matmul(h, weight)
    gates += a
    gate(gates[:, : 3 * size])
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
    """dnew (B, 2 H) -> da, dproduct, which is da itself, (B, 4 H), and dstate (B, 2 H).

    dproduct is the gradient of h W; the weight's is h^T dproduct.
    """
    xp, size = array_module(dnew), len(weight)
    i, f, o, g = _parts(gates, size)
    dh, c = dnew[:, :size], state[:, size:]
    dc = tanh_backward(dh * o, tanh_c)  # h' = o tanh(c')
    dc += dnew[:, size:]
    da = gates * gates
    gated, of_g = da[:, : 3 * size], da[:, 3 * size :]
    xp.subtract(gates[:, : 3 * size], gated, out=gated)  # a gate's derivative is g - g^2
    xp.subtract(1, of_g, out=of_g)
    di, df, do, dg = _parts(da, size)
    di *= dc * g  # c' = f c + i g
    df *= dc * c
    do *= dh * tanh_c  # h' = o tanh(c')
    dg *= dc * i
    dstate = xp.empty_like(dnew)
    dstate[:, :size] = matmul(da, weight.T)
    xp.multiply(dc, f, out=dstate[:, size:])
    return da, da, dstate


def gru(a, state, weight):
    """r, z = gates of a + h W; n = tanh(a + r (h W)); h' = (1 - z) n + z h.

    a (B, 3 H) in the order r, z, n; state h (B, H); weight W (H, 3 H) -> state h' (B, H),
    gates (B, 3 H), product (B, H), that of h and n's part of W. The reset gate r works after the
    product, as in the first version of Cho et al. 2014 (arXiv 1406.1078v1), in cuDNN and in
    PyTorch: so one product serves all three. Their later versions have tanh(a + (r h) W).
    """
    xp, size = array_module(a), len(weight)
    products = matmul(state, weight)
    product = products[:, 2 * size :].copy()
    gates = products
    gated, n = gates[:, : 2 * size], gates[:, 2 * size :]
    gated += a[:, : 2 * size]
    gate(gated)
    n *= gates[:, :size]
    n += a[:, 2 * size :]
    xp.tanh(n, out=n)
    new = state - n
    new *= gates[:, size : 2 * size]
    new += n  # n + z (h - n)
    return new, gates, product


def gru_backward(dnew, state, weight, gates, product):
    """dnew (B, H) -> da, dproducts (B, 3 H) and dstate (B, H).

    dproducts is the gradient of h W; the weight's is h^T dproducts.
    """
    size = len(weight)
    r, z, n = _parts(gates, size)
    da = gates * gates
    gated, of_n = da[:, : 2 * size], da[:, 2 * size :]
    array_module(da).subtract(gates[:, : 2 * size], gated, out=gated)
    array_module(da).subtract(1, of_n, out=of_n)
    dr, dz, dn = _parts(da, size)
    dstate = dnew * z  # h' = n + z (h - n)
    dn *= dnew - dstate
    dz *= dnew * (state - n)
    dr *= dn * product  # n = tanh(a + r product)
    dproducts = da.copy()
    dproducts[:, 2 * size :] *= r
    dstate += matmul(dproducts, weight.T)
    return da, dproducts, dstate


def _parts(x, size: int) -> list:
    """x (B, N size) -> N views (B, size)."""
    return [x[:, start : start + size] for start in range(0, x.shape[1], size)]


class Cell(Layer):
    """One step of a recurrence: a (B, gates H), state (B, states H) -> the next state.

    A state begins with h (B, H), which is what others see of it. The weight (H, gates H) of h
    begins as one orthogonal matrix for each gate (Saxe et al. 2014): a product with it makes no
    state longer or shorter, however many steps follow each other. There is no bias, for the
    input's share has one.
    """

    gates = states = 1

    def __init__(self, size: int, rng: np.random.Generator):
        self.size = size
        normal = rng.standard_normal((self.gates, size, size))
        self.weight = Parameter(np.concatenate([np.linalg.qr(each)[0] for each in normal], axis=1))

    def input(self, d_in: int, rng: np.random.Generator, bias: bool = True) -> Linear:
        """The layer of the input's share, x (..., d_in) -> a (..., gates H)."""
        return Linear(d_in, self.gates * self.size, rng, bias)

    def start(self, batch: int, like, h=None):
        """The state (batch, states H) before the first step: h (batch, H), or 0; all else 0."""
        state = array_module(like).zeros((batch, self.states * self.size), like.dtype)
        if h is not None:
            state[:, : self.size] = h
        return state

    def backward(self, dnew):
        """dnew (B, states H) -> da (B, gates H), dstate (B, states H)."""
        state, da, dproduct, dstate = self.step_back(dnew)
        self.weight.grad += state[:, : self.size].T @ dproduct  # product = h W
        return da, dstate


class RNNCell(Cell):
    """a (B, H), state h (B, H) -> h' = tanh(a + h W)."""

    def forward(self, a, state):
        new = rnn(a, state, self.weight.data)
        self.save(state=state, new=new)
        return new

    def step_back(self, dnew):
        """dnew -> the state before, and what `rnn_backward` gives."""
        saved = self.pop_saved()
        return saved["state"], *rnn_backward(dnew, self.weight.data, saved["new"])


class LSTMCell(Cell):
    """a (B, 4 H), state [h | c] (B, 2 H) -> [h' | c']: a memory c that gates write and erase.

    The forget gate's bias begins at 1 (Gers et al. 2000; Jozefowicz et al. 2015): open, so that
    what is remembered lasts until training finds what to forget. With 0 half would be gone after
    every step.
    """

    gates, states = 4, 2

    def input(self, d_in: int, rng: np.random.Generator, bias: bool = True) -> Linear:
        made = super().input(d_in, rng, bias)
        if bias:
            made.bias.data[self.size : 2 * self.size] = 1
        return made

    def forward(self, a, state):
        new, gates, tanh_c = lstm(a, state, self.weight.data)
        self.save(state=state, gates=gates, tanh_c=tanh_c)
        return new

    def step_back(self, dnew):
        """dnew -> the state before, and what `lstm_backward` gives."""
        saved = self.pop_saved()
        return saved["state"], *lstm_backward(dnew, weight=self.weight.data, **saved)


class GRUCell(Cell):
    """a (B, 3 H), state h (B, H) -> h' = (1 - z) n + z h: a state that a gate z keeps."""

    gates = 3

    def forward(self, a, state):
        new, gates, product = gru(a, state, self.weight.data)
        self.save(state=state, gates=gates, product=product)
        return new

    def step_back(self, dnew):
        """dnew -> the state before, and what `gru_backward` gives."""
        saved = self.pop_saved()
        return saved["state"], *gru_backward(dnew, weight=self.weight.data, **saved)


class Steps:
    """The order in which a loop takes the positions of a padded batch (B, T).

    Step after step it takes one position of every sequence that is long enough. With the longest
    sequence first, in this `order` (B,), those at work are the first rows of the batch, so padding
    is never computed. `loop` has for each step the position, how many are at work and their rows
    among the N real positions, which lie in the order of the loop; `places` (N,) are their indices
    among the B T of the batch, `sequences` (N,) those of their sequences in `order`, and `back`
    undoes the order.

    `lengths` (B,) is a host array, T for all unless given. With `backwards` the loop begins at the
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
        order = np.argsort(-lengths, kind="stable")
        counts = np.count_nonzero(lengths > np.arange(longest)[:, None], axis=1)
        positions = np.arange(longest)[:: -1 if backwards else 1]
        ends = np.cumsum(counts[positions]).tolist()
        starts = [0, *ends[:-1]]
        at_work = map(slice, starts, ends)
        self.loop = [*zip(positions.tolist(), counts[positions].tolist(), at_work, strict=True)]
        sequences = np.concatenate([np.arange(counts[t]) for t in positions])
        self.host_places = order[sequences] * longest + positions.repeat(counts[positions])
        self.places, self.order = xp.asarray(self.host_places), xp.asarray(order)
        self.sequences, self.back = xp.asarray(sequences), xp.asarray(np.argsort(order))


class Recurrent(Layer):
    """x (B, T, D) -> h (B, T, H): a cell goes from position to position with its state.

    `lengths` (B,), a host array, says how many positions of each sequence are real; at the padding
    after them the state is kept, so h[:, -1] is the last one of every sequence. With `backwards`
    the cell goes from the last real position to the first, and h[:, 0] is its last state. `start`
    (B, H) is h before the first step, 0 unless given. Where `d_context` is set, `context`
    (B, d_context) goes into every step beside x. `backward` returns dx, and dstart and dcontext
    where forward got them.
    """

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

    def forward(self, x, lengths=None, start=None, context=None):
        xp, (batch, longest, _) = array_module(x), x.shape
        steps = Steps(batch, longest, lengths, xp, self.backwards)
        a = self.input.forward(rows(x).take(steps.places, axis=0))
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
        """The context's share (B, gates H) of every step."""
        return [self.context.forward(context)]

    def step(self, x, state, share):
        """x (B, D) -> the state after one more position, its h (B, H)."""
        state = self.cell.forward(self.input.forward(x) + share, state)
        return state, state[:, : self.cell.size]

    def backward(self, dh):
        """Backward through time is the loop reversed, and there is no more to it.

        Each step of the loop was a forward of the one cell, which saved a record on its stack. The
        loop reversed meets the records in reverse order, the latest first, as the stack gives them;
        and each adds to the gradient of the one weight.
        """
        steps, (started, with_context) = self.pop_saved().values()
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
