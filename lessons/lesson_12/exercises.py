"""The exercises of lesson 12: how large a model is, what it costs, and what came later."""

import math

import numpy as np

from lessons.kit.exercise import Exercise
from lessons.kit.solution import Mistake
from numformer.later.activations import swiglu


def gpt_size(d_model, d_ff, layers, vocabulary, places):
    """Sizes of M models (M,) -> attention, network, total (M,).

    attention and network: the parameters of these two in one
    layer. total: those of the whole model.

    The models are GPTs with pre-norm. Every product has a bias.
    Each symbol and each place has a row of d_model numbers. The
    logits use the rows of the symbols again, without a bias. A
    norm has 2 d_model numbers. There are two norms in each
    layer and one after the last layer.
    """
    # The size of one attention. There are four products.
    attention = 4 * d_model**2 + 4 * d_model
    # The size of one feed-forward network. Its two biases have different widths.
    network = 2 * d_model * d_ff + d_ff + d_model
    # The size of a layer's norms. A norm has a gain and a shift.
    norms = 4 * d_model
    # The size of a layer. It is an attention, a network, and its norms.
    layer = attention + network + norms
    # The size of the embeddings. Symbols have rows, and places have rows.
    embeddings = (vocabulary + places) * d_model
    # The total. One more part follows the last layer.
    total = layers * layer + embeddings + 2 * d_model
    return attention, network, total


def layer_work(d_model, d_ff, length):
    """Sizes of M encoder layers -> projections, pairs, network, step.

    All are (M,). Count operations (multiplications and
    additions) in matrix products. projections: those of
    queries, keys, values and output. pairs: those of scores
    and blends. network: those of the feed-forward network.
    step: all of these, in one forward and one backward.
    """
    # The work of the projections. A product of (T, D) and (D, D) takes T D D multiplications and
    # as many additions.
    projections = 8 * length * d_model**2
    # The work of the pairs. Every word meets every word twice: for its score and for its value.
    pairs = 4 * length**2 * d_model
    # The work of the network. It has two products.
    network = 4 * length * d_model * d_ff
    # The work of forward. It is the sum of all three.
    forward = projections + pairs + network
    # The work of a step. A product of forward has two gradients, and each of them is a product of
    # the same size.
    step = 3 * forward
    return projections, pairs, network, step


def one_softmax(query, source_key, key):
    """query, key (T, K), source_key (S, K) -> weights (T, S + T).

    An encoder-decoder becomes a decoder: the source stands
    before the target in one text, and one attention looks at
    both. Each position of the target sees the whole source
    and, in the target, itself and all earlier positions.
    """
    # The keys of the one text. The source stands first.
    keys = np.concatenate([source_key, key])
    # The scores. A query meets all keys.
    scores = query @ keys.T / math.sqrt(query.shape[-1])
    # The places of the queries in the text. They are counted from its very beginning.
    place = np.arange(len(query))[:, None] + source_key.shape[0]
    # What is seen. No later position is seen.
    seen = np.arange(len(keys)) <= place
    # The exponentials. They are 0 at a key that is not seen.
    exponentials = np.exp(scores) * seen
    # The weights. Those of a row add up to 1, over source and target together.
    weights = exponentials / exponentials.sum(axis=-1, keepdims=True)
    return weights


def swiglu_backward(dy, gate, value):
    """dy (T, F) -> dgate, dvalue (T, F).

    Forward was y = swish(gate) value, entry by entry, with
    swish(gate) = gate opened, opened = 1 / (1 + exp(-gate)).
    """
    # The share that is open. It is the logistic function of the gate.
    opened = 1 / (1 + np.exp(-gate))
    # The swish. The gate lets itself through.
    swish = gate * opened
    # dvalue. The value was multiplied by one factor.
    dvalue = dy * swish
    # The gradient of the swish. It was multiplied by one factor, too.
    dswish = dy * value
    # The slope of the swish. The gate occurs twice in it, so its slope has two parts.
    slope = opened + swish * (1 - opened)
    # dgate. It is the gradient that reaches the swish, times the slope of the swish.
    dgate = dswish * slope
    return dgate, dvalue


def gated(gate, value):
    return swiglu(np.concatenate([gate, value], axis=-1))[0], {}


OF_GATE = [
    Mistake(
        "slope",
        lambda opened: opened * (1 - opened),
        "That is the slope of the logistic function alone. The swish is its product with the gate.",
    ),
    Mistake(
        "slope",
        lambda gate: 1.0 * (gate > 0),
        "That is the slope of ReLU. The swish is smooth and goes below 0.",
    ),
]


def models(*names):
    """Sizes of three models: the first is GPT-2 small, the others are small."""
    sizes = dict(
        d_model=[768, 4, 6],
        d_ff=[3072, 10, 24],
        layers=[12, 3, 2],
        vocabulary=[50257, 11, 7],
        places=[1024, 5, 13],
        length=[1024, 5, 7],
    )
    return lambda n: {name: np.array(sizes[name], float) for name in names}


CALLED = {"B": "the number of models"}
EXERCISES = [
    Exercise(
        12,
        "How large is a GPT?",
        """Count the parameters of several models at once. The first of them is GPT-2 small, and its
total should be 124,439,808.""",
        gpt_size,
        models("d_model", "d_ff", "layers", "vocabulary", "places"),
        "124,439,808: exactly the parameters of GPT-2 small.",
        called=CALLED,
    ),
    Exercise(
        12,
        "What does a layer cost?",
        """Count the operations of an encoder layer, and those of a whole training step. Which part
grows with the square of the length?""",
        layer_work,
        models("d_model", "d_ff", "length"),
        "Set the pairs equal to the rest of forward: they are equal at T = 2 d_model + d_ff.",
        called=CALLED,
    ),
    Exercise(
        12,
        "Find the mistake",
        """Someone turned an encoder-decoder into a decoder: source and target became one text, and
cross-attention and self-attention became one attention. It runs, no position sees a later one, its
rows add up to 1, but it translates badly. Find the line and mend it.""",
        one_softmax,
        lambda n: dict(query=(n.T, n.K), source_key=(n.S, n.K), key=(n.T, n.K)),
        "Places are counted from the beginning of the text, so every target word sees the whole "
        "source.",
        to_find="place = np.arange(len(query))[:, None]",
    ),
    Exercise(
        12,
        "The gate, backwards",
        """Most language models of today use SwiGLU in place of ReLU. Where does the gradient of the
gate come from?""",
        swiglu_backward,
        lambda n: dict(gate=(n.T, n.D), value=(n.T, n.D)),
        "`numformer/later/activations.py` has the same lines, with fewer new arrays.",
        gated,
        OF_GATE,
        called={"T": "the number of positions", "D": "the width"},
    ),
]
