"""Linear attention (Katharopoulos et al. 2020): products of features in place of the softmax.

softmax(q k^T) becomes phi(q) phi(k)^T. Then (phi(q) phi(k)^T) v = phi(q) (phi(k)^T v), and all
queries share phi(k)^T v, a sum over keys, so there are no T x T scores, and decoding stores only
sums, whatever the length. The price is sharpness: K features cannot single out one position among
many.
"""

from typing import Any

import numpy as np

from numformer.arithmetic import dot_last, matmul, transpose
from numformer.backend import array_module
from numformer.errors import InputError
from numformer.later.attention.rotary import new_rotary
from numformer.later.mixers.attention import matrix_entries
from numformer.later.mixers.mixer import Mixer
from numformer.later.mixers.running_sums import running_sums, running_sums_backward, sequence_reach
from numformer.layer import Array, Layer
from numformer.paper.attention import head_size, merge_heads, split_heads
from numformer.paper.linear import Linear
from numformer.paper.memory import ArrayState, Memory


def positive_features(x):
    """x (...) -> phi (...): elu(x) + 1 (equation 7), which is x + 1 if x > 0, otherwise exp(x)."""
    xp = array_module(x)
    return xp.maximum(x, 0) + xp.exp(xp.minimum(x, 0))


def positive_features_backward(dphi, phi):
    """dphi (...) -> dx (...): the slope is 1 where phi = x + 1 > 1, and exp(x) = phi elsewhere."""
    return dphi * array_module(phi).minimum(phi, 1)


def full_sums(query, key, value):
    """query, key (..., T, K), value (..., T, V) -> y (..., T, V), state S = k^T v: y_t = q_t S."""
    state = matmul(transpose(key), value)
    return matmul(query, state), state


def full_sums_backward(dy, query, key, value, state):
    """dy (..., T, V) -> dquery, dkey (..., T, K), dvalue (..., T, V)."""
    dstate = matmul(transpose(query), dy)  # y = q S
    dquery = matmul(dy, transpose(state))
    # S = k^T v
    return dquery, matmul(value, transpose(dstate)), matmul(key, dstate)


def normalizers(query, key, causal: bool, start):
    """query, key (..., T, K) -> total (..., T, 1), sums (..., T or 1, K): total_t = q_t z_t.

    z_t is `start` (..., 1, K) plus the sum of the keys: those up to t if `causal`, otherwise all.
    """
    sums = key.cumsum(axis=-2) if causal else key.sum(axis=-2, keepdims=True)
    sums = sums + start
    return (query * sums).sum(axis=-1, keepdims=True), sums


def normalizers_backward(dtotal, query, sums, causal: bool):
    """dtotal (..., T, 1) -> dquery (..., T, K), dkey (..., T or 1, K)."""
    dsums = dtotal * query
    if causal:  # the key at t is in the sums at t and later: dkey is a reversed running sum
        dkey = dsums[..., ::-1, :].cumsum(axis=-2)[..., ::-1, :]
    else:
        dkey = dsums.sum(axis=-2, keepdims=True)
    return dtotal * sums, dkey


class LinearAttention(Mixer):
    """x (B, T, D), reach -> (B, T, D): y_t = phi(q_t) S_t / (phi(q_t) z_t)  (equations 9 to 12).

    S_t is the sum of phi(k_s)^T v_s and z_t the sum of phi(k_s), over all s that t may see: the
    real positions, up to t if the reach is causal. The projections are as in attention. The layer
    computes no scores and no weights, so it has neither a score bias nor attention dropout.
    `rotary` rotates the features in the numerator (Su et al. 2021, equation 19).
    """

    looks_ahead = True

    def __init__(
        self,
        d_model: int,
        heads: int,
        rng: np.random.Generator,
        d_k: int | None = None,
        d_v: int | None = None,
        bias: bool = False,
        rotary: Layer | None = None,
    ):
        self.heads = heads
        d_k, d_v = (head_size(d_model, heads) if size is None else size for size in (d_k, d_v))
        self.query = Linear(d_model, heads * d_k, rng, bias)
        self.key = Linear(d_model, heads * d_k, rng, bias)
        self.value = Linear(d_model, heads * d_v, rng, bias)
        self.rotary = rotary
        self.output = Linear(heads * d_v, d_model, rng, bias)

    def forward(self, x: Array, reach: Any = None, past: Memory | None = None) -> Array:
        reach = sequence_reach("linear attention", reach, x, past.length if past else 0)
        xp, places = array_module(x), reach.queries
        query, key, value = (
            split_heads(part.forward(x), self.heads, places)
            for part in (self.query, self.key, self.value)
        )
        query, key = positive_features(query), positive_features(key)
        visible = None if places.all_valid else xp.asarray(places.valid[:, None, :, None])
        visible_key = key if visible is None else key * visible
        state = past.state(self, lambda past: ArrayState()) if past else {}
        causal = reach.causal or past is not None
        total, sums = normalizers(query, visible_key, causal, state.get("sums", 0))
        q, k = query, visible_key  # for the numerator
        if self.rotary:
            q, k = (self.rotary.forward(part, places.positions) for part in (q, k))
        if causal:
            y, states, last = running_sums(q, k, value, start=state.get("state"))
            state.update(state=last, sums=sums[..., -1:, :])
        else:
            y, states = full_sums(q, k, value)
        # If a position sees nothing, total and numerator are 0.
        share = (total > 0) / xp.maximum(total, xp.finfo(total.dtype).tiny)
        y *= share
        features = dict(query=query, key=key, visible=visible, q=q, k=k)
        saved = dict(value=value, sums=sums, states=states, y=y, share=share)
        self.save(**features, **saved, causal=causal, reach=reach)
        return self.output.forward(merge_heads(y, places))

    def backward(self, dy: Array) -> Array:
        saved = self.pop_saved()
        places, causal, states = saved["reach"].queries, saved["causal"], saved["states"]
        query, key, value, q, k = (saved[name] for name in ("query", "key", "value", "q", "k"))
        dy = split_heads(self.output.backward(dy), self.heads, places)
        dy = dy * saved["share"]  # y = numerator / total
        dtotal = -dot_last(dy, saved["y"])
        dquery, dkey = normalizers_backward(dtotal, query, saved["sums"], causal)
        if causal:
            dq, dk, dvalue, _ = running_sums_backward(dy, q, k, value, None, None, states)
        else:
            dq, dk, dvalue = full_sums_backward(dy, q, k, value, states)
        if self.rotary:
            dk, dq = (self.rotary.backward(part) for part in (dk, dq))
        dquery += dq  # the features are in both the numerator and the total
        dkey = dkey + dk
        if saved["visible"] is not None:
            dkey *= saved["visible"]
        dquery = positive_features_backward(dquery, query)
        dkey = positive_features_backward(dkey, key)
        dx = self.query.backward(merge_heads(dquery, places))
        dx += self.key.backward(merge_heads(dkey, places))  # x is projected three times
        dx += self.value.backward(merge_heads(dvalue, places))
        return dx

    def attention_weights(self):
        """Compute the weights (B, H, T, S) of the latest forward, which forward did not compute."""
        saved = self.saved[-1]
        weights = matmul(saved["q"], transpose(saved["k"])) * saved["share"]
        mask = saved["reach"].mask(array_module(weights))
        return weights if mask is None else weights * mask

    @classmethod
    def require(cls, config) -> None:
        if config.positions == "alibi":
            raise InputError(
                "ALiBi is added to scores, and linear attention has none",
                f"positions {config.positions}, mixers {','.join(config.mixers)}",
                "Choose other position encodings or another mixer.",
            )

    @classmethod
    def build(cls, config, rng: np.random.Generator, causal: bool) -> "LinearAttention":
        rotary = new_rotary(config).get("rotary") if "rotary" in config.positions else None
        d_k, d_v = config.sizes
        return cls(config.d_model, config.heads, rng, d_k, d_v, config.attention_bias, rotary)

    @classmethod
    def entries(cls, config) -> int:
        return matrix_entries(config, config.heads)
