"""Running sums of outer products, chunk by chunk: what linear attention and state spaces are.

A state S (K, V) goes from position to position: S_t = a_t S_{t-1} + k_t^T v_t, y_t = q_t S_t.
Written out, y_t is a sum over s <= t of (q_t k_s) v_s, which fades by a_r for each position r in
between: an attention without softmax. So within a chunk it is computed as attention is, by
products, and from chunk to chunk as a recurrence; work and memory grow with T (Katharopoulos et al.
2020, section 3.3; Dao and Gu 2024, section 6).
"""

from collections.abc import Iterator
from typing import Any

from numformer.arithmetic import dot_last, matmul, transpose
from numformer.backend import array_module
from numformer.errors import InputError
from numformer.layer import Array
from numformer.paper.masks import ExplicitMask, Places, Reach, as_reach, causal_mask
from numformer.paper.softmax import mask_scores

CHUNK = 64  # positions: the products are large enough, their results stay in the cache


def running_sums(query, key, value, log_decay=None, start=None):
    """S_t = a_t S_{t-1} + k_t^T v_t, y_t = q_t S_t, from the state `start` (..., K, V), or 0.

    query, key (..., T, K), value (..., T, V), and log_decay (..., T), log a_t <= 0, or None where
    nothing fades; axes before them broadcast
    -> y (..., T, V), states (..., K, V) before each chunk, and the last one.
    """
    xp, (*others, _, width) = array_module(value), value.shape
    state = xp.zeros((*others, key.shape[-1], width), value.dtype) if start is None else start
    y, states = xp.empty_like(value), []
    for chunk, within, since_start, to_end, whole in _chunks(value, log_decay):
        q, k, v = (x[..., chunk, :] for x in (query, key, value))
        states.append(state)
        of_chunk = matmul(matmul(q, transpose(k)) * within, v)
        of_chunk += since_start * matmul(q, state)
        y[..., chunk, :] = of_chunk
        state = whole * state + matmul(transpose(k), to_end * v)
    return y, states, state


def running_sums_backward(dy, query, key, value, log_decay, y, states):
    """dy (..., T, V) -> dquery, dkey (..., T, K), dvalue (..., T, V), dlog_decay (..., T) or None.

    The chunks in reverse order. What reaches a chunk from those after it comes by the gradient of
    its last state, and so from one number of `dstate` to the next as the state itself did.
    """
    xp = array_module(dy)
    dquery, dkey, dvalue = map(xp.empty_like, (query, key, value))
    dstate = xp.zeros_like(states[0])
    chunks = zip(_chunks(value, log_decay), states, strict=True)
    for (chunk, within, since_start, to_end, whole), state in reversed([*chunks]):
        q, k, v, dout = (x[..., chunk, :] for x in (query, key, value, dy))
        weights = matmul(q, transpose(k)) * within
        dscores = matmul(dout, transpose(v)) * within  # out = (q k^T within) v
        dlater = since_start * dout  # out += since_start (q state)
        # state' = whole state + k^T (to_end v)
        dv = matmul(transpose(weights), dout) + to_end * matmul(k, dstate)
        dk = matmul(transpose(dscores), q)
        dk = dk + matmul(to_end * v, transpose(dstate))
        dq = matmul(dscores, k) + matmul(dlater, transpose(state))
        dstate = whole * dstate + matmul(transpose(q), dlater)
        dquery[..., chunk, :] = _summed(dq, dquery)
        dkey[..., chunk, :] = _summed(dk, dkey)
        dvalue[..., chunk, :] = dv
    if log_decay is None:
        return dquery, dkey, dvalue, None
    # With c_t the sum of log a up to t, what k_s v_s gives to y_t has the factor exp(c_t - c_s). So
    # dc_t is the gradient of a factor of y_t less that of a factor of v_t, and log a_t is in all
    # c_r from t on: a reversed running sum (Yang et al. 2024, section 4.3).
    dsums = (dot_last(dy, y) - dot_last(dvalue, value))[..., 0]
    return dquery, dkey, dvalue, xp.cumsum(dsums[..., ::-1], axis=-1)[..., ::-1]


def _chunks(value, log_decay) -> Iterator[tuple]:
    """Slices of positions, each with how much fades in it, as factors.

    From s to t, `within` (..., C, C), 0 where s > t; from before the chunk to t, `since_start`
    (..., C, 1); from s to its end, `to_end` (..., C, 1); and from before it to its end, `whole`
    (..., 1, 1). Without a decay all but the first are 1.
    """
    xp, (*_, length, _) = array_module(value), value.shape
    for first in range(0, length, CHUNK):
        chunk = slice(first, min(first + CHUNK, length))
        earlier = causal_mask(chunk.stop - first, xp)[0, 0]
        if log_decay is None:
            yield chunk, earlier, 1, 1, 1
            continue
        c = xp.cumsum(log_decay[..., chunk], axis=-1)[..., None]
        within = xp.exp(mask_scores(c - transpose(c), earlier))
        yield chunk, within, xp.exp(c), xp.exp(c[..., -1:, :] - c), xp.exp(c[..., -1:, :])


def _summed(gradient, like):
    """A gradient (B, H, T, K) summed over the heads where those of `like` have it in common."""
    return gradient.sum(axis=1, keepdims=True) if like.shape[1] == 1 else gradient


def reach_of_sums(name: str, reach: Any, x: Array, first: int = 0) -> Reach:
    """What a layer of sums is given as the Reach of x (B, T, D), which begins at position `first`.

    None is that of all over all. Raises InputError unless who sees whom is a matter of order and
    padding alone.
    """
    if reach is None:
        return Reach(Places.without_padding(len(x), x.shape[1], first))
    reach = as_reach(reach, x, x)
    if isinstance(reach, ExplicitMask):
        received = "an explicit mask"
    elif reach.keys is not reach.queries:
        received = "keys of other places"
    else:
        return reach
    raise InputError(
        f"{name} sums up what its own sequence holds: who sees whom is order and padding alone",
        received,
        "Give it Reach(places), causal or not, or choose attention.",
    )
