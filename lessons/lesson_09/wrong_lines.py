"""Mistakes in backward functions of the library: which lines are replaced, and by what.

The runs of lesson 9 and the tests of the gradient check's diagnosis use this catalogue. A mistake
that is in the table of lessons/equations.md has the same name here; the table says how the gradient
check reports it.
"""

import contextlib
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from threadpoolctl import threadpool_limits

from numformer.later.attention.biased_attention import BiasedAttention
from numformer.paper import Decoder, Dropout, MultiHeadAttention, Residual
from numformer.paper.embedding import embed_backward
from numformer.paper.layer_norm import layer_norm_backward
from numformer.paper.linear import linear_backward
from numformer.paper.softmax import softmax_backward


@dataclass(frozen=True)
class WrongLines:
    """A function of the library; `lines` maps right lines to wrong ones ("" removes a line)."""

    function: Callable | None = None
    lines: dict[str, str] = field(default_factory=dict)

    @property
    def description(self) -> str:
        """The changes in words."""
        if not self.function:
            return "Every line is as the library has it."
        changes = (
            f"{right} has become {wrong.replace(chr(10) + '    ', '; ')}"
            if wrong
            else f"{right} is missing"
            for right, wrong in self.lines.items()
        )
        return f"{self.function.__qualname__}: {', and '.join(changes)}"

    @property
    def wrong_function(self) -> Callable:
        source = textwrap.dedent(inspect.getsource(self.function))
        for right, wrong in self.lines.items():
            if source.count(right) != 1:
                raise ValueError(f"{self.function.__qualname__} lacks {right!r}: mend the lesson.")
            source = source.replace(right, wrong or "pass")
        exec(source, inspect.unwrap(self.function).__globals__, namespace := {})
        return namespace[self.function.__name__]

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Within the block, the library computes with the wrong function, in one thread."""
        owners = [module for name, module in sys.modules.items() if name.startswith("numformer.")]
        owners += {
            kind for module in owners for kind in vars(module).values() if isinstance(kind, type)
        }
        name = self.function.__name__ if self.function else ""
        owners = [owner for owner in owners if name and vars(owner).get(name) is self.function]
        with threadpool_limits(1, "blas"):
            try:
                for owner in owners:
                    setattr(owner, name, self.wrong_function)
                yield
            finally:
                for owner in owners:
                    setattr(owner, name, self.function)


SCATTER = "scatter_add(dweight, ids.ravel(), rows(dx) * math.sqrt(dx.shape[-1]))"
WRONG_LINES = {
    "divided by the batch size": WrongLines(
        softmax_backward, {"dscores *= weights": "dscores *= weights / len(weights)"}
    ),
    "bias: the mean over positions, not the sum": WrongLines(
        linear_backward, {"else sum_rows(dy)": "else sum_rows(dy) / len(rows(dy))"}
    ),
    "a gradient never added": WrongLines(softmax_backward, {"dscores *= weights": "dscores *= 0"}),
    "`=` for `+=` between two uses of a weight": WrongLines(
        embed_backward, {SCATTER: f"dweight[...] = 0\n    {SCATTER}"}
    ),
    "residual: the skip connection forgotten": WrongLines(Residual.backward, {"dx += dsum": ""}),
    "embedding: grad[ids] += dx": WrongLines(
        embed_backward,
        {SCATTER: "dweight[ids.ravel()] += (rows(dx) * math.sqrt(dx.shape[-1]))"},
    ),
    "softmax: only the diagonal of the Jacobian": WrongLines(
        softmax_backward,
        {"dscores = dweights - dot_last(dweights, weights)": "dscores = dweights.copy()"},
    ),
    "attention: dV through the weights before dropout": WrongLines(
        BiasedAttention.backward, {"transpose(dropped), d": 'transpose(saved["weights"]), d'}
    ),
    "attention: the keys' share of dmemory lost": WrongLines(
        MultiHeadAttention.backward,
        {"dmemory += self.key.backward(dkey)": "self.key.backward(dkey)"},
    ),
    "decoder: dmemory of the first layer alone": WrongLines(
        Decoder.backward, {"dmemory += dmemory_of_layer": "dmemory = dmemory_of_layer"}
    ),
    "LayerNorm: the term along x_hat forgotten": WrongLines(
        layer_norm_backward, {"dx -= x_hat * along_x_hat": ""}
    ),
    "LayerNorm: gamma after the means": WrongLines(
        layer_norm_backward,
        {"dx_hat = dy * gamma": "dx_hat = dy.copy()", "dx *= rstd": "dx *= rstd * gamma"},
    ),
    "dropout: neither masked nor scaled": WrongLines(
        Dropout.backward,
        {"dx = dropout_backward(dy, **self.pop_saved())": "self.pop_saved()\n    dx = dy"},
    ),
}


def table_words() -> dict[str, str]:
    """The mistakes in the table of lessons/equations.md, each with words of the check's report."""
    page = Path(__file__).parents[1] / "equations.md"
    _, section = page.read_text(encoding="utf-8").split("## When the check fails")
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return {mistake: words for mistake, *_, words in rows[1:]}
