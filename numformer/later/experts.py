"""A mixture of experts: a router sends each position to a few of many feed-forward networks.

The idea is from Shazeer et al. 2017, the balance loss from GShard (Lepikhin et al. 2021), and the
weighting of experts from Mixtral (Jiang et al. 2024). An expert has no maximum capacity, so no
position is dropped.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from numformer import settings
from numformer.arithmetic import dot_last, rows
from numformer.backend import array_module, to_host
from numformer.errors import InputError
from numformer.later.auxiliary import add_auxiliary_loss, auxiliary_gradient
from numformer.later.feed_forward import DenseFeedForward
from numformer.later.pick import pick, pick_backward
from numformer.layer import Array, Layer
from numformer.paper.decoder import DecoderLayer
from numformer.paper.encoder import EncoderLayer
from numformer.paper.linear import Linear
from numformer.paper.masks import Reach
from numformer.paper.memory import Memory
from numformer.paper.softmax import softmax, softmax_backward


def route(scores, count: int):
    """scores (N, E) -> weights (N, E), chosen (N, E) for the `count` highest scores of each row.

    chosen is True at these scores. weights is the softmax of the chosen scores, and 0 elsewhere.
    Of equal scores, the first is chosen.
    """
    xp = array_module(scores)
    order = xp.argsort(-scores, kind="stable")
    chosen = xp.argsort(order) < count  # argsort(order) is the rank of each score
    return softmax(scores, chosen), chosen


def route_backward(dweights, weights):
    """dweights, weights (N, E) -> dscores (N, E). The choice itself has no gradient."""
    return softmax_backward(dweights, weights)


def balance(scores, chosen):
    """scores, chosen (N, E) -> scalar loss (), probabilities (N, E), shares (E).

    loss = E sum_e shares_e mean(probabilities_e), where shares_e is expert e's share of all choices
    and probabilities = softmax(scores). The loss is 1 if all experts are chosen equally often.
    """
    probabilities = softmax(scores)
    choices = chosen.astype(scores.dtype).sum(axis=0)
    shares = choices / choices.sum()
    loss = len(shares) * (shares * probabilities).sum() / len(scores)
    return loss, probabilities, shares


def balance_backward(dloss, probabilities, shares):
    """scalar dloss (), probabilities (N, E), constant shares (E) -> dscores (N, E)."""
    count, experts = probabilities.shape
    dprobabilities = array_module(shares).broadcast_to(
        dloss * experts / count * shares, probabilities.shape
    )
    return softmax_backward(dprobabilities, probabilities)


class Experts(Layer):
    """x (B, T, D) or rows (N, D), reach -> the same shape: y = sum_e weight_e FFN_e(x).

    The sum is over the `count` experts with the highest scores x W; the weights are the softmax of
    these scores. Padding in x (B, T, D), which `reach` marks, goes to no expert, and y is 0 there.
    The auxiliary loss is `balance_weight` times the loss that `balance` computes. On a GPU, each
    forward waits for the device once, to read which rows each expert gets.
    """

    role = "feed_forward"

    def __init__(
        self,
        experts: Sequence[Layer],
        d_model: int,
        rng: np.random.Generator,
        count: int = 2,
        balance_weight: float = 0.01,
    ):
        self.experts = experts
        self.router = Linear(d_model, len(experts), rng, bias=False)
        self.count, self.balance_weight = count, balance_weight

    def forward(self, x: Array, reach: Any = None) -> Array:
        places = real_places(x, reach)
        real = rows(x) if places is None else pick(x, places)
        scores = self.router.forward(real)
        weights, chosen = route(scores, self.count)
        loss, probabilities, shares = balance(scores, chosen)
        add_auxiliary_loss(self.balance_weight * loss)
        y, results = array_module(x).zeros_like(real), []
        for number, indices in expert_rows(chosen):
            result = self.experts[number].forward(real.take(indices, axis=0))
            y[indices] += weights[indices, number][:, None] * result
            results.append((number, indices, result))
        routing = dict(weights=weights, results=results, places=places, shape=x.shape)
        self.save(**routing, probabilities=probabilities, shares=shares)
        return y.reshape(x.shape) if places is None else pick_backward(y, places, x.shape)

    def backward(self, dy: Array) -> Array:
        saved = self.pop_saved()
        places, shape, weights = saved["places"], saved["shape"], saved["weights"]
        dreal = rows(dy) if places is None else pick(dy, places)
        xp = array_module(dy)
        dx, dweights = xp.zeros_like(dreal), xp.zeros_like(weights)
        for number, indices, result in reversed(saved["results"]):
            dresult = dreal.take(indices, axis=0)
            dweights[indices, number] = dot_last(dresult, result)[:, 0]
            dresult *= weights[indices, number][:, None]  # y += weight * result
            dx[indices] += self.experts[number].backward(dresult)
        dloss = self.balance_weight * auxiliary_gradient()
        dscores = route_backward(dweights, weights)
        dscores += balance_backward(dloss, saved["probabilities"], saved["shares"])
        dx += self.router.backward(dscores)  # x goes to the experts and to the router
        return dx.reshape(shape) if places is None else pick_backward(dx, places, shape)


def real_places(x, reach) -> Any:
    """Return the places (N,) of x that are not padding; None if no padding is known."""
    if x.ndim < 3 or not isinstance(reach, Reach) or reach.queries.all_valid:
        return None
    return array_module(x).asarray(reach.queries.real)


def expert_rows(chosen) -> list[tuple[int, Any]]:
    """chosen (N, E) -> (number, rows (n,)) of each expert that was chosen at least once."""
    xp, experts = array_module(chosen), map(np.flatnonzero, to_host(chosen).T)
    return [(number, xp.asarray(found)) for number, found in enumerate(experts) if len(found)]


class RoutedEncoderLayer(EncoderLayer):
    """x (B, T, D), reach -> (B, T, D): also passes the reach to the experts."""

    def forward(self, x: Array, reach: Any = None, past: Memory | None = None) -> Array:
        return self.feed_forward.forward(self.self_attention.forward(x, reach, past), reach)


class RoutedDecoderLayer(DecoderLayer):
    """x (B, T, D), reach, memory (B, S, D), memory_reach -> (B, T, D): experts get reach, too."""

    def forward(
        self,
        x: Array,
        reach: Any,
        memory: Array,
        memory_reach: Any = None,
        past: Memory | None = None,
    ) -> Array:
        x = self.self_attention.forward(x, reach, past)
        x = self.cross_attention.forward(x, memory, memory_reach, past)
        return self.feed_forward.forward(x, reach)


class MixtureOfExperts:
    """The entry "experts" of FEED_FORWARDS: each expert is a network of the entry "dense"."""

    EncoderLayer, DecoderLayer = RoutedEncoderLayer, RoutedDecoderLayer

    @dataclass(frozen=True, kw_only=True)
    class Settings(settings.Settings):
        """The settings of a mixture of experts."""

        experts: int = settings.size(8, "feed-forward networks in a layer")
        chosen_experts: int = settings.size(2, "experts for each position")
        balance_weight: float = settings.weight(
            0.01, "weight of the loss that makes routers choose all experts equally often"
        )

    @staticmethod
    def require(config) -> None:
        """Raise InputError if a position goes to more experts than there are."""
        if config.chosen_experts > config.experts:
            raise InputError(
                "chosen_experts is at most the number of experts",
                f"experts {config.experts}, chosen_experts {config.chosen_experts}",
                "Change one of them.",
            )

    @staticmethod
    def build(config, rng: np.random.Generator) -> Experts:
        """Build the experts that a TowerConfig describes."""
        experts = [DenseFeedForward.build(config, rng) for _ in range(config.experts)]
        sizes = config.d_model, rng, config.chosen_experts, config.balance_weight
        return Experts(experts, *sizes)

    @staticmethod
    def entries(config) -> int:
        """Return a lower bound on the entries in the matrices of the experts and the router."""
        return config.experts * DenseFeedForward.entries(config) + config.d_model * config.experts
