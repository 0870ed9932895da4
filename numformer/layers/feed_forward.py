"""FFN(x) = max(0, x W_1 + b_1) W_2 + b_2, the same at every position (section 3.3)."""

import numpy as np

from numformer.layer import Array, Layer
from numformer.layers.activation import ReLU
from numformer.layers.dropout import Dropout
from numformer.layers.linear import Linear


class FeedForward(Layer):
    """x (B, T, D) -> (B, T, D): FFN(x) = max(0, x W_1 + b_1) W_2 + b_2   (equation 2).

    The inner layer has d_ff values, or what an `activation` takes for d_ff. `p_drop` is dropout
    after the activation, which the paper does not mention; `bias` are b_1 and b_2.
    """

    role = "feed_forward"

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        rng: np.random.Generator,
        activation: type[Layer] = ReLU,
        p_drop: float = 0.0,
        bias: bool = True,
    ):
        taken = getattr(activation, "inputs", 1) * d_ff
        self.inner = Linear(d_model, taken, rng, bias)
        self.activation = activation()
        self.dropout = Dropout(p_drop)
        self.outer = Linear(d_ff, d_model, rng, bias)

    def forward(self, x: Array) -> Array:
        hidden = self.activation.forward(self.inner.forward(x))
        return self.outer.forward(self.dropout.forward(hidden))

    def backward(self, dy: Array) -> Array:
        dhidden = self.dropout.backward(self.outer.backward(dy))
        return self.inner.backward(self.activation.backward(dhidden))

    @classmethod
    def entries(cls, config) -> int:
        """The entries of its matrices, at least."""
        return 2 * config.d_model * config.d_ff
