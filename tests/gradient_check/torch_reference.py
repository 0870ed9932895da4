"""The same layers in PyTorch (2.6 or newer): torch's modules and functions, numformer's weights.

A second opinion on every equation, with the gradients from torch's autograd. Each function takes
a layer's settings, its parameters `p` by numformer's names and in numformer's shapes, and the
inputs. The settings of a layer are that numformer layer; those of what a Config composes are the
Config, so that a field of it that numformer loses on the way is seen.
"""

import math
from functools import partial
from unittest import mock

import numpy as np
import torch
from numformer.models.config import Config
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F

from numformer.backend import dropout_stream
from numformer.data.batching import Batch
from numformer.gradient_check.cases import TransformerWithLoss
from numformer.gradient_check.gradients import GradientCheck
from numformer.layers.activation import ReLU
from numformer.layers.attention import (
    CrossAttention,
    MultiHeadAttention,
    ScaledDotProductAttention,
    SelfAttention,
)
from numformer.layers.cross_entropy import CrossEntropy
from numformer.layers.dropout import Dropout
from numformer.layers.embedding import Embedding
from numformer.layers.feed_forward import FeedForward
from numformer.layers.layer_norm import LayerNorm
from numformer.layers.linear import Linear, OutputProjection
from numformer.layers.positional import LearnedPositions, SinusoidalPositions
from numformer.layers.residual import Residual
from numformer.layers.scores import AdditiveScore, DotProductScore, MultiplicativeScore
from numformer.layers.softmax import Softmax
from numformer.models.encoder_decoder import (
    Decoder,
    DecoderLayer,
    Encoder,
    EncoderLayer,
    Transformer,
)

# The arrays are small: more threads would only wait for each other.
torch.set_num_threads(1)

# Dropout: numformer's stream says which values fall, so that both sides drop the same ones. It is
# drawn from in the order of torch's own forward.

torch_attention = F.scaled_dot_product_attention


def dropout(x, p=0.5, training=True, inplace=False):
    """In the place of torch.nn.functional.dropout."""
    if not p:
        return x
    p = round(p * 2**16) / 2**16  # 16 random bits decide each value
    keep = dropout_stream.keep(tuple(x.shape), p, like=np.zeros(0))
    return torch.where(torch.from_numpy(keep != 0), x / (1 - p), 0.0)


def attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False):
    """In the place of torch.nn.functional.scaled_dot_product_attention."""
    if not dropout_p:
        return torch_attention(query, key, value, attn_mask)
    # Attention to the rows of the identity matrix returns the weights.
    identity = torch.eye(key.shape[-2]).to(key).expand(*key.shape[:-1], -1)
    return dropout(torch_attention(query, key, identity, attn_mask), dropout_p) @ value


with_numformers_dropout = mock.patch.multiple(
    F, dropout=dropout, scaled_dot_product_attention=attention
)


# Layers


def within(p, part):
    """The parameters of one part, under the names that they have inside it."""
    return {
        name.removeprefix(f"{part}."): tensor
        for name, tensor in p.items()
        if name.startswith(f"{part}.")
    }


def linear(layer, p, x):
    return F.linear(x, p["weight"].T, p.get("bias"))


def output_projection(layer, p, x):
    return F.linear(x, p["weight"])


def relu(layer, p, x):
    return F.relu(x)


def softmax(layer, p, scores, mask=None):
    if mask is None:
        return F.softmax(scores, dim=-1)
    # Of a row with every key masked torch's softmax makes NaN (its attention makes zeros, as ours).
    attends = mask.any(dim=-1, keepdim=True)
    weights = F.softmax(scores.masked_fill(~mask & attends, -math.inf), dim=-1)
    return weights.masked_fill(~attends, 0)


def layer_norm(layer, p, x):
    return F.layer_norm(x, x.shape[-1:], p["gamma"], p["beta"], layer.epsilon)


def dropout_layer(layer, p, x):
    return F.dropout(x, layer.p_drop)


def embedding(layer, p, ids):
    return F.embedding(ids, p["weight"]) * math.sqrt(p["weight"].shape[1])


def sinusoidal_positions(layer, p, x):
    _, length, d_model = x.shape
    dimension = torch.arange(d_model)
    power = 10000.0 ** ((dimension - dimension % 2).double() / d_model)
    angle = torch.arange(length)[:, None] / power
    return x + torch.where(dimension % 2 == 0, angle.sin(), angle.cos()).to(x.dtype)


def learned_positions(layer, p, x, positions=None):
    positions = torch.arange(x.shape[1]) if positions is None else positions
    return x + p["weight"][positions]


def scaled_dot_product_attention(layer, p, query, key, value, mask):
    return F.scaled_dot_product_attention(query, key, value, mask, layer.dropout.p_drop)


def dot_product_score(layer, p, query, key):
    scale = 1 / math.sqrt(key.shape[-1]) if layer.scaled else 1
    return torch.einsum("...tk,...sk->...ts", query * scale, key)


def pairs(query, key):
    """Each query beside each key: (..., T, S, K_q) and (..., T, S, K_k)."""
    sizes = *query.shape[:-1], key.shape[-2], -1
    return query.unsqueeze(-2).expand(sizes), key.unsqueeze(-3).expand(sizes)


def multiplicative_score(layer, p, query, key):
    return F.bilinear(*pairs(query, key), p["weight"][None]).squeeze(-1)


def additive_score(layer, p, query, key):
    # W_q and W_k one below the other are one weight for a query and a key side by side.
    weight = torch.cat([p["query_weight"], p["key_weight"]])
    hidden = F.linear(torch.cat(pairs(query, key), dim=-1), weight.T).tanh()
    return F.linear(hidden, p["v"].T).squeeze(-1)


class AnySizeAttention(nn.Module):
    """nn.MultiheadAttention, but for any d_k and d_v; torch has d_model / heads only."""

    def __init__(self, d_model, heads, d_k, d_v, p_drop):
        super().__init__()
        self.heads, self.dropout = heads, p_drop
        self.sizes = [heads * d_k, heads * d_k, heads * d_v]
        self.in_proj_weight = nn.Parameter(torch.empty(sum(self.sizes), d_model))
        self.in_proj_bias = nn.Parameter(torch.empty(sum(self.sizes)))
        self.out_proj = nn.Linear(heads * d_v, d_model)

    def forward(self, query, key, value, attn_mask, **options):
        weights, biases = self.in_proj_weight.split(self.sizes), self.in_proj_bias.split(self.sizes)
        projected = map(F.linear, (query, key, value), weights, biases)
        heads = F.scaled_dot_product_attention(
            *(x.unflatten(-1, (self.heads, -1)).transpose(1, 2) for x in projected),
            attn_mask.unflatten(0, (-1, self.heads)),
            self.dropout,
        )
        return self.out_proj(heads.transpose(1, 2).flatten(2)), None


def attention_module(d_model, heads, d_k, d_v, p_drop):
    if d_k == d_v == d_model // heads:
        return nn.MultiheadAttention(d_model, heads, p_drop, batch_first=True)
    return AnySizeAttention(d_model, heads, d_k, d_v, p_drop)


def attention_state(p, has_bias):
    """The parameters of a numformer attention as nn.MultiheadAttention has them."""

    def bias(name):
        weight = p[f"{name}.weight"]
        return p[f"{name}.bias"] if has_bias else weight.new_zeros(weight.shape[1])

    inputs = ("query", "key", "value")
    return {
        "in_proj_weight": torch.cat([p[f"{name}.weight"].T for name in inputs]),
        "in_proj_bias": torch.cat([bias(name) for name in inputs]),
        "out_proj.weight": p["output.weight"].T,
        "out_proj.bias": bias("output"),
    }


def attention_mask(mask, heads, x, memory):
    """True = may attend, broadcast to (B, H, T, S) -> 0 or -inf (B H, T, S), as torch wants it."""
    mask = mask.expand(len(x), heads, x.shape[1], memory.shape[1]).flatten(0, 1)
    return x.new_zeros(mask.shape).masked_fill(~mask, -math.inf)


def multi_head_attention(layer, p, x, memory, mask):
    module = attention_module(
        x.shape[-1], layer.heads, layer.d_k, layer.d_v, layer.attention.dropout.p_drop
    )
    mask = attention_mask(mask, layer.heads, x, memory)
    state = attention_state(p, has_bias="query.bias" in p)
    options = dict(attn_mask=mask, need_weights=False)
    return functional_call(module, state, (x, memory, memory), options, strict=True)[0]


def self_attention(layer, p, x, mask):
    return multi_head_attention(layer, p, x, x, mask)


def feed_forward(layer, p, x):
    hidden = F.dropout(F.relu(linear(None, within(p, "inner"), x)), layer.dropout.p_drop)
    return linear(None, within(p, "outer"), hidden)


def residual(layer, p, x, *others):
    sublayer = partial(reference(layer.sublayer), within(p, "sublayer"))
    norm = partial(layer_norm, layer.norm, within(p, "norm"))
    if layer.norm_first:
        return x + F.dropout(sublayer(norm(x), *others), layer.dropout.p_drop)
    return norm(x + F.dropout(sublayer(x, *others), layer.dropout.p_drop))


def smoothed_loss(logits, targets, smoothing):
    return F.cross_entropy(
        logits.flatten(0, 1), targets.flatten(), ignore_index=0, label_smoothing=smoothing
    )


def cross_entropy(layer, p, logits, targets):
    return smoothed_loss(logits, targets, layer.smoothing)


# What a Config composes


def layer_module(config, kind, attentions):
    """torch's encoder or decoder layer, its attentions and dropouts set as `config` says."""
    one_head = 1  # the attentions are replaced below; torch's own heads must divide d_model
    module = kind(
        config.d_model,
        one_head,
        config.d_ff,
        config.p_drop,
        batch_first=True,
        norm_first=config.norm == "pre",
    )
    module.dropout.p = config.activation_dropout
    size = config.d_model // config.heads
    for name in attentions:
        attention = attention_module(
            config.d_model,
            config.heads,
            config.d_k or size,
            config.d_v or size,
            config.attention_dropout,
        )
        setattr(module, name, attention)
    return module


def layer_state(config, p, attentions):
    """The parameters of an encoder or decoder layer as torch's has them.

    `attentions` has numformer's name for each of torch's attentions.
    """
    state = {}
    for name, part in attentions.items():
        of_attention = attention_state(within(p, f"{part}.sublayer"), config.attention_bias)
        state |= {f"{name}.{key}": tensor for key, tensor in of_attention.items()}
    for number, part in enumerate([*attentions.values(), "feed_forward"], 1):
        state[f"norm{number}.weight"] = p[f"{part}.norm.gamma"]
        state[f"norm{number}.bias"] = p[f"{part}.norm.beta"]
    for name, part in {"linear1": "inner", "linear2": "outer"}.items():
        state[f"{name}.weight"] = p[f"feed_forward.sublayer.{part}.weight"].T
        state[f"{name}.bias"] = p[f"feed_forward.sublayer.{part}.bias"]
    return state


def encoder_layer(config, p, x, mask):
    attentions = {"self_attn": "self_attention"}
    module = layer_module(config, nn.TransformerEncoderLayer, attentions)
    mask = attention_mask(mask, config.heads, x, x)
    return functional_call(module, layer_state(config, p, attentions), (x, mask), strict=True)


def decoder_layer(config, p, x, memory, target_mask, source_mask):
    attentions = {"self_attn": "self_attention", "multihead_attn": "cross_attention"}
    module = layer_module(config, nn.TransformerDecoderLayer, attentions)
    masks = (
        attention_mask(target_mask, config.heads, x, x),
        attention_mask(source_mask, config.heads, x, memory),
    )
    return functional_call(
        module, layer_state(config, p, attentions), (x, memory, *masks), strict=True
    )


def stack(config, p, ids, layer, *others):
    positions = learned_positions if config.positions == "learned" else sinusoidal_positions
    x = embedding(None, within(p, "embedding"), ids)
    x = F.dropout(positions(None, within(p, "positions"), x), config.p_drop)
    for number in range(config.layers):
        x = layer(config, within(p, f"layers.{number}"), x, *others)
    if config.norm == "pre":
        x = F.layer_norm(x, x.shape[-1:], p["norm.gamma"], p["norm.beta"])
    return x


def encoder(config, p, source, mask):
    return stack(config, p, source, encoder_layer, mask)


def decoder(config, p, target, memory, target_mask, source_mask):
    return stack(config, p, target, decoder_layer, memory, target_mask, source_mask)


def transformer(config, p, source, target):
    of_encoder, of_decoder = within(p, "encoder"), within(p, "decoder")
    if config.tying == "all":
        of_decoder["embedding.weight"] = of_encoder["embedding.weight"]
    output = p["output.weight"] if config.tying == "none" else of_decoder["embedding.weight"]
    source_mask = (source != 0)[:, None, None, :]
    causal = torch.ones(target.shape[1], target.shape[1], dtype=torch.bool).tril()
    target_mask = (target != 0)[:, None, None, :] & causal
    memory = encoder(config, of_encoder, source, source_mask)
    return F.linear(decoder(config, of_decoder, target, memory, target_mask, source_mask), output)


def transformer_with_loss(config, p, source, target_in, target_out):
    logits = transformer(config, within(p, "model"), source, target_in)
    return smoothed_loss(logits, target_out, config.label_smoothing)


OF_LAYER = {
    Linear: linear,
    OutputProjection: output_projection,
    ReLU: relu,
    Softmax: softmax,
    LayerNorm: layer_norm,
    Dropout: dropout_layer,
    Embedding: embedding,
    SinusoidalPositions: sinusoidal_positions,
    LearnedPositions: learned_positions,
    ScaledDotProductAttention: scaled_dot_product_attention,
    DotProductScore: dot_product_score,
    MultiplicativeScore: multiplicative_score,
    AdditiveScore: additive_score,
    MultiHeadAttention: multi_head_attention,
    SelfAttention: self_attention,
    CrossAttention: multi_head_attention,
    FeedForward: feed_forward,
    Residual: residual,
    CrossEntropy: cross_entropy,
}
OF_CONFIG = {
    EncoderLayer: encoder_layer,
    DecoderLayer: decoder_layer,
    Encoder: encoder,
    Decoder: decoder,
    Transformer: transformer,
    TransformerWithLoss: transformer_with_loss,
}


def reference(layer, config=None):
    """The function (p, *inputs) that computes what `layer` does."""
    kind = type(layer)
    if kind in OF_CONFIG:
        return partial(OF_CONFIG[kind], config)
    assert kind in OF_LAYER, f"torch_reference.py needs a function for {kind.__name__}"
    return partial(OF_LAYER[kind], layer)


@with_numformers_dropout
def differentiate(checked: GradientCheck, config: Config) -> dict[str, np.ndarray]:
    """torch's "output" and, by the tensors' names, gradients of what `checked` holds."""
    leaves = {
        name: torch.tensor(array, requires_grad=True) for name, array in checked.tensors.items()
    }
    leaf_of = {id(array): leaves[name] for name, array in checked.tensors.items()}
    inputs = [
        leaf_of.get(id(value), torch.tensor(value)) if isinstance(value, np.ndarray) else value
        for value in checked.inputs
    ]
    dropout_stream.reseed(checked.seed, 0)
    output = reference(checked.layer, config)(leaves, *inputs)
    gradients = torch.autograd.grad(output, leaves.values(), torch.from_numpy(checked.upstream))
    results = {"output": output.detach(), **dict(zip(leaves, gradients, strict=True))}
    return {name: tensor.numpy() for name, tensor in results.items()}


def loss_of_batch(config, p, batch):
    source, target_in, target_out = map(
        torch.from_numpy, (batch.source, batch.target_in, batch.target_out)
    )
    return smoothed_loss(
        transformer(config, p, source, target_in), target_out, config.label_smoothing
    )


def gradients(
    config: Config, weights: dict[str, np.ndarray], batch: Batch
) -> dict[str, np.ndarray]:
    """torch's gradients of the loss, without dropout, in the dtype of `weights`."""
    p = {name: torch.tensor(array, requires_grad=True) for name, array in weights.items()}
    of_weights = torch.autograd.grad(loss_of_batch(config, p, batch), p.values())
    return {name: gradient.numpy() for name, gradient in zip(p, of_weights, strict=True)}


@with_numformers_dropout
def train(
    config: Config, weights: dict[str, np.ndarray], batches: list[Batch], seed: int
) -> dict[str, np.ndarray]:
    """torch's losses, gradient norms and final weights after one step on each batch.

    It computes in the dtype of `weights`.
    """
    p = {name: nn.Parameter(torch.tensor(array)) for name, array in weights.items()}
    optimizer = torch.optim.Adam(
        p.values(), lr=1, betas=(config.beta1, config.beta2), eps=config.adam_epsilon
    )

    def rate(steps_taken):  # section 5.3, equation 3
        step = steps_taken + 1
        peak = config.factor / math.sqrt(config.d_model * config.warmup)
        if config.decay == "linear":
            return np.interp(step, [0, config.warmup, len(batches) + 1], [0, peak, 0])
        return peak * min(step / config.warmup, math.sqrt(config.warmup / step))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    losses, norms = [], []
    for step, batch in enumerate(batches, 1):
        dropout_stream.reseed(seed, step)
        loss = loss_of_batch(config, p, batch)
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.get_total_norm([parameter.grad for parameter in p.values()])
        if config.clip_norm is not None:
            # torch divides by the norm plus 1e-6, numformer by the norm.
            nn.utils.clip_grads_with_norm_(p.values(), config.clip_norm, norm - 1e-6)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        norms.append(norm.item())
    final = {name: parameter.detach().numpy() for name, parameter in p.items()}
    return {"losses": np.array(losses), "norms": np.array(norms), **final}
