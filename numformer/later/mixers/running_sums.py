"""Running sums of outer products, the core of linear attention and of state spaces.

A state S (K, V) passes from position to position: S_t = a_t S_{t-1} + k_t^T v_t, y_t = q_t S_t.
Written out, y_t is the sum over s <= t of (q_t k_s^T) v_s times the decay a_{s+1} ... a_t. This is
attention without a softmax, so each chunk of positions is computed by matrix products, like
attention, and the state passes from chunk to chunk. Work and memory grow with T (Katharopoulos et
al. 2020, section 3.3; Dao and Gu 2024, section 6).
"""

from collections.abc import Iterator
from typing import Any

from numformer.arithmetic import dot_last, matmul, transpose
from numformer.backend import array_module
from numformer.errors import InputError
from numformer.layer import Array
from numformer.paper.masks import ExplicitMask, Places, Reach, as_reach, causal_mask
from numformer.paper.softmax import mask_scores

CHUNK = 64  # positions in a chunk: enough for fast products, few enough for the cache


def running_sums(query, key, value, log_decay=None, start=None):
    """S_t = a_t S_{t-1} + k_t^T v_t, y_t = q_t S_t, from the state `start` (..., K, V) or 0.

    query, key (..., T, K), value (..., T, V), log_decay (..., T) = log a_t <= 0, or None for no
    decay; the leading axes broadcast
    -> y (..., T, V), the states (..., K, V) before each chunk, and the last state.
    """
    xp, (*others, _, width) = array_module(value), value.shape
    state = xp.zeros((*others, key.shape[-1], width), value.dtype) if start is None else start
    y, states = xp.empty_like(value), []
    for chunk, within, since_start, to_end, across in _chunks(value, log_decay):
        q, k, v = (x[..., chunk, :] for x in (query, key, value))
        states.append(state)
        y_chunk = matmul(matmul(q, transpose(k)) * within, v)
        y_chunk += since_start * matmul(q, state)
        y[..., chunk, :] = y_chunk
        state = across * state + matmul(transpose(k), to_end * v)
    return y, states, state


def running_sums_backward(dy, query, key, value, log_decay, y, states):
    """dy (..., T, V) -> dquery, dkey (..., T, K), dvalue (..., T, V), dlog_decay (..., T) or None.

    The loop visits the chunks in reverse order. `dstate`, the gradient of a chunk's last state,
    contains the gradients from all later chunks; it passes from chunk to chunk, as the state did.
    """
    xp = array_module(dy)
    dquery, dkey, dvalue = map(xp.empty_like, (query, key, value))
    dstate = xp.zeros_like(states[0])
    chunks = zip(_chunks(value, log_decay), states, strict=True)
    for (chunk, within, since_start, to_end, across), state in reversed([*chunks]):
        q, k, v, dout = (x[..., chunk, :] for x in (query, key, value, dy))
        weights = matmul(q, transpose(k)) * within
        dscores = matmul(dout, transpose(v)) * within  # out = (q k^T * within) v
        dlater = since_start * dout  # out += since_start * (q state)
        # next state = across * state + k^T (to_end * v)
        dv = matmul(transpose(weights), dout) + to_end * matmul(k, dstate)
        dk = matmul(transpose(dscores), q)
        dk = dk + matmul(to_end * v, transpose(dstate))
        dq = matmul(dscores, k) + matmul(dlater, transpose(state))
        dstate = across * dstate + matmul(transpose(q), dlater)
        dquery[..., chunk, :] = _sum_heads(dq, dquery)
        dkey[..., chunk, :] = _sum_heads(dk, dkey)
        dvalue[..., chunk, :] = dv
    if log_decay is None:
        return dquery, dkey, dvalue, None
    # Let c_t be the sum of log a up to t. v_s enters y_t with factor exp(c_t - c_s), so c_t scales
    # y_t by exp(c_t) and v_t by exp(-c_t): dc_t = <dy_t, y_t> - <dv_t, v_t>. c_t and all later c
    # contain log a_t, so its gradient is a reversed running sum (Yang et al. 2024, section 4.3).
    dsums = (dot_last(dy, y) - dot_last(dvalue, value))[..., 0]
    return dquery, dkey, dvalue, xp.cumsum(dsums[..., ::-1], axis=-1)[..., ::-1]


def _chunks(value, log_decay) -> Iterator[tuple]:
    """Yield chunks, slices of positions, each with the factors of decay that apply in it.

    `within` (..., C, C) is the decay from s to t, 0 where s > t; `since_start` (..., C, 1) from
    before the chunk to t; `to_end` (..., C, 1) from s to the end of the chunk; `across` (..., 1, 1)
    from before the chunk to its end. Without a decay all factors are 1, except where s > t.
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


def _sum_heads(gradient, like):
    """Sum a gradient (B, H, T, K) over the heads if in `like` all of them share one head."""
    return gradient.sum(axis=1, keepdims=True) if like.shape[1] == 1 else gradient


def sequence_reach(name: str, reach: Any, x: Array, first: int = 0) -> Reach:
    """Return the Reach of a layer that sums over x (B, T, D); x begins at the position `first`.

    If `reach` is None, all positions see each other. Raises InputError for an explicit mask, and
    for a Reach over another sequence: sums can respect only order and padding.
    """
    if reach is None:
        return Reach(Places.without_padding(len(x), x.shape[1], first))
    reach = as_reach(reach, x, x)
    if isinstance(reach, ExplicitMask):
        received = "an explicit mask"
    elif reach.keys is not reach.queries:
        received = "keys of another sequence"
    else:
        return reach
    raise InputError(
        f"{name} sums over one sequence, in which only order and padding can mask positions",
        received,
        "Pass Reach(places), causal or not, or choose attention.",
    )
