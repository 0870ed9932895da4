"""The two small models of the explorer, and their forward as a page repeats it.

Their weights are stored in float16 (weights.safetensors), which is small enough for a page. Every
sentence is padded to one length, and its ids give the mask, so that one recording serves them all.
"""

import base64
import contextlib
import functools
import string
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from lessons.kit import models
from lessons.kit.recording import Recording
from numformer import Config, Transformer, greedy, pad_sources
from numformer.backend import array_module
from numformer.data import Vocabulary
from numformer.data.vocabulary import END, PADDING, SPECIAL, START
from numformer.interception import intercept
from numformer.later.attention.tiles import attention_weights
from numformer.layer import FlatParameters, Layer, mode
from numformer.layer import pack as packed
from numformer.paper.attention import MultiHeadAttention, ScaledDotProductAttention
from numformer.paper.masks import causal_mask
from numformer.paper.softmax import softmax

FILE = Path(__file__).with_name("weights.safetensors")
LENGTH = 20  # of a padded sentence, its end mark included
LAYERS, HEADS = 3, 4
KINDS = "encoder", "decoder", "cross"  # of attention, in the order of the explorer's rows
LETTERS = string.ascii_lowercase
CONFIGS = {
    "translator": dict(d_model=80, d_ff=160, norm="pre"),
    "reverse": dict(d_model=32, d_ff=64),
}


@functools.cache
def symbols(name: str) -> tuple[str, ...]:
    """The symbols of a model in the order of their ids: marks, then letters or subwords."""
    if name == "reverse":
        return (*SPECIAL, *Vocabulary(LETTERS).symbols)
    return (*SPECIAL, *models.measured(11)["pieces"])


def config(name: str) -> Config:
    sizes = dict(heads=HEADS, layers=LAYERS, p_drop=0.0)
    return Config.base(len(symbols(name)), **sizes, **CONFIGS[name])


@functools.cache
def weights(name: str) -> np.ndarray:
    """All weights of a model, float16, in one vector."""
    return load_file(FILE)[name]


def model(name: str, dtype: type[np.floating] = np.float64) -> Transformer:
    """A model with the stored weights."""
    made = Transformer(config(name))
    packed(made, dtype).data[...] = weights(name)
    return made


class Softened(ScaledDotProductAttention):
    """Attention at a temperature: softmax(Q K^T / (temperature sqrt(d_k))) V."""

    def __init__(self, temperature):
        super().__init__()
        self.temperature = temperature

    def forward(self, query, key, value, mask=None):
        return super().forward(query / self.temperature, key, value, mask)


def soften(model: Layer, temperature) -> None:
    """Give every attention of a model this temperature."""
    for layer in model.layers_within():
        if isinstance(layer, MultiHeadAttention):
            layer.attention = Softened(temperature)


def looks(tower: Layer, part: str):
    """The attention weights of a tower's latest forward: (layers, heads, T, S)."""
    of_layers = [attention_weights(getattr(layer, part).sublayer)[0] for layer in tower.layers]
    return array_module(of_layers[0]).stack(of_layers)


def valid(ids, like):
    """ids (S,) -> (1, 1, 1, S): True where there is no padding."""
    return (array_module(like).asarray(ids) != PADDING)[None, None, None]


@contextlib.contextmanager
def streams(tower: Layer, method: str) -> Iterator[list]:
    """Within the block, the list gets what flows between the layers of a tower.

    That is what enters the first layer that is called, then what each layer returns, (T, D).
    """
    seen: list = []

    def around(_, call, x, *others):
        if not seen:
            seen.append(x[0].copy())
        result = call(x, *others)
        seen.append((result[0] if isinstance(result, tuple) else result)[0].copy())
        return result

    with intercept(dict(enumerate(tower.layers)), method, around):
        yield seen


def encode(model: Transformer, source) -> dict:
    """Padded ids (S,) -> the memory (1, S, D), where the encoder looked, and its streams.

    The streams (layers + 1, S, D) are the vectors that enter the layers and leave the last one.
    """
    x = model.source.forward(source[None])
    with streams(model.encoder, "forward") as seen:
        memory = model.encoder.forward(x, valid(source, x))
    between = array_module(x).stack(seen)
    looked = looks(model.encoder, "self_attention")
    return {"memory": memory, "encoder": looked, "encoder streams": between}


def decode(model: Transformer, source, memory, target, here=None) -> dict:
    """The decoder's padded ids (T,), start mark first -> logits, where it looked, its streams.

    The logits, and the chances that they give the symbols, are those of the positions `here` (N,),
    (N, V), or else of all, (T, V).
    """
    x = model.target.forward(target[None])
    xp, seen = array_module(x), valid(source, x)
    with streams(model.decoder, "forward") as between:
        y = model.decoder.forward(x, causal_mask(len(target)), memory, seen)[0]
    logits = model.output.forward(y if here is None else y[xp.asarray(here)])
    return {
        "logits": logits,
        "chances": softmax(logits),
        "decoder": looks(model.decoder, "self_attention"),
        "cross": looks(model.decoder, "cross_attention"),
        "decoder streams": xp.stack(between),
    }


def padded(ids: Sequence[int]) -> np.ndarray:
    """Ids, with their end mark or start mark -> (LENGTH,)."""
    return np.array([*ids, *[PADDING] * (LENGTH - len(ids))])


@functools.cache
def tempered(name: str, temperature: float) -> Transformer:
    made = model(name)
    soften(made, temperature)
    return made


@functools.cache
def written(name: str, source: tuple[int, ...], temperature: float = 1.0) -> tuple[int, ...]:
    """What a model greedily writes for the ids of a sentence, with the end mark if it fits."""
    (ids,) = greedy(tempered(name, temperature), pad_sources([source]), LENGTH)
    return (*ids, END)[:LENGTH]


@functools.cache
def attention(
    name: str, source: tuple[int, ...], target: tuple[int, ...], temperature: float = 1.0
) -> dict[str, np.ndarray]:
    """Where every head looked, (layers, heads, rows, columns) by kind, without padding.

    `source` has no end mark yet; `target` is what was written.
    """
    made, ids = tempered(name, temperature), padded([*source, END])
    with mode(training=False, saving=True):
        read = encode(made, ids)
        begun, last = padded([START, *target[:-1]]), np.array([len(target) - 1])
        wrote = decode(made, ids, read["memory"], begun, last)
    made.clear_saved()
    read_to, wrote_to = len(source) + 1, len(target)
    ends = {"encoder": (read_to, read_to), "decoder": (wrote_to, wrote_to)}
    ends["cross"] = wrote_to, read_to
    return {kind: (read | wrote)[kind][..., :rows, :to] for kind, (rows, to) in ends.items()}


def recordings(name: str) -> dict:
    """Recordings of encoder and decoder for the page, and beside them their weights in base64."""
    like, vector = weights(name).astype(float), {}
    for part in ("encode", "decode"):
        with Recording() as recording, mode(training=False, saving=True):
            given = recording.given("given weights", like)
            made = Transformer(config(name))
            flat = given.copy() * 0
            FlatParameters(given, flat, [*made.named_parameters().values()])
            soften(made, recording.given("given temperature", 1.0))
            source = recording.given_ids("given source", padded([END]))
            if part == "encode":
                arrays = encode(made, source)
            else:
                memory = np.zeros((1, LENGTH, made.config.d_model))
                memory = recording.given("given memory", memory)
                target = recording.given_ids("given target", padded([START]))
                here = recording.given_ids("given here", [0])
                arrays = decode(made, source, memory, target, here)
            for array_name, array in arrays.items():
                recording.name(array_name, array)
        recorded = recording.data()
        at, size = recorded["names"]["given weights"]
        recorded["buffers"][at] = size
        vector[part] = recorded
    text = base64.b64encode(weights(name).astype("<f2").tobytes()).decode()
    return {**vector, "weights": text, "symbols": symbols(name)}
