"""What the readings of language models share: their type, their positions, layers in turn."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from numformer.published.configs import ACTIVATIONS, ForeignConfig
from numformer.published.rope import rope
from numformer.published.table import Table


class Decoder(NamedTuple):
    """How to read a language model.

    `config` turns a config.json into the fields of LanguageModel.Config. `table` returns the Table
    of the parameters for a Config and for the arguments that `factors` finds in the config.json.
    """

    config: Callable[[ForeignConfig], dict]
    table: Callable[..., Table]
    factors: Callable[[ForeignConfig], dict] = lambda foreign: {}


WITH_HEAD = "lm_head.", "embed_out.", "model.", "transformer.", "gpt_neox."
"""How the names of a decoder's arrays begin, unless it is bare: those of its head or its stack."""


def or_bare(read: Callable[[ForeignConfig], dict]) -> Callable[[ForeignConfig], dict]:
    """Return a reading that is like `read`, but for a decoder without the head that it needs.

    A head that only shares the embedding needs no arrays, so it is always there.
    """

    def read_either(foreign: ForeignConfig) -> dict:
        ours = read(foreign)
        shares = ours["tied"] and not foreign.get("logits_scaling", None)  # of Granite
        if shares or not foreign.arrays or foreign.has(*WITH_HEAD):
            return ours
        return ours | dict(head=False, tied=True)

    return read_either


def in_turn(values: Sequence) -> tuple:
    """One value for each layer -> the shortest tuple through which the layers can cycle."""
    for period in range(1, len(values)):
        if all(value == values[n % period] for n, value in enumerate(values)):
            return tuple(values[:period])
    return tuple(values)


def rotary(foreign: ForeignConfig, size: int, share: float = 1.0, base: float = 1e4) -> dict:
    """The fields of rotary positions, for heads of `size` values, a `share` of which turn."""
    scaling = foreign.get("rope_parameters", foreign.get("rope_scaling", {}))
    base = scaling.get("rope_theta", foreign.get("rope_theta", base))
    foreign.require(rope_scaling=scaling, rope_theta=base)
    share = scaling.get("partial_rotary_factor", foreign.get("partial_rotary_factor", share))
    frequencies, _, longest = turning = rope(foreign, int(size * share), base)
    fields = dict(positions="rotary", rotary_base=base)
    if turning == rope(ForeignConfig({}), size, base):  # only the base is given
        return fields
    return fields | dict(rotary_frequencies=(frequencies,), rotary_longest=longest)


def times(factor: float, what: str = "times") -> str:
    """The end of a table's row, for parameters that are multiplied by a factor."""
    return "" if factor == 1 else f", {what} {factor!r}"


def activation(foreign: ForeignConfig, name: str, default: str, known: dict = ACTIVATIONS) -> dict:
    chosen = ForeignConfig({name: foreign.get(name, default)})
    return dict(activation=chosen.choice(name, known))
