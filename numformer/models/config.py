"""Config: every decision of the paper as a field, with the paper's choice as its default."""

import math
from dataclasses import dataclass, field, fields
from typing import Literal, get_args, get_origin

from numformer.data.vocabulary import SPECIAL
from numformer.errors import InputError
from numformer.layers.attention import head_size


def _choice(default, what: str):
    """A field of Config with its default and, for --help, what it is."""
    return field(default=default, metadata={"help": what})


@dataclass(frozen=True, kw_only=True)
class Config:
    """What a Transformer is made of and how it is trained; defaults are the paper's base model.

    The two vocabulary sizes belong to the task. All else is the paper's: sections 3 and 5, and
    Table 3 for what it varies. Raises InputError for values that do not fit together.
    """

    source_vocabulary: int
    target_vocabulary: int
    d_model: int = _choice(512, "width of every position's vector (3.1)")
    d_ff: int = _choice(2048, "width inside the feed-forward network (3.3)")
    heads: int = _choice(8, "attention heads, h (3.2.2)")
    d_k: int | None = _choice(None, "size of a query or key; d_model / heads, 64 in the paper")
    d_v: int | None = _choice(None, "size of a value; d_model / heads, 64 in the paper")
    layers: int = _choice(6, "layers of the encoder, and of the decoder (3.1)")
    norm: Literal["post", "pre"] = _choice("post", "where LayerNorm stands around a sublayer (3.1)")
    attention_bias: bool = _choice(False, "biases in the projections of attention (3.2.2 has none)")
    activation: Literal["relu"] = _choice("relu", "inside the feed-forward network (3.3)")
    positions: Literal["sinusoidal", "learned"] = _choice(
        "sinusoidal", "how positions are encoded (3.5; learned: Table 3, row E)"
    )
    max_length: int = _choice(512, "longest sequence that learned positions can take")
    tying: Literal["all", "target", "none"] = _choice(
        "all", "who shares the output's weights (3.4)"
    )
    p_drop: float = _choice(0.1, "dropout on sublayer outputs and embedding sums (5.4)")
    attention_dropout: float = _choice(0.0, "dropout on attention weights (not in the paper)")
    activation_dropout: float = _choice(0.0, "dropout after the activation (not in the paper)")
    label_smoothing: float = _choice(0.1, "probability spread over all symbols (5.4)")
    beta1: float = _choice(0.9, "Adam's decay of the mean gradient (5.3)")
    beta2: float = _choice(0.98, "Adam's decay of the mean squared gradient (5.3)")
    adam_epsilon: float = _choice(1e-9, "Adam's epsilon (5.3)")
    warmup: int = _choice(4000, "steps in which the learning rate rises (5.3, equation 3)")
    factor: float = _choice(1.0, "multiplies the learning rate of equation 3")
    decay: Literal["inverse_sqrt", "linear"] = _choice(
        "inverse_sqrt",
        "how the learning rate falls after warm-up (5.3; linear is not in the paper)",
    )
    clip_norm: float | None = _choice(
        None, "largest global norm of a gradient (the paper does not clip)"
    )

    def __post_init__(self):
        for name in ("source_vocabulary", "target_vocabulary", "d_model", "d_ff", "heads", "d_k",
                     "d_v", "layers", "max_length", "warmup"):  # fmt: skip
            value = getattr(self, name)
            may_be_missing = name in ("d_k", "d_v") and value is None
            whole = type(value) is int and value >= 1
            self._require(name, whole or may_be_missing, "an integer of at least 1")
        for name in ("p_drop", "attention_dropout", "activation_dropout", "label_smoothing",
                     "beta1", "beta2"):  # fmt: skip
            self._require(name, self._number(name) and 0 <= getattr(self, name) < 1,
                          "a number of at least 0 and below 1")  # fmt: skip
        for name in ("adam_epsilon", "factor"):
            self._require(name, self._number(name) and getattr(self, name) > 0, "a number above 0")
        clips = self.clip_norm is None or (self._number("clip_norm") and self.clip_norm > 0)
        self._require("clip_norm", clips, "a number above 0, or None")
        for name in ("source_vocabulary", "target_vocabulary"):
            self._require(name, getattr(self, name) > len(SPECIAL),
                          f"above {len(SPECIAL)}, the number of special ids")  # fmt: skip
        for each in fields(self):
            if get_origin(each.type) is Literal:
                choices = get_args(each.type)
                self._require(each.name, getattr(self, each.name) in choices, " or ".join(choices))
        self._require("attention_bias", type(self.attention_bias) is bool, "True or False")
        if self.d_k is None or self.d_v is None:
            head_size(self.d_model, self.heads)
        if self.tying == "all" and self.source_vocabulary != self.target_vocabulary:
            raise InputError(
                "tying all needs one vocabulary for source and target",
                f"sizes {self.source_vocabulary} and {self.target_vocabulary}",
                'Use one vocabulary for both, or tying "target" or "none".',
            )

    def _number(self, name: str) -> bool:
        value = getattr(self, name)
        return isinstance(value, int | float) and value < math.inf

    def _require(self, name: str, holds: bool, rule: str):
        if not holds:
            raise InputError(
                f"{name} is {rule}", repr(getattr(self, name)), f"Change {name} (see Config)."
            )

    @property
    def least_parameters(self) -> int:
        """No model of this Config has fewer: the entries of its matrices."""
        d_k_and_d_v = sum(size or self.d_model // self.heads for size in (self.d_k, self.d_v))
        tables = self.source_vocabulary
        tables += self.target_vocabulary * ("all", "target", "none").index(self.tying)
        tables += 2 * self.max_length * (self.positions == "learned")
        # An encoder and a decoder layer have three attentions and two feed-forward networks.
        widths = 6 * self.heads * d_k_and_d_v + 4 * self.d_ff
        return self.d_model * (tables + self.layers * widths)

    @classmethod
    def base(cls, vocabulary: int, **changes) -> "Config":
        """The paper's base model (Table 3, first row) on one shared vocabulary."""
        return cls(source_vocabulary=vocabulary, target_vocabulary=vocabulary, **changes)

    @classmethod
    def big(cls, vocabulary: int, **changes) -> "Config":
        """The paper's big model (Table 3, last row) on one shared vocabulary."""
        big = dict(d_model=1024, d_ff=4096, heads=16, p_drop=0.3)
        return cls.base(vocabulary, **(big | changes))
