"""Twenty layers composed from the library's layers and plain NumPy, and mistakes in their backward.

Each backward here is right. MISTAKES has mistakes that students make in them, and says what a
perfect diagnosis of each mistake would name. `python -m tests.gradient_check.composed_layers`
prints what the gradient check says of each mistake.
"""

import inspect
import linecache
import sys
import types
from dataclasses import dataclass

import numpy as np

import numformer as nf
from numformer.errors import InputError
from numformer.gradient_check import check

B, T, D, TAPS = 2, 4, 6, 3
CAUSAL = np.tril(np.ones((T, T), bool))


def weight(*shape):
    return lambda rng: nf.Parameter(rng.normal(0.2, 0.6, shape))


def plain(layer, *settings):
    return lambda rng: layer(*settings)


def drawn(layer, *settings):
    return lambda rng: layer(*settings, rng)


def dense(rng, d_out=D):
    linear = nf.Linear(D, d_out, rng)
    linear.bias.data[...] = rng.normal(0, 0.3, d_out)
    return linear


class Composed(nf.Layer):
    """A layer whose parts are keywords of its class: class Gate(Composed, gate=dense)."""

    def __init_subclass__(cls, **parts):
        cls.parts = parts

    def __init__(self):
        rng = np.random.default_rng(5)
        for name, make in self.parts.items():
            setattr(self, name, make(rng))


class TanhLinear(Composed, linear=dense):
    """y = tanh(x W + b)."""

    def forward(self, x):
        z = self.linear.forward(x)
        y = np.tanh(z)
        self.save(z=z, y=y)
        return y

    def backward(self, dy):
        y = self.pop_saved()["y"]
        dz = dy * (1 - y**2)
        return self.linear.backward(dz)


class GatedLinear(Composed, value=dense, gate=dense):
    """y = (x V) sigmoid(x W)."""

    def forward(self, x):
        value = self.value.forward(x)
        gate = 1 / (1 + np.exp(-self.gate.forward(x)))
        self.save(value=value, gate=gate)
        return value * gate

    def backward(self, dy):
        value, gate = self.pop_saved().values()
        dvalue = dy * gate
        dgate = dy * value * gate * (1 - gate)
        return self.value.backward(dvalue) + self.gate.backward(dgate)


class SwishGate(Composed, up=dense, gate=dense, dropout=plain(nf.Dropout, 0.3), down=dense):
    """y = (x V * dropout(z sigmoid(z))) W_2, z = x W."""

    def forward(self, x):
        up, z = self.up.forward(x), self.gate.forward(x)
        s = 1 / (1 + np.exp(-z))
        gate = self.dropout.forward(z * s)
        self.save(up=up, z=z, s=s, gate=gate)
        return self.down.forward(up * gate)

    def backward(self, dy):
        up, z, s, gate = self.pop_saved().values()
        dh = self.down.backward(dy)
        dgate = self.dropout.backward(dh * up)
        dz = dgate * (s + z * s * (1 - s))
        return self.up.backward(dh * gate) + self.gate.backward(dz)


class GatedCell(Composed, update=drawn(nf.Linear, 2 * D, D), candidate=drawn(nf.Linear, 2 * D, D)):
    """h_t = (1 - z) h_{t-1} + z c, z = sigmoid([x_t, h_{t-1}] W), c = tanh([x_t, h_{t-1}] V)."""

    def forward(self, x):
        h, ys = np.zeros_like(x[:, 0]), []
        for t in range(x.shape[1]):
            both = np.concatenate([x[:, t], h], axis=-1)
            z = 1 / (1 + np.exp(-self.update.forward(both)))
            c = np.tanh(self.candidate.forward(both))
            self.save(h=h, z=z, c=c)
            h = (1 - z) * h + z * c
            ys.append(h)
        return np.stack(ys, axis=1)

    def backward(self, dy):
        dx, dh = np.zeros_like(dy), np.zeros_like(dy[:, 0])
        for t in reversed(range(dy.shape[1])):
            h, z, c = self.pop_saved().values()
            dh = dh + dy[:, t]
            dz = dh * (c - h) * z * (1 - z)
            dc = dh * z * (1 - c**2)
            dboth = self.candidate.backward(dc) + self.update.backward(dz)
            dx[:, t] = dboth[:, :D]
            dh = dh * (1 - z) + dboth[:, D:]
        return dx


class Highway(Composed, linear=dense, relu=plain(nf.ReLU), gate=dense):
    """y = g relu(x W) + (1 - g) x, g = sigmoid(x V)."""

    def forward(self, x):
        h = self.relu.forward(self.linear.forward(x))
        g = 1 / (1 + np.exp(-self.gate.forward(x)))
        self.save(x=x, h=h, g=g)
        return g * h + (1 - g) * x

    def backward(self, dy):
        x, h, g = self.pop_saved().values()
        dx = dy * (1 - g)
        dx += self.linear.backward(self.relu.backward(dy * g))
        dg = dy * (h - x)
        dx += self.gate.backward(dg * g * (1 - g))
        return dx


class GatedResidual(Composed, attention=drawn(nf.MultiHeadAttention, D, 2), gate=dense):
    """y = x + g MultiHead(x, x), g = sigmoid(x W)."""

    def forward(self, x):
        a = self.attention.forward(x, x)
        g = 1 / (1 + np.exp(-self.gate.forward(x)))
        self.save(x=x, a=a, g=g)
        return x + g * a

    def backward(self, dy):
        saved = self.pop_saved()
        g = saved["g"]
        dquery, dmemory = self.attention.backward(dy * g)
        dg = dy * saved["a"]
        dz = dg * g * (1 - g)
        return dy + dquery + dmemory + self.gate.backward(dz)


class Branches(Composed, alpha=weight(), inner=dense, gelu=plain(nf.GELU), outer=dense, side=dense):
    """y = x + alpha GELU(x W_1) W_2 + tanh(x V)."""

    def forward(self, x):
        branch = self.outer.forward(self.gelu.forward(self.inner.forward(x)))
        side = np.tanh(self.side.forward(x))
        self.save(branch=branch, side=side)
        return x + self.alpha.data * branch + side

    def backward(self, dy):
        branch, side = self.pop_saved().values()
        self.alpha.grad += (dy * branch).sum()
        dbranch = self.alpha.data * dy
        dx = self.inner.backward(self.gelu.backward(self.outer.backward(dbranch)))
        dside = self.side.backward(dy * (1 - side**2))
        return dy + dx + dside


class DepthwiseConvolution(Composed, w=weight(TAPS, D), b=weight(D)):
    """y_t = sum_k w_k x_{t-k} + b, causal, one filter for each feature."""

    def forward(self, x):
        y = np.zeros_like(x)
        for k in range(TAPS):
            y[:, k:] += self.w.data[k] * x[:, : T - k]
        self.save(x=x)
        return y + self.b.data

    def backward(self, dy):
        x = self.pop_saved()["x"]
        dx = np.zeros_like(x)
        self.b.grad += dy.sum(axis=(0, 1))
        for k in range(TAPS):
            self.w.grad[k] += (dy[:, k:] * x[:, : T - k]).sum(axis=(0, 1))
            dx[:, : T - k] += self.w.data[k] * dy[:, k:]
        return dx


class Polynomial(Composed, w=weight(2)):
    """y = w_0 x + w_1 x^2."""

    def forward(self, x):
        self.save(x=x)
        return self.w.data[0] * x + self.w.data[1] * x * x

    def backward(self, dy):
        x = self.pop_saved()["x"]
        self.w.grad[0] += (dy * x).sum()
        self.w.grad[1] += (dy * x * x).sum()
        return dy * (self.w.data[0] + 2 * self.w.data[1] * x)


class SqueezeExcite(Composed, gate=dense):
    """y = x sigmoid(mean_t(x) W)."""

    def forward(self, x):
        mean = x.mean(axis=1)
        g = 1 / (1 + np.exp(-self.gate.forward(mean)))
        self.save(x=x, g=g)
        return x * g[:, None]

    def backward(self, dy):
        x, g = self.pop_saved().values()
        dg = (dy * x).sum(axis=1)
        dmean = self.gate.backward(dg * g * (1 - g))
        return dy * g[:, None] + dmean[:, None] / x.shape[1]


class BiasedAttention(
    Composed, query=dense, key=dense, value=dense, bias=weight(T, T), softmax=plain(nf.Softmax)
):
    """y = softmax(q k^T / sqrt(D) + bias) v, causal."""

    def forward(self, x):
        q, k, v = self.query.forward(x), self.key.forward(x), self.value.forward(x)
        scores = q @ k.swapaxes(1, 2) / np.sqrt(D) + self.bias.data
        weights = self.softmax.forward(scores, CAUSAL)
        self.save(q=q, k=k, v=v, weights=weights)
        return weights @ v

    def backward(self, dy):
        q, k, v, weights = self.pop_saved().values()
        dscores = self.softmax.backward(dy @ v.swapaxes(1, 2))
        self.bias.grad += dscores.sum(axis=0)
        dproduct = dscores / np.sqrt(D)
        dx = self.query.backward(dproduct @ k)
        dx += self.key.backward(dproduct.swapaxes(1, 2) @ q)
        dx += self.value.backward(weights.swapaxes(1, 2) @ dy)
        return dx


class AttentionPooling(Composed, query=weight(D)):
    """y = sum_t a_t x_t, a = softmax_t(x_t q)."""

    def forward(self, x):
        scores = x @ self.query.data
        e = np.exp(scores - scores.max(axis=1, keepdims=True))
        a = e / e.sum(axis=1, keepdims=True)
        self.save(x=x, a=a)
        return np.einsum("bt,btd->bd", a, x)

    def backward(self, dy):
        x, a = self.pop_saved().values()
        da = np.einsum("bd,btd->bt", dy, x)
        dscores = a * (da - (a * da).sum(axis=1, keepdims=True))
        self.query.grad += np.einsum("bt,btd->d", dscores, x)
        return a[:, :, None] * dy[:, None] + dscores[:, :, None] * self.query.data


class TwoExperts(
    Composed,
    router=lambda rng: dense(rng, 2),
    tau=plain(nf.Parameter, 1.4),
    softmax=plain(nf.Softmax),
    first=dense,
    second=dense,
):
    """y = w_0 (x A) + w_1 tanh(x C), w = softmax(x R / tau)."""

    def forward(self, x):
        r = self.router.forward(x)
        w = self.softmax.forward(r / self.tau.data)
        a = self.first.forward(x)
        c = np.tanh(self.second.forward(x))
        self.save(r=r, w=w, a=a, c=c)
        return w[..., :1] * a + w[..., 1:] * c

    def backward(self, dy):
        r, w, a, c = self.pop_saved().values()
        dw = np.stack([(dy * a).sum(axis=-1), (dy * c).sum(axis=-1)], axis=-1)
        ds = self.softmax.backward(dw)
        self.tau.grad -= (ds * r).sum() / self.tau.data**2
        dx = self.router.backward(ds / self.tau.data)
        dx += self.first.backward(dy * w[..., :1])
        dx += self.second.backward(dy * w[..., 1:] * (1 - c**2))
        return dx


class NormAroundNorm(
    Composed, gain=weight(D), network=drawn(nf.FeedForward, D, D), norm=plain(nf.LayerNorm, D)
):
    """y = LayerNorm(x + FFN(gain x_hat)), x_hat = x / rms(x)."""

    def forward(self, x):
        rms = np.sqrt((x**2).mean(axis=-1, keepdims=True) + 1e-5)
        x_hat = x / rms
        self.save(x=x, x_hat=x_hat, rms=rms)
        h = self.network.forward(self.gain.data * x_hat)
        return self.norm.forward(x + h)

    def backward(self, dy):
        saved = self.pop_saved()
        x_hat, rms = saved["x_hat"], saved["rms"]
        dsum = self.norm.backward(dy)
        dscaled = self.network.backward(dsum)
        self.gain.grad += (dscaled * x_hat).sum(axis=(0, 1))
        dx_hat = dscaled * self.gain.data
        along = (dx_hat * x_hat).mean(axis=-1, keepdims=True)
        return dsum + (dx_hat - x_hat * along) / rms


class TiedAutoencoder(Composed, w=weight(D, D)):
    """y = tanh(x W) W^T."""

    def forward(self, x):
        h = np.tanh(x @ self.w.data)
        self.save(x=x, h=h)
        return h @ self.w.data.T

    def backward(self, dy):
        x, h = self.pop_saved().values()
        dh = dy @ self.w.data
        dz = dh * (1 - h**2)
        self.w.grad += np.einsum("bti,btj->ij", x, dz)
        self.w.grad += np.einsum("bti,btj->ij", dy, h)
        return dz @ self.w.data.T


class TokenMaxPooling(
    Composed, embedding=drawn(nf.Embedding, 5, D), positions=weight(T, D), linear=dense
):
    """ids (B, T) -> y = max_t((embedding[id] + P) W)."""

    def forward(self, ids):
        x = self.embedding.forward(ids) + self.positions.data
        h = self.linear.forward(x)
        self.save(h=h)
        return h.max(axis=1)

    def backward(self, dy):
        h = self.pop_saved()["h"]
        chosen = h == h.max(axis=1, keepdims=True)
        dh = dy[:, None] * chosen
        dx = self.linear.backward(dh)
        self.positions.grad += dx.sum(axis=0)
        self.embedding.backward(dx)


class CosineScores(Composed, scale=weight()):
    """y = scale u v^T, u = a / |a|, v = b / |b|."""

    def forward(self, a, b):
        na = np.sqrt((a**2).sum(axis=-1, keepdims=True))
        nb = np.sqrt((b**2).sum(axis=-1, keepdims=True))
        u, v = a / na, b / nb
        cosine = u @ v.swapaxes(1, 2)
        self.save(na=na, nb=nb, u=u, v=v, cosine=cosine)
        return self.scale.data * cosine

    def backward(self, dy):
        na, nb, u, v, cosine = self.pop_saved().values()
        self.scale.grad += (dy * cosine).sum()
        dcosine = self.scale.data * dy
        du = dcosine @ v
        dv = dcosine.swapaxes(1, 2) @ u
        da = (du - u * (u * du).sum(axis=-1, keepdims=True)) / na
        db = (dv - v * (v * dv).sum(axis=-1, keepdims=True)) / nb
        return da, db


class AdditiveAttention(Composed, query=dense, key=dense, v=weight(D), softmax=plain(nf.Softmax)):
    """y = softmax(tanh(x_t W + m_s U) v) m."""

    def forward(self, x, memory):
        q, k = self.query.forward(x), self.key.forward(memory)
        h = np.tanh(q[:, :, None] + k[:, None])
        weights = self.softmax.forward(h @ self.v.data)
        self.save(memory=memory, h=h, weights=weights)
        return weights @ memory

    def backward(self, dy):
        memory, h, weights = self.pop_saved().values()
        dscores = self.softmax.backward(dy @ memory.swapaxes(1, 2))
        self.v.grad += np.einsum("bts,btsd->d", dscores, h)
        dz = dscores[..., None] * self.v.data * (1 - h**2)
        dx = self.query.backward(dz.sum(axis=2))
        dmemory = self.key.backward(dz.sum(axis=1))
        return dx, dmemory + weights.swapaxes(1, 2) @ dy


class Bilinear(Composed, w=weight(D, D, 2)):
    """y_k = sum_ij x_i w_ijk z_j at each position."""

    def forward(self, x, z):
        self.save(x=x, z=z)
        return np.einsum("bti,ijk,btj->btk", x, self.w.data, z)

    def backward(self, dy):
        x, z = self.pop_saved().values()
        self.w.grad += np.einsum("bti,btj,btk->ijk", x, z, dy)
        dx = np.einsum("btk,ijk,btj->bti", dy, self.w.data, z)
        dz = np.einsum("btk,ijk,bti->btj", dy, self.w.data, x)
        return dx, dz


class SquaredError(Composed, inner=dense, outer=dense):
    """loss = mean((tanh(x W_1) W_2 - target)^2)."""

    def forward(self, x, target):
        h = np.tanh(self.inner.forward(x))
        error = self.outer.forward(h) - target
        self.save(h=h, error=error)
        return (error**2).mean()

    def backward(self, dloss=1.0):
        h, error = self.pop_saved().values()
        derror = dloss * 2 * error / error.size
        dh = self.outer.backward(derror)
        dz = dh * (1 - h**2)
        return self.inner.backward(dz), -derror


X, Z = np.random.default_rng(1).standard_normal((2, B, T, D))
IDS = np.array([[0, 3, 1, 3], [2, 2, 4, 0], [1, 0, 3, 2]])
INPUTS = {layer: [X] for layer in Composed.__subclasses__()}
INPUTS[TokenMaxPooling] = [IDS]
for two_inputs in (CosineScores, AdditiveAttention, Bilinear, SquaredError):
    INPUTS[two_inputs] = [X, Z]


@dataclass(frozen=True)
class Mistake:
    """`right`, in the backward of `layer`, becomes `wrong` ("" is pass).

    A perfect diagnosis names a `place`: part of a line of forward, or the name of a sublayer, a
    parameter or an argument.
    """

    layer: type[Composed]
    right: str
    wrong: str
    place: tuple[str, ...]
    cause: str

    @property
    def name(self):
        return f"{self.layer.__name__}: {self.right} => {self.wrong or 'pass'}"

    def broken(self):
        """Return the layer, compiled from the changed source in a module of its own."""
        forward, backward = inspect.getsource(self.layer).split("    def backward")
        assert backward.count(self.right) == 1, self.name
        source = forward + "    def backward" + backward.replace(self.right, self.wrong or "pass")
        file = f"<{self.name}>"
        linecache.cache[file] = len(source), None, source.splitlines(keepends=True), file
        module = sys.modules[file] = types.ModuleType(file)
        vars(module).update({**globals(), "__name__": file, "__file__": file})
        exec(compile(source, file, "exec"), vars(module))
        return vars(module)[self.layer.__name__]()


def mistakes_in(table):
    """Each mistake takes two lines: `right => wrong`, and `cause | place | place ...`."""
    lines = iter(table.strip().splitlines())
    for line in lines:
        if not line.startswith(" "):
            layer = globals()[line]
            continue
        right, wrong = line.strip().split(" => ")
        cause, *place = next(lines).strip().split(" | ")
        yield Mistake(layer, right, wrong, tuple(place), cause)


TABLE = """
TanhLinear
  dy * (1 - y**2) => dy
      The slope of tanh is left out. | np.tanh(z)
  (1 - y**2) => (1 - y)
      The slope of tanh is 1 - y^2, not 1 - y. | np.tanh(z)
  (1 - y**2) => y * (1 - y)
      This is the slope of the sigmoid, not of tanh. | np.tanh(z)
  self.pop_saved()["y"] => self.pop_saved()["z"]
      The slope is computed from the value before tanh instead of after it. | np.tanh(z)
  return self.linear.backward(dz) => return self.linear.backward(dy)
      The linear layer receives dy instead of the gradient at its output. | np.tanh(z) | linear
  return self.linear.backward(dz) => self.linear.backward(dz); return dz
      What the linear layer's backward returns is dropped. | self.linear.forward(x) | linear
GatedLinear
  dgate = dy * value * gate * (1 - gate) => dgate = dy * gate * (1 - gate)
      The factor value is left out of the gate's gradient. | value * gate | gate
  dgate = dy * value * gate * (1 - gate) => dgate = dy * value
      The slope of the sigmoid is left out. | np.exp(-self.gate.forward(x)) | gate
  dvalue = dy * gate => dvalue = dy
      The gate is left out of the value's gradient. | value * gate | value
  self.value.backward(dvalue) + self.gate.backward(dgate) => self.value.backward(dvalue)
      The gate's branch is forgotten. | np.exp(-self.gate.forward(x)) | gate
  dvalue) + self.gate.backward(dgate) => dgate) + self.gate.backward(dvalue)
      The gradients of value and gate are swapped. | value * gate | value | gate
SwishGate
  (s + z * s * (1 - s)) => s * (1 - s)
      This is the slope of the sigmoid, not of z sigmoid(z). | z * s | gate
  (s + z * s * (1 - s)) => s
      The sigmoid is treated as a constant. | z * s | np.exp(-z) | gate
  self.dropout.backward(dh * up) => dh * up
      Dropout's mask is left out of the gradient. | self.dropout.forward(z * s) | dropout
  self.up.backward(dh * gate) => self.up.backward(dh * z * s)
      The gate before dropout is used instead of the gate after it. | up * gate | up
  self.up.backward(dh * gate) => self.up.backward(dy * gate)
      The gradient skips the backward of down: dy is used instead of dh. | up * gate | down | up
GatedCell
  dh * (c - h) * z => dh * c * z
      The update gate also scales the old state; that branch is forgotten. | (1 - z) * h | update
  dh = dh + dy[:, t] => dh = dy[:, t]
      The gradient from later steps is overwritten. | (1 - z) * h + z * c | ys.append(h)
  dh = dh * (1 - z) + dboth[:, D:] => dh = dboth[:, D:]
      The direct path from the old state to the new one is forgotten. | (1 - z) * h
  dh = dh * (1 - z) + dboth[:, D:] => dh = dh * (1 - z)
      The old state also enters the gates; that path is forgotten. | np.concatenate([x[:, t], h]
  dh * z * (1 - c**2) => dh * (1 - z) * (1 - c**2)
      The candidate is multiplied by z, not by 1 - z. | z * c | candidate
  reversed(range(dy.shape[1])) => reversed(range(1, dy.shape[1]))
      The loop over time ends one early. | np.concatenate([x[:, t], h] | candidate
Highway
  dy * (h - x) => dy * h
      The gate also scales the carried x; that branch is forgotten. | (1 - g) * x | gate
  dy * (h - x) => dy * (x - h)
      The gate's gradient has the wrong sign. | g * h + (1 - g) * x | gate
  dx = dy * (1 - g) => dx = dy * g
      The carried x is multiplied by 1 - g, not by g. | (1 - g) * x
  self.relu.backward(dy * g) => dy * g
      The backward of ReLU is skipped. | self.relu.forward(self.linear.forward(x)) | relu
  dx += self.gate.backward => dx = self.gate.backward
      The gate's part of dx overwrites the others. | (1 - g) * x | self.linear.forward(x)
GatedResidual
  dy + dquery + dmemory => dy + dquery
      The gradient of the memory, also x, is dropped. | self.attention.forward(x, x) | attention
  dy + dquery + dmemory => dquery + dmemory
      The skip connection's gradient is missing. | x + g * a
  self.attention.backward(dy * g) => self.attention.backward(dy)
      The gate is left out of attention's gradient. | g * a | attention
  saved["a"] => saved["x"]
      The gate multiplies attention's output a, not x. | g * a | gate
  dg * g * (1 - g) => dg * (1 - g**2)
      This is the slope of tanh, not of the sigmoid. | np.exp(-self.gate.forward(x)) | gate
Branches
  (dy * branch).sum() => (dy * branch).mean()
      The gradient of alpha is a mean instead of a sum. | self.alpha.data * branch | alpha
  dbranch = self.alpha.data * dy => dbranch = dy
      The factor alpha is left out of the branch's gradient. | self.alpha.data * branch | outer
  self.gelu.backward(self.outer.backward => self.outer.backward(self.gelu.backward
      The backwards of GELU and outer come in the wrong order. | self.gelu.forward | gelu | outer
  return dy + dx + dside => return dx + dside
      The skip connection's gradient is missing. | x + self.alpha.data * branch
  return dy + dx + dside => return dy + dx
      What the side branch's backward returns is dropped. | np.tanh(self.side.forward(x)) | side
DepthwiseConvolution
  self.w.data[k] * dy[:, k:] => self.w.data[-1 - k] * dy[:, k:]
      The filter is flipped. | self.w.data[k] * x[:, : T - k]
  range(TAPS) => range(TAPS - 1)
      The last tap is forgotten: the loop ends one early. | range(TAPS) | self.w.data[k] * x | w
  range(TAPS) => range(1, TAPS)
      The first tap is forgotten. | range(TAPS) | self.w.data[k] * x | w
  self.w.grad[k] += (dy => self.w.grad[k] = (dy
      The gradient of w is overwritten, not added to. | self.w.data[k] * x | w
  (dy[:, k:] * x[:, : T - k]).sum(axis=(0, 1)) => (dy[0, k:] * x[0, : T - k]).sum(axis=0)
      Only the first sequence of the batch is summed. | self.w.data[k] * x | w
  dx[:, : T - k] += self.w.data[k] * dy[:, k:] => dx[:, k:] += self.w.data[k] * dy[:, : T - k]
      The gradient is shifted to later positions instead of earlier ones. | self.w.data[k] * x
  dx[:, : T - k] += self => dx[:, : T - k] = self
      Each tap overwrites the gradient of the tap before. | self.w.data[k] * x
  dy.sum(axis=(0, 1)) => dy.mean(axis=(0, 1))
      The gradient of b is a mean instead of a sum. | y + self.b.data | b
Polynomial
  self.w.grad[1] += (dy * x * x).sum() => pass
      The gradient of w[1] is never added. | self.w.data[1] * x * x | w
  self.w.grad[1] += => self.w.grad[0] +=
      The gradient of w[1] is added to w[0]. | self.w.data[1] * x * x | w
  2 * self.w.data[1] * x => self.w.data[1] * x
      The factor 2 of the slope of x^2 is left out. | self.w.data[1] * x * x
  (self.w.data[0] + 2 * self.w.data[1] * x) => self.w.data[0]
      The gradient of the square term is forgotten. | self.w.data[1] * x * x
SqueezeExcite
  + dmean[:, None] / x.shape[1] => + dmean[:, None]
      The factor 1 / T of the mean is left out. | x.mean(axis=1) | `mean`
  + dmean[:, None] / x.shape[1] => + 0 * dmean[:, None]
      The mean is treated as a constant. | x.mean(axis=1) | `mean`
  dmean[:, None] / x.shape[1] => dmean[:, None] / len(x)
      The gradient is divided by the batch's size instead of the length. | x.mean(axis=1) | `mean`
  (dy * x).sum(axis=1) => (dy * x).mean(axis=1)
      The gate's gradient is a mean over time instead of a sum. | x * g[:, None] | gate
  (dy * x).sum(axis=1) => (dy * x)[:, -1]
      Only the last position adds to the gate's gradient. | x * g[:, None] | gate
  dg * g * (1 - g) => dg * (1 - g)
      The slope of the sigmoid is g (1 - g); the factor g is left out. | np.exp(-self.gate | gate
BiasedAttention
  dscores / np.sqrt(D) => dscores
      The factor 1 / sqrt(D) is left out. | / np.sqrt(D) | query | key
  self.bias.grad += dscores.sum(axis=0) => self.bias.grad += dscores[0]
      Only the first sequence of the batch adds to the bias. | self.bias.data | bias
  dproduct.swapaxes(1, 2) @ q => dproduct @ q
      The scores' gradient is not transposed for the keys. | q @ k.swapaxes(1, 2) | key
  weights.swapaxes(1, 2) @ dy => weights @ dy
      The attention weights are not transposed for the values. | weights @ v | value
  dx += self.key.backward => self.key.backward
      What the key's backward returns is dropped. | self.key.forward(x) | key
  self.softmax.backward(dy @ v.swapaxes(1, 2)) => dy @ v.swapaxes(1, 2)
      The backward of softmax is skipped, and with it the mask. | self.softmax.forward | softmax
AttentionPooling
  (da - (a * da).sum(axis=1, keepdims=True)) => da * (1 - a)
      Only the diagonal of softmax's Jacobian is used. | e / e.sum(axis=1, keepdims=True)
  (da - (a * da).sum(axis=1, keepdims=True)) => da
      The normaliser is treated as a constant. | e / e.sum(axis=1, keepdims=True)
  (a * da).sum(axis=1, keepdims=True) => (a * da).sum(axis=0, keepdims=True)
      Softmax's backward sums over the batch instead of time. | e / e.sum(axis=1, keepdims=True)
  np.einsum("bt,btd->d", dscores, x) => dscores[0] @ x[0]
      Only the first sequence adds to the query's gradient. | x @ self.query.data | query
  dy[:, None] + dscores[:, :, None] * self.query.data => dy[:, None]
      x also enters the scores; that path is forgotten. | x @ self.query.data
  return a[:, :, None] * dy[:, None] + dscores => return dscores
      x is also what is averaged; that path is forgotten. | np.einsum("bt,btd->bd", a, x)
TwoExperts
  [(dy * a).sum(axis=-1), (dy * c).sum(axis=-1)] => [(dy * c).sum(axis=-1), (dy * a).sum(axis=-1)]
      The two weights' gradients are swapped. | w[..., :1] * a + w[..., 1:] * c | router | softmax
  self.softmax.backward(dw) => dw
      The backward of softmax is skipped. | self.softmax.forward(r / self.tau.data) | softmax
  self.tau.grad -= => self.tau.grad +=
      The gradient of tau has the wrong sign. | r / self.tau.data | tau
  self.tau.data**2 => self.tau.data
      The slope of 1 / tau is -1 / tau^2, not -1 / tau. | r / self.tau.data | tau
  self.router.backward(ds / self.tau.data) => self.router.backward(ds)
      The factor 1 / tau is left out. | r / self.tau.data | router
  dx += self.first.backward(dy * w[..., :1]) => dx += self.first.backward(dy)
      The first expert's weight is left out. | w[..., :1] * a | first
  dy * w[..., 1:] * (1 - c**2) => dy * w[..., 1:]
      The slope of tanh is left out. | np.tanh(self.second.forward(x)) | second
NormAroundNorm
  return dsum + (dx_hat => return dy + (dx_hat
      The skip connection passes dy, not the gradient at the sum. | self.norm.forward(x + h) | norm
  self.network.backward(dsum) => self.network.backward(dy)
      The network receives dy instead of dsum. | self.norm.forward(x + h) | norm | network
  (dscaled * x_hat).sum => (dscaled * saved["x"]).sum
      The gain's gradient uses x in place of x_hat. | self.gain.data * x_hat | gain
  (dx_hat - x_hat * along) / rms => dx_hat / rms
      The normaliser is treated as a constant. | x / rms | np.sqrt((x**2).mean
  (dx_hat - x_hat * along) / rms => (dx_hat - x_hat * along)
      The factor 1 / rms is left out. | x / rms
  .mean(axis=-1, keepdims=True) => .sum(axis=-1, keepdims=True)
      The norm has a mean over the features; its gradient has a sum. | np.sqrt((x**2).mean | `rms`
  dx_hat = dscaled * self.gain.data => dx_hat = dscaled
      The gain is left out of the gradient of x_hat. | self.gain.data * x_hat
TiedAutoencoder
  dh = dy @ self.w.data => dh = dy @ self.w.data.T
      W is transposed once too often: y = h W^T gives dh = dy W. | h @ self.w.data.T
  dz @ self.w.data.T => dz @ self.w.data
      W is not transposed. | x @ self.w.data
  self.w.grad += np.einsum("bti,btj->ij", dy, h) => pass
      The second use of the weight adds no gradient. | h @ self.w.data.T | w
  np.einsum("bti,btj->ij", dy, h) => np.einsum("bti,btj->ij", h, dy)
      The gradient of the second use is transposed. | h @ self.w.data.T | w
  np.einsum("bti,btj->ij", x, dz) => np.einsum("bti,btj->ij", h, dz)
      h is used in place of the input x. | x @ self.w.data | w
TokenMaxPooling
  dy[:, None] * chosen => dy[:, None] * np.ones_like(h)
      The gradient goes to all positions, not only to the highest. | h.max(axis=1)
  dy[:, None] * chosen => dy[:, None] * np.ones_like(h) / T
      This is the gradient of a mean over time, not of the maximum. | h.max(axis=1)
  h.max(axis=1, keepdims=True) => h.max(axis=2, keepdims=True)
      The maximum is taken over the features instead of time. | h.max(axis=1)
  dx.sum(axis=0) => dx[0]
      Only the first sequence adds to the positions. | self.positions.data | positions
  self.positions.grad += dx.sum(axis=0) => pass
      The gradient of the positions is never added. | self.positions.data | positions
  self.embedding.backward(dx) => self.embedding.backward(dh)
      The embedding receives dh: the linear layer is skipped. | self.linear.forward(x) | embedding
CosineScores
  (du - u * (u * du).sum(axis=-1, keepdims=True)) => du
      The length of a is treated as a constant. | a / na | np.sqrt((a**2) | a
  .sum(axis=-1, keepdims=True)) / nb => .sum(axis=-1, keepdims=True)) / na
      The gradient of b is divided by the length of a. | b / nb | b
  dcosine.swapaxes(1, 2) @ u => dcosine @ u
      The scores' gradient is not transposed. | u @ v.swapaxes(1, 2) | b
  return da, db => return db, da
      The gradients of the two inputs are returned in the wrong order. | a | b
  self.scale.data * dy => dy
      The scale is left out. | self.scale.data * cosine | `scale`
  dv - v * (v * dv) => dv + v * (v * dv)
      The part along v is added instead of subtracted. | b / nb | np.sqrt((b**2) | b
AdditiveAttention
  dz.sum(axis=2) => dz.sum(axis=1)
      The query's gradient is summed over the queries instead of the keys. | q[:, :, None] | query
  * (1 - h**2) => * (1 - h) ** 2
      The slope of tanh is 1 - h^2, not (1 - h)^2. | np.tanh(q[:, :, None] + k[:, None])
  self.v.data * (1 - h**2) => self.v.data
      The slope of tanh is left out. | np.tanh(q[:, :, None] + k[:, None])
  return dx, dmemory + weights.swapaxes(1, 2) @ dy => return dx, dmemory
      The memory is also the values; that path is forgotten. | weights @ memory | memory
  return dx, dmemory + weights => return dx, weights
      The memory is also the keys; that path is forgotten. | self.key.forward(memory) | memory | key
  np.einsum("bts,btsd->d", dscores, h) => np.einsum("ts,tsd->d", dscores[-1], h[-1])
      Only the last sequence adds to the gradient of v. | h @ self.v.data | v
Bilinear
  "btk,ijk,bti->btj", dy, self.w.data, x => "btk,jik,bti->btj", dy, self.w.data, x
      w is transposed in the gradient of z. | self.w.data, z | z
  "bti,btj,btk->ijk" => "bti,btj,btk->jik"
      The gradient of w is transposed. | self.w.data, z | w
  x, z, dy) => x[:, -1:], z[:, -1:], dy[:, -1:])
      Only the last position adds to the gradient of w. | self.w.data, z | w
  return dx, dz => return dz, dx
      The gradients of the two inputs are returned in the wrong order. | x | z
  self.w.data, z) => self.w.data, x)
      The gradient of x uses x in place of z. | self.w.data, z | x
SquaredError
  dloss * 2 * error / error.size => dloss * 2 * error / len(error)
      The gradient is divided by the batch's size, not by the number of values. | (error**2).mean()
  dloss * 2 * error => dloss * error
      The factor 2 of the slope of a square is left out. | (error**2).mean()
  dloss * 2 * error => 2 * error
      The gradient that backward receives is ignored. | (error**2).mean() | dloss
  -derror => derror
      The gradient of the target has the wrong sign. | self.outer.forward(h) - target | target
  dz = dh * (1 - h**2) => dz = derror * (1 - h**2)
      The gradient skips the backward of outer. | self.outer.forward(h) | outer
  dz = dh * (1 - h**2) => dz = dh * (1 - error**2)
      The slope of tanh is computed from the error instead of h. | np.tanh(self.inner | inner
"""
MISTAKES = [*mistakes_in(TABLE)]


def reports(mistake):
    """Return what the gradient check says of a layer with this mistake, by tensors."""
    try:
        rows = check(mistake.broken(), INPUTS[mistake.layer], directions=1, scales=())
    except InputError as problem:
        return {str(problem): ["refused"]}
    tensors = {}
    for row in rows:
        if not row.passed:
            tensors.setdefault(row.meaning, []).append(row.name)
    return tensors


def is_named(mistake, messages):
    """Whether a message with a known cause names a place of the mistake."""
    known = [message for message in messages if "No known pattern" not in message]
    return any(place in message for place in mistake.place for message in known)


def main():
    named = 0
    for mistake in MISTAKES:
        messages = reports(mistake)
        named += is_named(mistake, messages)
        print(f"{mistake.name}\n  {mistake.cause}")
        for message, tensors in messages.items():
            print(f"  {', '.join(tensors)}: {message}")
    print(f"{named} of {len(MISTAKES)} named with their line or sublayer")


if __name__ == "__main__":
    main()
