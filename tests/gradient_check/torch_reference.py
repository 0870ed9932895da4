"""The same layers in PyTorch (2.9 or newer): a function each, on numformer's weights.

A second opinion on every equation, with the gradients from torch's autograd. A case of the gradient
check names its function and the settings that it gets, so that a setting that numformer loses on
the way is seen. Each takes the layer's parameters `p`, by numformer's names and in its shapes, and
the inputs of its forward.
"""

import math
from unittest import mock

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from numformer.data import PairBatch
from numformer.gradient_check import GradientCheck
from numformer.models import Config
from numformer.optimization import Recipe
from numformer.paper import Places, Reach
from numformer.randomness import dropout_stream

# The arrays are small: more threads would only wait for each other.
torch.set_num_threads(1)


def reference(name: str):
    """The function (p, *inputs, **settings) that a case names."""
    return globals()[name]


def within(p, part):
    """The parameters of one part, under the names that they have inside it."""
    start = f"{part}."
    return {name.removeprefix(start): p[name] for name in p if name.startswith(start)}


AUXILIARY: list = []
"""Losses that functions add to that of the predictions."""


def with_auxiliary(y):
    """y, with every loss that was added since."""
    y = y + sum(AUXILIARY)
    AUXILIARY.clear()
    return y


# Layers


def linear(p, x):
    return F.linear(x, p["weight"].T, p.get("bias"))


def output_projection(p, x):
    return F.linear(x, p["weight"], p.get("bias"))


def relu(p, x):
    return F.relu(x)


def gelu(p, x):
    return F.gelu(x)


def gelu_tanh(p, x):
    return F.gelu(x, approximate="tanh")


def geglu(p, x):
    gate, value = x.chunk(2, dim=-1)
    return F.gelu(gate, approximate="tanh") * value


def swish(p, x):
    return F.silu(x)


def quick_gelu(p, x):
    return x * (1.702 * x).sigmoid()


def cap(p, x, *, limit):
    return limit * F.tanh(x / limit)


def capped_output_projection(p, x, *, limit):
    return cap({}, output_projection(p, x), limit=limit)


def convolution(p, x):
    """torch's filters run the other way round."""
    width = len(p["weight"])
    filters, before = p["weight"].flip(0).T[:, None], F.pad(x.mT, (width - 1, 0))
    return F.conv1d(before, filters, p["bias"], groups=x.shape[-1]).mT


def swiglu(p, x):
    gate, value = x.chunk(2, dim=-1)
    return F.silu(gate) * value


def softmax(p, scores, mask=None):
    if mask is None:
        return F.softmax(scores, dim=-1)
    # Of a row with every key masked torch's softmax makes NaN (its attention makes zeros, as ours).
    attends = mask.any(dim=-1, keepdim=True)
    weights = F.softmax(scores.masked_fill(~mask & attends, -math.inf), dim=-1)
    return weights.masked_fill(~attends, 0)


def layer_norm(p, x, *, epsilon=1e-5):
    return F.layer_norm(x, x.shape[-1:], p["gamma"], p["beta"], epsilon)


def rms_norm(p, x, *, epsilon=1e-5):
    return F.rms_norm(x, x.shape[-1:], p["gamma"], epsilon)


def dropout(p, x, *, p_drop):
    """numformer's stream says which values fall, so that both sides drop the same ones."""
    if not p_drop:
        return x
    p_drop = round(p_drop * 2**16) / 2**16  # 16 random bits decide each value
    keep = dropout_stream.mask(tuple(x.shape), p_drop, like=np.zeros(0))
    return torch.where(torch.from_numpy(keep != 0), x / (1 - p_drop), 0.0)


def embedding(p, ids, *, scaled=True):
    return F.embedding(ids, p["weight"]) * (math.sqrt(p["weight"].shape[1]) if scaled else 1)


def sinusoidal_positions(p, x):
    _, length, d_model = x.shape
    dimension = torch.arange(d_model)
    power = 10000.0 ** ((dimension - dimension % 2).double() / d_model)
    angle = torch.arange(length)[:, None] / power
    return x + torch.where(dimension % 2 == 0, angle.sin(), angle.cos()).to(x.dtype)


def sinusoidal_halves_positions(p, x):
    _, length, d_model = x.shape
    sines = math.ceil(d_model / 2)
    power = 10000.0 ** (2 * torch.arange(sines).double() / d_model)
    angle = torch.arange(length)[:, None] / power
    table = torch.cat([angle.sin(), angle.cos()[:, : d_model - sines]], dim=1)
    return x + table.to(x.dtype)


def sinusoidal_fairseq_positions(p, x):
    _, length, d_model = x.shape
    half = d_model // 2
    table = torch.zeros(length, d_model, dtype=torch.double)
    for pos in range(length):
        for j in range(half):
            angle = torch.tensor((pos + 2) / 10000.0 ** (j / (half - 1)), dtype=torch.double)
            table[pos, j], table[pos, half + j] = angle.sin(), angle.cos()
    return x + table.to(x.dtype)


def learned_positions(p, x, positions=None):
    positions = torch.arange(x.shape[1]) if positions is None else positions
    return x + F.embedding(positions, p["weight"])


sinusoidal_rotary_positions = sinusoidal_positions


def none_positions(p, x):
    return x


rotary_positions = alibi_positions = none_positions  # these come in within attention


def scaled_dot_product_attention(
    p, query, key, value, mask=None, *, attention_dropout=0.0, bias=None, cap=None
):
    if bias is not None or cap:
        settings = dict(attention_dropout=attention_dropout, cap=cap)
        bias = 0 if bias is None else bias
        return biased_attention({}, query, key, value, mask, bias, **settings)
    if not attention_dropout:
        return F.scaled_dot_product_attention(query, key, value, mask)
    # Attention to the rows of the identity matrix returns the weights.
    identity = torch.eye(key.shape[-2]).to(key).expand(*key.shape[:-1], -1)
    weights = F.scaled_dot_product_attention(query, key, identity, mask)
    return dropout({}, weights, p_drop=attention_dropout) @ value


def turned(x, positions, base, frequencies):
    """Each pair of values times the matrix of its position's rotation."""
    width = x.shape[-1]
    theta = base ** (-torch.arange(0, width, 2).double() / width)
    if frequencies is not None:
        theta = F.pad(
            torch.tensor(frequencies, dtype=torch.float64), (0, width // 2 - len(frequencies))
        )
    angle = (positions[:, None] * theta).to(x.dtype)
    matrix = torch.stack([angle.cos(), -angle.sin(), angle.sin(), angle.cos()], dim=-1)
    pairs = x.unflatten(-1, (-1, 2))
    return torch.einsum("tjab,...tjb->...tja", matrix.unflatten(-1, (2, 2)), pairs).flatten(-2)


def rotary(p, x, positions=None, *, base=10000.0, frequencies=None):
    positions = torch.arange(x.shape[-2]) if positions is None else positions
    return turned(x, positions, base, frequencies)


def rotary_attention(
    p, query, key, value, mask=None, *, base=10000.0, frequencies=None, **settings
):
    query, key = (rotary({}, x, base=base, frequencies=frequencies) for x in (query, key))
    return scaled_dot_product_attention({}, query, key, value, mask, **settings)


def alibi(p, queries, keys, *, heads):
    distance = torch.cdist(*(place[:, None].double() for place in (queries, keys)))
    return torch.stack([-distance / 2 ** (8 * (head + 1) / heads) for head in range(heads)])


def alibi_attention(p, query, key, value, mask=None, *, bias=0, **settings):
    places = (torch.arange(x.shape[-2]) for x in (query, key))
    bias = bias + alibi({}, *places, heads=query.shape[-3]).to(query.dtype)
    return biased_attention({}, query, key, value, mask, bias, **settings)


def biased_attention(p, query, key, value, mask, bias, *, attention_dropout=0.0, cap=None):
    scores = dot_product_score({}, query, key)
    scores = reference("cap")({}, scores, limit=cap) if cap else scores
    weights = softmax({}, scores + bias, mask)
    return dropout({}, weights, p_drop=attention_dropout) @ value


def relative_positions(
    p, queries, keys, *, distance_buckets, farthest, both_ways, alibi_heads=None
):
    """Each distance's bucket is the last of those that begin at it or nearer."""
    buckets = distance_buckets
    ahead = keys - queries[:, None]
    after = buckets // 2 * (ahead > 0) if both_ways else 0
    near = ahead.abs() if both_ways else (-ahead).clamp(min=0)
    buckets = buckets // 2 if both_ways else buckets
    single = buckets // 2
    far = torch.arange(1, buckets - single) / (buckets - single)
    begins = torch.cat([torch.arange(single + 1), single * (farthest / single) ** far])
    buckets = after + torch.bucketize(near, begins - 1e-4, right=True) - 1
    constant = alibi({}, queries, keys, heads=alibi_heads) if alibi_heads else 0
    return p["table"][buckets].permute(2, 0, 1) + constant


def dot_product_score(p, query, key, *, scaled=True):
    scale = 1 / math.sqrt(key.shape[-1]) if scaled else 1
    return torch.einsum("...tk,...sk->...ts", query * scale, key)


def pairs(query, key):
    """Each query beside each key: (..., T, S, K_q) and (..., T, S, K_k)."""
    sizes = *query.shape[:-1], key.shape[-2], -1
    return query.unsqueeze(-2).expand(sizes), key.unsqueeze(-3).expand(sizes)


def multiplicative_score(p, query, key):
    return F.bilinear(*pairs(query, key), p["weight"][None]).squeeze(-1)


def additive_score(p, query, key):
    # W_q and W_k one below the other are one weight for a query and a key side by side.
    weight = torch.cat([p["query_weight"], p["key_weight"]])
    hidden = F.linear(torch.cat(pairs(query, key), dim=-1), weight.T).tanh()
    return F.linear(hidden, p["v"].T).squeeze(-1)


def split_heads(p, x, valid=None, *, heads, epsilon=1e-5, base=None):
    """Each head's queries, keys or values, with a norm and turned where there are such parts."""
    y = linear(p, x).unflatten(-1, (heads, -1)).transpose(1, 2)
    if norm := within(p, "norm"):
        kind = "layer_norm" if "beta" in norm else "rms_norm"
        size = y.shape[-1]
        y = y if len(norm["gamma"]) == size else y.transpose(1, 2).flatten(2)  # all heads as one
        y = reference(kind)(norm, y, epsilon=epsilon)
        y = y if y.dim() == 4 else y.unflatten(-1, (heads, -1)).transpose(1, 2)
    return y if base is None else rotary({}, y, base=base)


def multi_head_attention(
    p,
    x,
    memory,
    mask=None,
    *,
    heads,
    groups=None,
    positions="scaled_dot_product",
    epsilon=1e-5,
    **settings,
):
    """With fewer groups of keys and values than heads of queries, neighbours have the same."""

    def of_heads(name, x, count):
        y = split_heads(within(p, name), x, heads=count, epsilon=epsilon)
        return y.repeat_interleave(heads // count, dim=1)

    groups = groups or heads
    inputs = of_heads("query", x, heads), *(of_heads(n, memory, groups) for n in ("key", "value"))
    y = reference(f"{positions}_attention")({}, *inputs, mask, **settings)
    return linear(within(p, "output"), y.transpose(1, 2).flatten(2))


def self_attention(p, x, mask=None, **settings):
    return multi_head_attention(p, x, x, mask, **settings)


def tiled_attention(
    p, x, mask, *, window=None, global_tokens=0, stride=None, distances=None, **settings
):
    """The whole matrix of weights, of which a pattern remains."""
    place = torch.arange(x.shape[1])
    ahead = place - place[:, None]
    if window is not None:
        first = (place < global_tokens) | (place[:, None] < global_tokens)
        mask = mask & ((ahead.abs() < window) | first)
    if stride is not None:
        kinds, heads = (ahead.abs() < stride, ahead % stride == 0), settings["heads"]
        mask = mask & torch.stack([kinds[head >= (heads + 1) // 2] for head in range(heads)])
    if distances:
        both_ways = dict(both_ways=bool((mask & (ahead > 0)).any()))
        table = within(p, "attention.bias")
        settings["bias"] = relative_positions(table, place, place, **(both_ways | distances))
    return self_attention(p, x, mask, **settings)


def chain(p, x):
    return tanh({}, swish({}, x))


def tanh(p, x):
    return F.tanh(x)


def rnn_cell(p, a, state):
    weight, identity, zero = p["weight"].T, torch.eye(a.shape[1]).to(a), torch.zeros_like(a[0])
    return torch.rnn_tanh_cell(a, state, identity, weight, zero, zero)


def in_torch_s_order(weight):
    """The columns i, f, o, g of an LSTM's gates as rows i, f, g, o."""
    i, f, o, g = weight.T.chunk(4)
    return torch.cat([i, f, g, o])


def lstm_cell(p, a, state):
    identity = in_torch_s_order(torch.eye(a.shape[1]).to(a))
    weights = identity, in_torch_s_order(p["weight"])
    return torch.cat(torch.lstm_cell(a, state.chunk(2, dim=1), *weights), dim=1)


def gru_cell(p, a, state):
    identity, zero = torch.eye(a.shape[1]).to(a), torch.zeros_like(a[0])
    return torch.gru_cell(a, state, identity, p["weight"].T, zero, p.get("bias", zero))


def recurrent(p, x, lengths=None, start=None, context=None, *, cell, backwards=False):
    """torch's own loop over packed sequences; at padding it gives 0, numformer the state kept."""
    length, size = x.shape[1], len(p["cell.weight"])
    weight, arrange = p["input.weight"], in_torch_s_order if cell == "lstm" else torch.t
    if context is not None:
        x = torch.cat([x, context[:, None].expand(-1, length, -1)], dim=-1)
        weight = torch.cat([weight, p["context.weight"]])
    start = x.new_zeros(len(x), size) if start is None else start
    lengths = torch.full((len(x),), length) if lengths is None else lengths
    bias = arrange(p["input.bias"][None])[:, 0]
    weights = {"weight_ih_l0": arrange(weight), "weight_hh_l0": arrange(p["cell.weight"])}
    weights |= {"bias_ih_l0": bias, "bias_hh_l0": torch.zeros_like(bias)}
    # The second direction of torch's two is the one that goes backwards.
    weights |= {f"{name}_reverse": each for name, each in weights.items()}
    loop = getattr(nn, cell.upper())(x.shape[-1], size, batch_first=True, bidirectional=True)
    both = torch.stack([start, start])
    of_batch = dict(batch_first=True, enforce_sorted=False)
    packed = nn.utils.rnn.pack_padded_sequence(x, lengths.clamp(min=1), **of_batch)
    inputs = packed, (both, torch.zeros_like(both)) if cell == "lstm" else both
    h, _ = torch.func.functional_call(loop, weights, inputs)
    h, _ = nn.utils.rnn.pad_packed_sequence(h, batch_first=True, total_length=length)
    h = torch.cat([start[:, None], h.chunk(2, dim=-1)[backwards]], dim=1)
    # Position t has h of t + 1, at padding that of the last real position or the start.
    position = torch.arange(1, length + 1).expand(len(x), -1)
    at_padding = torch.zeros_like(lengths) if backwards else lengths
    found = torch.where(position > lengths[:, None], at_padding[:, None], position)
    return h.gather(1, found[..., None].expand(-1, -1, size))


def additive_attention(p, query, keys, memory, mask=None):
    p = p | {"key_weight": torch.eye(keys.shape[-1]).to(keys)}
    scores = additive_score(p, query[:, None], keys)
    weights = softmax({}, scores, None if mask is None else mask[:, None])
    return (weights @ memory).squeeze(1)


def attention_decoder(p, x, lengths, start, memory, mask=None, *, cell):
    state = torch.cat([start, torch.zeros_like(start)], dim=1) if cell == "lstm" else start
    keys, outputs = linear(within(p, "keys"), memory), []
    for of_position in x.unbind(1):
        query = state[:, : start.shape[1]]
        context = additive_attention(within(p, "cross_attention"), query, keys, memory, mask)
        weight = torch.cat([p["input.weight"], p["context.weight"]])
        inputs = torch.cat([of_position, context], dim=1)
        a = linear({"weight": weight, "bias": p["input.bias"]}, inputs)
        state = reference(f"{cell}_cell")(within(p, "cell"), a, state)
        outputs.append(torch.cat([state[:, : start.shape[1]], context], dim=1))
    y = torch.stack(outputs, dim=1)
    return y if lengths is None else y * (torch.arange(len(outputs)) < lengths[:, None])[..., None]


def feed_forward(p, x, *, activation="relu", activation_dropout=0.0):
    hidden = reference(activation)({}, linear(within(p, "inner"), x))
    return linear(within(p, "outer"), dropout({}, hidden, p_drop=activation_dropout))


def residual(
    p, x, *others, sublayer, norm, p_drop, norm_layer="layer_norm", epsilon=1e-5, **settings
):
    """`settings` are those of the sublayer."""

    def normed(x):
        return reference(norm_layer)(within(p, "norm"), x, epsilon=epsilon)

    y = normed(x) if norm in ("pre", "pre_scaled", "sandwich") else x
    y = reference(sublayer)(within(p, "sublayer"), y, *others, **settings)
    y = normed(y) if norm == "output" else y
    if norm == "pre_scaled":
        y = layer_scale(within(p, "output_norm"), y)
    if norm == "sandwich":
        y = reference(norm_layer)(within(p, "output_norm"), y, epsilon=epsilon)
    y = x + dropout({}, y, p_drop=p_drop)
    return normed(y) if norm == "post" else y


def layer_scale(p, x):
    return x * p["scale"]


def parallel_layer(p, x, *others, heads, p_drop):
    around = dict(norm="pre", p_drop=p_drop)
    attention, network = side_by_side(p)
    y = residual(attention, x, *others, sublayer="self_attention", heads=heads, **around)
    return y - x + residual(network, x, sublayer="feed_forward", **around)


def side_by_side(p):
    """The parameters of both sublayers; where there is one norm, both have it."""
    norm = {name: p[name] for name in p if name.startswith("self_attention.norm.")}
    norm = {name.removeprefix("self_attention."): array for name, array in norm.items()}
    return within(p, "self_attention"), norm | within(p, "feed_forward")


def checkpointed(p, x, **settings):
    """What it computes again is the same."""
    return residual(p, x, **settings)


def patches(p, images, *, size):
    """F.unfold makes columns (B, C size size, N) of images (B, C, height, width)."""
    images = images.unsqueeze(-1) if images.dim() == 3 else images
    columns = F.unfold(images.permute(0, 3, 1, 2), size, stride=size)
    channels_last = columns.unflatten(1, (images.shape[-1], -1)).permute(0, 3, 2, 1)
    return channels_last.flatten(2)


def class_token(p, x):
    return F.pad(x, (0, 0, 1, 0)) + F.pad(p["token"][None], (0, 0, 0, x.shape[1]))


def token_and_mean(p, x):
    token, others = x.split([1, x.shape[1] - 1], dim=1)
    return torch.cat([token, others.mean(dim=1, keepdim=True)], dim=2).squeeze(1)


def windows(p, x, *, width, stride):
    """F.unfold makes columns (B, C width, N) of images (B, C, 1, T)."""
    columns = F.unfold(x.mT.unsqueeze(2), (1, width), padding=(0, width // 2), stride=(1, stride))
    return columns.unflatten(1, (-1, width)).permute(0, 3, 2, 1).flatten(2)


def sound_embedding(p, features, *, p_drop):
    x = features.mT
    for number, stride in ((1, 1), (4, 2)):
        kernel = p[f"layers.{number}.weight"].unflatten(0, (3, -1)).permute(2, 1, 0)
        x = F.gelu(F.conv1d(x, kernel, p[f"layers.{number}.bias"], stride, padding=1))
    x = learned_positions(within(p, "layers.6"), x.mT)
    return dropout({}, x, p_drop=p_drop)


def pick(p, x, places):
    return F.embedding(places, x.flatten(0, 1))


def cross_entropy(p, logits, targets, valid=None, *, smoothing):
    counts = torch.ones(targets.shape, dtype=torch.bool) if valid is None else valid
    return F.cross_entropy(logits[counts], targets[counts], label_smoothing=smoothing)


def divergence(p, first, second, valid=None):
    counts = torch.ones(first.shape[:-1], dtype=torch.bool) if valid is None else valid
    log_p, log_q = (logits[counts].log_softmax(dim=-1) for logits in (first, second))
    there = F.kl_div(log_p, log_q, log_target=True, reduction="batchmean")
    return (there + F.kl_div(log_q, log_p, log_target=True, reduction="batchmean")) / 2


# What a Config composes


def attention_mixer(p, x, mask, *, config, **settings):
    named = config.positions.removeprefix("sinusoidal_")
    settings |= {"alibi": dict(positions=named)}.get(named, {})
    settings |= {"rotary": dict(positions=named, **turning(config))}.get(named, {})
    settings |= dict(cap=config.attention_cap) if config.attention_cap else {}
    settings |= dict(heads=config.heads, groups=config.key_value_heads, epsilon=config.epsilon)
    everywhere = torch.ones(1, 1, x.shape[1], x.shape[1], dtype=torch.bool)
    mask = everywhere if mask is None else mask
    return tiled_attention(p, x, mask, attention_dropout=config.attention_dropout, **settings)


def turning(config):
    """How fast the pairs of a layer turn."""
    (frequencies,) = config.rotary_frequencies or (None,)
    return dict(base=config.rotary_base, frequencies=frequencies)


def of_pattern(*names):
    """The mixer whose settings have these names."""

    def mixer(p, x, mask, *, config):
        return attention_mixer(p, x, mask, config=config, **{n: getattr(config, n) for n in names})

    return mixer


window_mixer = of_pattern("window")
global_window_mixer = of_pattern("window", "global_tokens")
strided_mixer = of_pattern("stride")


def relative_mixer(p, x, mask, *, config):
    """Whether it looks back alone is told by the mask."""
    distances = dict(distance_buckets=config.distance_buckets, farthest=config.farthest)
    return attention_mixer(p, x, mask, config=config, distances=distances)


def linear_mixer(p, x, mask, *, config):
    """The whole matrix of products of features, each row divided by its sum."""

    def of_heads(name):
        return linear(within(p, name), x).unflatten(-1, (config.heads, -1)).transpose(1, 2)

    query, key = F.elu(of_heads("query")) + 1, F.elu(of_heads("key")) + 1
    seen = torch.ones(x.shape[1], x.shape[1]).to(x) if mask is None else mask.to(x)
    total = (dot_product_score({}, query, key, scaled=False) * seen).sum(dim=-1, keepdim=True)
    if "rotary" in config.positions:
        query, key = (rotary({}, x, **turning(config)) for x in (query, key))
    weights = dot_product_score({}, query, key, scaled=False) * seen
    y = weights / torch.where(total > 0, total, 1) @ of_heads("value")
    return linear(within(p, "output"), y.transpose(1, 2).flatten(2))


def state_space_mixer(p, x, mask, *, config):
    """Position by position, each state made of the one before it."""
    heads, size = config.heads, config.d_state
    features = len(p["output.weight"])
    real = mask.expand(len(x), 1, x.shape[1], x.shape[1])[:, 0].diagonal(dim1=1, dim2=2)
    inputs = linear(within(p, "input"), x) * real[..., None]
    u, gate, write, read, step = inputs.split([features, features, size, size, heads], dim=-1)
    u = F.silu(convolution(within(p, "convolution"), u)).unflatten(-1, (heads, -1))
    step = F.softplus(step + p["step_bias"])
    fade = torch.exp(-p["log_rate"].exp() * step)
    state, outputs = torch.zeros(len(x), heads, size, u.shape[-1]).to(x), []
    for t in range(x.shape[1]):
        written = torch.einsum("bn,bhp->bhnp", write[:, t], step[:, t, :, None] * u[:, t])
        state = fade[:, t, :, None, None] * state + written
        y = torch.einsum("bn,bhnp->bhp", read[:, t], state) + p["skip"][:, None] * u[:, t]
        outputs.append(y.flatten(1) * F.silu(gate[:, t]))
    return linear(within(p, "output"), torch.stack(outputs, dim=1))


def experts_feed_forward(p, x, mask=None, *, config):
    """Each real position to its experts; the balance is that of equations 4 to 6 of Switch."""
    length, count = x.shape[1], config.experts
    mask = torch.ones(length, length, dtype=torch.bool) if mask is None else mask
    real = mask.expand(len(x), 1, length, length)[:, 0].diagonal(dim1=1, dim2=2)
    logits = linear(within(p, "router"), x[real])
    highest, chosen = logits.topk(config.chosen_experts)
    gates = torch.zeros_like(logits).scatter(1, chosen, highest.softmax(dim=1))
    share = F.one_hot(chosen, count).to(x).mean(dim=(0, 1))
    AUXILIARY.append(config.balance_weight * count * share @ logits.softmax(dim=1).mean(dim=0))
    y = torch.zeros_like(x[real])
    for number in range(count):
        row = (chosen == number).any(dim=1).nonzero()[:, 0]
        drop = config.activation_dropout if len(row) else 0.0  # no masks where there is nothing
        inside = dict(activation=config.activation, activation_dropout=drop)
        of_expert = feed_forward(within(p, f"experts.{number}"), x[real][row], **inside)
        y = y.index_add(0, row, gates[row, number, None] * of_expert)
    return torch.zeros_like(x).masked_scatter(real[..., None], y)


def block(p, x, mask, memory=None, memory_mask=None, *, config, layer=0):
    """A layer of the encoder or, with a memory to look at, of the decoder."""
    around = dict(norm=config.norm, p_drop=config.p_drop)
    around |= dict(norm_layer=f"{config.normalization}_norm", epsilon=config.epsilon)
    inside = dict(activation=config.activation, activation_dropout=config.activation_dropout)
    mixers = config.mixers
    mixer = dict(sublayer=f"{mixers[layer % len(mixers)]}_mixer", config=config.layer_config(layer))
    if config.sublayers != "in_turn":
        attention, network = side_by_side(p)
        y = residual(attention, x, mask, **mixer, **around)
        return y - x + residual(network, x, sublayer="feed_forward", **around, **inside)
    x = residual(within(p, "self_attention"), x, mask, **mixer, **around)
    if memory is not None:
        of_cross = dict(heads=config.heads, attention_dropout=config.attention_dropout)
        of_cross |= around | dict(sublayer="multi_head_attention", cap=config.attention_cap)
        x = residual(within(p, "cross_attention"), x, memory, memory_mask, **of_cross)
    p, networks = within(p, "feed_forward"), config.feed_forwards
    network = networks[layer % len(networks)]
    if network == "dense":
        return residual(p, x, sublayer="feed_forward", **around, **inside)
    return residual(p, x, mask, sublayer=f"{network}_feed_forward", config=config, **around)


def input_embedding(p, ids, places=None, segments=None, *, config):
    """Embeddings, segments and positions, with dropout: what goes into a stack."""
    x = embedding(within(p, "embedding"), ids, scaled=config.embedding_scale)
    if segments is not None:
        x = x + embedding(within(p, "segments"), segments, scaled=False)
    x = reference(f"{config.positions}_positions")(within(p, "positions"), x)
    x = normed(within(p, "norm"), x, config) if config.embedding_norm else x
    return dropout({}, x, p_drop=config.p_drop)


def normed(p, x, config):
    return reference(f"{config.normalization}_norm")(p, x, epsilon=config.epsilon)


def tower(p, x, *others, config, layers=None):
    """Where tables of distances are, all have the first."""
    shared = {}
    for number in range(layers or config.layers):
        of_layer = within(p, f"layers.{number}")
        shared |= {name: of_layer[name] for name in of_layer if name.endswith("bias.table")}
        x = block(shared | of_layer, x, *others, config=config, layer=number)
    return normed(within(p, "norm"), x, config) if config.norm != "post" else x


def transformer(p, source, target, *, config):
    of_source, of_target = within(p, "source"), within(p, "target")
    if config.tying in ("all", "inputs"):
        of_target["embedding.weight"] = of_source["embedding.weight"]
    output = (
        p["output.weight"] if config.tying in ("none", "inputs") else of_target["embedding.weight"]
    )
    source_mask = (source != special_id(config.padding_id))[:, None, None, :]
    target_mask = is_real(target, config)[:, None, None, :]
    causal = torch.ones(target.shape[1], target.shape[1], dtype=torch.bool).tril()
    memory = input_embedding(of_source, source, config=config)
    memory = tower(within(p, "encoder"), memory, source_mask, config=config)
    x = input_embedding(of_target, target, config=config)
    masks = target_mask & causal, memory, source_mask
    x = tower(within(p, "decoder"), x, *masks, config=config, layers=config.decoder_layers)
    return capped(output_projection(within(p, "output") | {"weight": output}, x), config)


def speech(p, sounds, target, *, config):
    memory = sound_embedding(within(p, "source"), sounds, p_drop=config.p_drop)
    memory = tower(within(p, "encoder"), memory, None, config=config)
    target_mask = is_real(target, config)[:, None, None, :]
    causal = torch.ones(target.shape[1], target.shape[1], dtype=torch.bool).tril()
    x = input_embedding(within(p, "target"), target, config=config)
    masks = target_mask & causal, memory, None
    x = tower(within(p, "decoder"), x, *masks, config=config, layers=config.decoder_layers)
    return output_projection({"weight": p["target.embedding.weight"]}, x)


def capped(logits, config):
    return cap({}, logits, limit=config.logit_cap) if config.logit_cap else logits


def special_id(number):
    """One that no id is where there is none."""
    return -1 if number is None else number


def is_real(target, config):
    """What is no padding; the first position is none, also where it has that id."""
    real = target != special_id(config.padding_id)
    return real | ((torch.arange(target.shape[1]) == 0) & (config.start_id == config.padding_id))


def language_model(p, ids, *, config):
    causal = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).tril()
    x = input_embedding(within(p, "input"), ids, config=config)
    x = tower(within(p, "tower"), x, causal, config=config)
    return projected(p, x, config) if config.head else x


def projected(p, x, config):
    weight = p["input.embedding.weight" if config.tied else "output.weight"]
    return capped(output_projection(within(p, "output") | {"weight": weight}, x), config)


def recurrent_encoder_decoder(p, source, target, *, config):
    def embedded(name, ids):
        return dropout({}, embedding(within(p, name), ids), p_drop=config.p_drop)

    x, lengths = embedded("source", source), (source != 0).sum(dim=1)
    memory = recurrent(within(p, "encoder"), x, lengths, cell=config.cell)
    last = memory[:, -1]
    if config.context == "attention":
        back = recurrent(within(p, "backwards"), x, lengths, cell=config.cell, backwards=True)
        last, memory = back[:, 0], torch.cat([memory, back], dim=-1)
    start = linear(within(p, "bridge"), last).tanh()
    x, decoder = embedded("target", target), within(p, "decoder")
    if config.context == "attention":
        y = attention_decoder(decoder, x, None, start, memory, source != 0, cell=config.cell)
    else:
        y = recurrent(decoder, x, None, start, last, cell=config.cell)
    y = dropout({}, linear(within(p, "readout"), y).tanh(), p_drop=config.p_drop)
    return output_projection({"weight": p["target.weight"]}, y)


def masked(p, ids, asked=None, *, config):
    x = input_embedding(within(p, "input"), ids, config=config)
    real = ids != special_id(config.padding_id)
    x = tower(within(p, "tower"), x, real[:, None, None, :], config=config)
    logits = projected(p, x, config)
    return logits if asked is None else logits.flatten(0, 1)[asked]


def vision(p, images, *, config):
    """Patches and their linear map are one convolution."""
    images = images.unsqueeze(-1) if images.dim() == 3 else images
    size, images = config.patch, images.permute(0, 3, 1, 2)
    kernel = p["embedding.weight"].T.unflatten(1, (size, size, -1)).permute(0, 3, 1, 2)
    x = F.conv2d(images, kernel, p.get("embedding.bias"), stride=size)
    tokens = [p[n] for n in ("token.token", "distillation.token") if n in p]
    x = torch.cat([torch.stack(tokens).expand(len(x), -1, -1), x.flatten(2).mT], dim=1)
    x = reference(f"{config.positions}_positions")(within(p, "positions"), x)
    x = layer_norm(within(p, "norm"), x, epsilon=config.epsilon) if config.embedding_norm else x
    registers = reversed(range(config.registers or 0))  # each comes before those added earlier
    rows = [p[f"registers.layers.{n}.token"].expand(len(x), 1, -1) for n in registers]
    x = dropout({}, torch.cat([*rows, x], dim=1), p_drop=config.p_drop)
    x = tower(within(p, "tower"), x, None, config=config)[:, len(rows) :]
    if not config.classes:
        return x[:, 0]
    y = linear(within(p, "output"), token_and_mean({}, x) if config.mean_head else x[:, 0])
    both = [y, linear(within(p, "distilled_output"), x[:, 1])] if config.distilled_head else [y]
    return sum(both) / len(both)


def similarity(p, x, y):
    return p["scale"].exp() * F.cosine_similarity(x[:, None], y, dim=-1)


def dual_encoder(p, images, ids, *, config):
    """The token of images, and the first end of each text."""
    images = vision(within(p, "images"), images, config=config.images)
    images = linear(within(p, "image_projection"), images)
    x = language_model(within(p, "texts"), ids, config=config.texts)
    ends = (ids == config.special.end).int().argmax(dim=1)
    texts = linear(within(p, "text_projection"), x[torch.arange(len(x)), ends])
    return similarity(within(p, "similarity"), images, texts)


def objective(p, source, target_in, target_out, *, config, smoothing, model="transformer"):
    logits = reference(model)(within(p, "model"), source, target_in, config=config)
    padding = special_id(getattr(config, "padding_id", 0))
    loss = cross_entropy({}, logits, target_out, target_out != padding, smoothing=smoothing)
    return with_auxiliary(loss)


def objective_r_drop(p, source, target_in, target_out, *, config, smoothing, r_drop):
    p = within(p, "model")
    both = [transformer(p, source, target_in, config=config) for _ in range(2)]
    losses = (cross_entropy({}, logits, target_out, smoothing=smoothing) for logits in both)
    return with_auxiliary(sum(losses) + r_drop * divergence({}, *both)) / 2


# What is compared


def as_array(x):
    """An input as PyTorch can have it: who may see whom, or which places are real, as an array."""
    return x.mask() if isinstance(x, Reach) else x.valid if isinstance(x, Places) else x


def differentiate(checked: GradientCheck, name: str, settings: dict) -> dict[str, np.ndarray]:
    """torch's "output" and, by the tensors' names, gradients of what `checked` holds."""
    leaves = {of: torch.tensor(x, requires_grad=True) for of, x in checked.tensors.items()}
    leaf_of = {id(array): leaves[name] for name, array in checked.tensors.items()}
    masks = [as_array(x) for x in checked.inputs]
    inputs = [x if x is None else leaf_of.get(id(x), torch.tensor(x)) for x in masks]
    dropout_stream.reseed(checked.seed, 0)
    output = with_auxiliary(reference(name)(leaves, *inputs, **settings))
    gradients = torch.autograd.grad(output, leaves.values(), torch.from_numpy(checked.upstream))
    results = {"output": output.detach(), **dict(zip(leaves, gradients, strict=True))}
    return {name: tensor.numpy() for name, tensor in results.items()}


def loss_of_batch(p, batch: PairBatch, config: Config, smoothing: float):
    ids, p = map(torch.from_numpy, batch.inputs), {f"model.{name}": p[name] for name in p}
    return objective(p, *ids, config=config, smoothing=smoothing)


def gradients(config: Config, smoothing: float, weights: dict, batch: PairBatch) -> dict:
    """torch's gradients of the loss, without dropout, in the dtype of `weights`."""
    p = {name: torch.tensor(array, requires_grad=True) for name, array in weights.items()}
    of_weights = torch.autograd.grad(loss_of_batch(p, batch, config, smoothing), p.values())
    return {name: gradient.numpy() for name, gradient in zip(p, of_weights, strict=True)}


# Optimizers: of the parameters `p` by name, those of torch that together update them all


def adam_optimizer(p, recipe: Recipe, kind=torch.optim.Adam, **settings):
    betas = recipe.beta1, recipe.beta2
    return [kind(p.values(), betas=betas, eps=recipe.adam_epsilon, **settings)]


def adamw_optimizer(p, recipe: Recipe):
    return adam_optimizer(p, recipe, torch.optim.AdamW, weight_decay=recipe.weight_decay)


def sgd_optimizer(p, recipe: Recipe):
    return [torch.optim.SGD(p.values(), momentum=recipe.momentum)]


def lion_optimizer(p, recipe: Recipe):
    class Lion(torch.optim.Optimizer):
        @torch.no_grad()
        def step(self):
            for parameter in self.param_groups[0]["params"]:
                rate, grad = self.param_groups[0]["lr"], parameter.grad
                mean = self.state[parameter].get("mean", torch.zeros_like(grad))
                sign = torch.sign(torch.lerp(grad, mean, recipe.beta1))
                parameter -= rate * (sign + recipe.weight_decay * parameter)
                self.state[parameter]["mean"] = torch.lerp(grad, mean, recipe.beta2)

    return [Lion(p.values(), {})]


def muon_optimizer(p, recipe: Recipe):
    class Muon(torch.optim.Muon):  # which orthogonalizes in bfloat16, wherever it is
        def step(self):
            with mock.patch.object(torch.Tensor, "bfloat16", torch.Tensor.clone):
                super().step()

    tables = "embedding", "positions", "table", "convolution"
    hidden = [name for name in p if p[name].ndim == 2 and not name.startswith("output.")]
    hidden = [name for name in hidden if not any(table in name for table in tables)]
    how = dict(momentum=recipe.momentum, weight_decay=recipe.weight_decay)
    muon = Muon([p[name] for name in hidden], adjust_lr_fn="match_rms_adamw", **how)
    return [muon, *adamw_optimizer({name: p[name] for name in p.keys() - hidden}, recipe)]


def train(config: Config, recipe: Recipe, weights: dict, batches: list, seed: int) -> dict:
    """torch's losses, gradient norms and final weights after one step on each batch.

    It computes in the dtype of `weights`.
    """
    p = {name: nn.Parameter(torch.tensor(array)) for name, array in weights.items()}
    optimizers = reference(f"{recipe.optimizer}_optimizer")(p, recipe)

    def rate(step):  # section 5.3, equation 3
        peak = recipe.factor / math.sqrt(config.d_model * recipe.warmup)
        if recipe.decay == "linear":
            return np.interp(step, [0, recipe.warmup, len(batches) + 1], [0, peak, 0])
        if recipe.decay == "cosine" and step > recipe.warmup:
            gone = (step - recipe.warmup) / (len(batches) + 1 - recipe.warmup)
            return peak * np.cos(np.pi / 2 * gone) ** 2
        return peak * min(step / recipe.warmup, math.sqrt(recipe.warmup / step))

    losses, norms = [], []
    for step, batch in enumerate(batches, 1):
        dropout_stream.reseed(seed, step)
        loss = loss_of_batch(p, batch, config, recipe.label_smoothing)
        for parameter in p.values():
            parameter.grad = None
        loss.backward()
        norm = nn.utils.get_total_norm([parameter.grad for parameter in p.values()])
        if recipe.clip_norm is not None:
            # torch divides by the norm plus 1e-6, numformer by the norm.
            nn.utils.clip_grads_with_norm_(p.values(), recipe.clip_norm, norm - 1e-6)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate(step)
            optimizer.step()
        losses.append(loss.item())
        norms.append(norm.item())
    final = {name: parameter.detach().numpy() for name, parameter in p.items()}
    return {"losses": np.array(losses), "norms": np.array(norms), **final}
