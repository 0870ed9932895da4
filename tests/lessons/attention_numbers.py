"""What lesson 3's example gives, computed by numformer, for the tests of its text and pages."""

import numpy as np

import lessons
from numformer.layers.attention import (
    scaled_dot_product_attention,
    scaled_dot_product_attention_backward,
)
from numformer.layers.softmax import softmax_backward

MASKS = {
    "none": np.ones((4, 4), dtype=bool),
    "causal": np.tril(np.ones((4, 4), dtype=bool)),
    "padding": np.ones((4, 4), dtype=bool) & (np.arange(4) != 3),
    "nothing": np.ones((4, 4), dtype=bool) & (np.arange(4) != 2)[:, None],
}


def computed(mask, temperature: float, doutput) -> dict[str, np.ndarray]:
    """What numformer computes for the lesson's example, under the stepper's names."""
    lesson = lessons.load(3)
    query, key, value = lesson.query / temperature, lesson.key, lesson.value
    output, weights, dropped = scaled_dot_product_attention(query, key, value, mask)
    gradients = scaled_dot_product_attention_backward(
        doutput, query, key, value, weights, dropped, None
    )
    dweights = doutput @ value.T
    dscaled = softmax_backward(dweights, weights)
    found = dict(zip(("dquery", "dkey", "dvalue"), gradients, strict=True))
    scores = query @ key.T
    masked = np.where(mask, scores / 2, -np.inf)
    return found | dict(
        query=query, key=key, value=value, scores=scores, scaled=scores / 2, masked=masked,
        weights=weights, output=output, doutput=doutput, dweights=dweights, dscaled=dscaled,
        dscores=dscaled / 2, allowed=mask,
    )  # fmt: skip


def evaluated(text: str) -> float:
    """The value of arithmetic as the page writes it."""
    return eval(text.replace("−", "-").replace("·", "*").replace("max(0, 1)", "1"))
