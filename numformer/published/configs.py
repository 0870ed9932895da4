"""The config.json of a published model: its settings, and the readings that most kinds share."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from numformer.errors import InputError

ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "silu": "swish",
    "swish": "swish",
    "quick_gelu": "quick_gelu",
}
"""Our name for each activation's name in a config.json; of several, the last is written."""
GATED = {"swish": "swiglu", "gelu_tanh": "geglu"}
"""The gated form of an activation."""
GATES = {foreign: GATED[ours] for foreign, ours in ACTIVATIONS.items() if ours in GATED}


class ForeignConfig:
    """The settings of a config.json; a missing setting that is required raises InputError.

    So does a size that no model has, as a list of so many layers would fill all memory. `arrays`
    are the names of the arrays in the same folder.
    """

    def __init__(self, values: Mapping[str, Any], arrays: Iterable[str] = ()):
        self.values, self.arrays = values, arrays
        for name, value in values.items():
            kind = re.search("(layer|size|head|dim|embe?d|inner|d_model|d_ff|d_kv)s?$", name)
            if kind is None or type(value) is not int:
                continue
            if value > (most := 10_000 if kind[1] == "layer" else 1 << 25):
                raise InputError(
                    f"in a config.json, {name} is at most {most:,}",
                    f"{value:,}",
                    "Use the config.json of these weights.",
                )

    def __getitem__(self, name: str) -> Any:
        if name not in self.values:
            rule = "a config.json has the sizes of its model"
            raise InputError(rule, f"one without {name}", "Use the config.json of these weights.")
        return self.values[name]

    def get(self, name: str, default: Any) -> Any:
        """A setting, or the default if it is missing or null."""
        value = self.values.get(name)
        return default if value is None else value

    def has(self, *prefixes: str) -> bool:
        """Whether the name of any array begins with one of these prefixes."""
        return any(name.startswith(prefixes) for name in self.arrays)

    def require(self, **supported: Any) -> None:
        """Raise InputError for a setting whose value numformer does not support."""
        for name, value in supported.items():
            if (received := self.get(name, value)) != value:
                raise InputError(
                    f"a model of the kind {self.values['model_type']} has {name} {value!r}",
                    repr(received),
                    "numformer does not support this: choose another model.",
                )

    def common(self, *names: str) -> Any:
        """The value that several settings share. Raises InputError if they differ."""
        first, *others = values = [self[name] for name in names]
        if any(value != first for value in others):
            raise InputError(
                f"{' and '.join(names)} are equal",
                " and ".join(map(repr, values)),
                "Choose a model in which they are equal.",
            )
        return first

    def choice(self, name: str, known: Mapping[str, str]) -> str:
        """Our name for the value of a setting."""
        if (choice := self[name]) not in known:
            rule = f"{name} is one of {', '.join(known)}"
            raise InputError(rule, repr(choice), "Choose a model with one of these.")
        return known[choice]


def stack_fields(
    foreign: ForeignConfig,
    d_model: str = "hidden_size",
    d_ff: str = "intermediate_size",
    heads: str = "num_attention_heads",
    layers: str = "num_hidden_layers",
    activation: str = "hidden_act",
) -> dict:
    """The fields of a stack of layers with biases; the other arguments name its settings."""
    names = dict(d_model=d_model, d_ff=d_ff, heads=heads, layers=layers)
    fields = {ours: foreign[theirs] for ours, theirs in names.items()}
    return fields | dict(activation=foreign.choice(activation, ACTIVATIONS), attention_bias=True)


def special_ids(foreign: ForeignConfig, unwritten: Iterable[int] = (), **defaults: int) -> dict:
    """The ids of padding, start and ends, and the ids never written, as config fields.

    `defaults` replace missing ids; a null start or end means that there is none. Entries of
    bad_words_ids that have a single id, unless it is an end, and suppress_tokens are added to
    `unwritten`.
    """
    ends = end_ids(foreign, defaults.get("end"))
    banned = [word[0] for word in foreign.get("bad_words_ids", []) if len(word) == 1]
    banned = [n for n in banned if n not in ends] + foreign.get("suppress_tokens", [])
    start = foreign.get("decoder_start_token_id", defaults.get("decoder_start"))
    if start is None:
        start = foreign.values.get("bos_token_id", defaults.get("start"))
    return dict(
        padding_id=foreign.get("pad_token_id", defaults.get("padding")),
        start_id=start,
        end_id=next(iter(ends), None),
        unwritten=tuple(sorted({*unwritten, *banned})),
        other_ends=tuple(ends[1:]),
    )


def end_ids(foreign: ForeignConfig, default: int | None = None) -> list[int]:
    """The ids that end a text, [] for null; the first also ends the texts that the model reads."""
    ends = foreign.values.get("eos_token_id", default)
    return ends if isinstance(ends, list) else [n for n in [ends] if n is not None]


def with_generation_ids(
    values: Mapping[str, Any], generation: Mapping[str, Any]
) -> Mapping[str, Any]:
    """A config.json whose ids of start and ends, and of banned symbols, may be of another file."""
    names = "eos_token_id", "decoder_start_token_id", "bad_words_ids", "suppress_tokens"
    return {**values, **{n: generation[n] for n in names if generation.get(n) is not None}}
