"""The page about models that others published: their choices, their parameters, their cost.

A published config.json becomes a config of ours (`numformer.published.configs`); all numbers and
tables of the page are computed from these configs. Its text is published.md.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from lessons import COURSE, FOLDER
from lessons.kit.facts import fact
from lessons.kit.lesson import table
from lessons.kit.views import amount, figure
from lessons.lesson_12 import landscape
from lessons.lesson_12.sizes import TRAINED
from numformer import later, models, paper
from numformer.later.attention.relative import RelativePositions
from numformer.later.attention.tiles import TiledAttention
from numformer.later.positions import sinusoidal_halves_table
from numformer.published.configs import ForeignConfig
from numformer.published.kinds import KINDS

PUBLISHED = json.loads((FOLDER / "published.json").read_text(encoding="utf-8"))
"""For each model those fields of its config.json that say how it is made."""


def config_of(said: Mapping[str, Any]):
    """A published config.json as a config of ours."""
    kind, classes = KINDS[said["model_type"]], dict.fromkeys(range(said.get("num_labels", 2)))
    return kind.model.Config(**kind.config(ForeignConfig({"id2label": classes} | {**said})))


def configs() -> dict[str, Any]:
    """The models of the page by name, the paper's first."""
    paper = {"Transformer base": models.Transformer.Config.base(37_000)}
    return paper | {name: config_of(said) for name, said in PUBLISHED.items()}


# The choices


class Choice(NamedTuple):
    """A choice in words, what makes it in the library, and the lesson that explains it."""

    words: str
    made_by: Any
    lesson: int

    @property
    def place(self) -> str:
        return "choice-" + re.sub(r"\W+", "-", self.words.lower())

    @property
    def file(self) -> str:
        """The path of its code, within numformer."""
        return self.made_by.__module__.removeprefix("numformer.").replace(".", "/") + ".py"


CHOICES = {
    ("norm", "post"): Choice("post-norm", paper.Residual, 6),
    ("norm", "pre"): Choice("pre-norm", later.PreNormResidual, 6),
    ("normalization", "layer"): Choice("LayerNorm", paper.LayerNorm, 6),
    ("normalization", "rms"): Choice("RMSNorm", later.RMSNorm, 12),
    ("positions", "sinusoidal"): Choice("sinusoids", paper.SinusoidalPositions, 5),
    ("positions", "sinusoidal_halves"): Choice("sines first", sinusoidal_halves_table, 5),
    ("positions", "learned"): Choice("learned", paper.LearnedPositions, 5),
    ("positions", "rotary"): Choice("rotary", later.Rotary, 5),
    ("mixers", "relative"): Choice("by distance", RelativePositions, 5),
    ("activation", "relu"): Choice("ReLU", paper.ReLU, 6),
    ("activation", "gelu"): Choice("GELU", later.GELU, 6),
    ("activation", "gelu_tanh"): Choice("GELU by tanh", later.GELUTanh, 6),
    ("activation", "swish"): Choice("Swish", later.Swish, 12),
    ("activation", "swiglu"): Choice("SwiGLU", later.SwiGLU, 12),
    ("Transformer", ""): Choice("both, then back", models.Transformer, 7),
    ("LanguageModel", ""): Choice("back", models.LanguageModel, 7),
    ("MaskedLanguageModel", ""): Choice("both", models.MaskedLanguageModel, 12),
    ("VisionTransformer", ""): Choice("all patches", models.VisionTransformer, 12),
    ("mixers", "attention"): Choice("heads", paper.SelfAttention, 4),
    ("key_value_heads", ""): Choice("in groups", TiledAttention, 13),
    ("tying", "all"): Choice("tied", paper.OutputProjection, 9),
    ("tied", True): Choice("tied", paper.OutputProjection, 9),
    ("tied", False): Choice("its own matrix", paper.OutputProjection, 9),
    ("classes", ""): Choice("one logit a class", paper.Linear, 10),
}
"""By the field of a config and its value, or by the kind of model, which says who sees whom."""


MODELS = models.Transformer, models.LanguageModel, models.MaskedLanguageModel
MODELS = *MODELS, models.VisionTransformer


def groups_of(config) -> int:
    """How many heads of keys and values self-attention has."""
    return int(config.key_value_heads or config.heads)


def chosen(config) -> list[list[tuple[str, Any]]]:
    """What a config chooses: a list for each column of the table."""
    relative, grouped = "relative" in config.mixers, groups_of(config) < config.heads
    positions = ("mixers", "relative") if relative else ("positions", config.positions)
    kind = next(cls for cls in MODELS if cls.Config is type(config))
    last = next(name for name in ("tying", "tied", "classes") if hasattr(config, name))
    return [
        [(name, getattr(config, name)) for name in ("norm", "normalization")],
        [positions],
        [("activation", config.activation)],
        [(kind.__name__, "")],
        [("mixers", "attention"), *[("key_value_heads", "")] * grouped],
        [(last, "" if last == "classes" else getattr(config, last))],
    ]


def choices_table() -> str:
    """The choices of each model; each one links to its row in the table of places."""
    rows = []
    for name, config in configs().items():
        cells = [
            ", ".join(f"[{CHOICES[key].words}](#{CHOICES[key].place})" for key in keys)
            for keys in chosen(config)
        ]
        heads = cells[4].replace("[heads]", f"[{config.heads} heads]")
        heads = heads.replace("[in groups]", f"[in {groups_of(config)} groups]")
        rows.append((name, *cells[:4], heads, cells[5]))
    columns = ["model", "norm", "positions", "activation", "sees", "attention", "output"]
    return table(columns, rows).markdown()


def places_table() -> str:
    """For each choice its lesson, its file and the settings that make it."""
    columns = zip(*map(chosen, configs().values()), strict=True)
    settings: dict[Choice, list[str]] = {}
    for field, value in dict.fromkeys(key for column in columns for keys in column for key in keys):
        setting = f"`{field}={value!r}`".replace("'", '"') if value != "" else f"`{field}`"
        settings.setdefault(CHOICES[field, value], []).append(setting)
    rows = []
    for choice, names in settings.items():
        words, page = (
            f'<span id="{choice.place}">{choice.words}</span>',
            COURSE[choice.lesson - 1].page,
        )
        lesson = f"[{choice.lesson}]({page})" if page else f"{choice.lesson}"
        rows.append((words, lesson, f"`{choice.file}`", ", ".join(names)))
    return table(["choice", "lesson", "file", "setting"], rows).markdown()


# Parameters, operations, memory

BATCH, LENGTH = 8, 128
Shapes = tuple[tuple[int, ...], ...]


class Part(NamedTuple):
    """A part of a model: the shapes of its parameters, and how many layers have it.

    For one sequence, in one layer: how many `vectors` are multiplied by its matrices, how many
    `more` operations there are, and how many numbers are `saved` for backward.
    """

    name: str
    shapes: Shapes
    layers: int = 1
    vectors: int = 0
    more: int = 0
    saved: float = 0

    @property
    def parameters(self) -> int:
        return self.layers * sum(map(math.prod, self.shapes))

    @property
    def operations(self) -> int:
        entries = sum(math.prod(shape) for shape in self.shapes if len(shape) == 2)
        return self.layers * (2 * self.vectors * entries + self.more)

    @property
    def formula(self) -> str:
        """3 · 768 · 768 + 3 · 768, times the layers."""
        counts = Counter(self.shapes).items()
        terms = (" · ".join(f"{n:,}" for n in (count, *shape)) for shape, count in counts)
        text = " + ".join(term.removeprefix("1 · ") for term in terms) or "the symbols’ table again"
        return text if self.layers == 1 else f"{self.layers} · ({text})"


def parts(config, length: int = LENGTH) -> list[Part]:
    """The parts of a model for a sequence of `length`; for two of them, if it takes two."""
    d, vision = config.d_model, hasattr(config, "classes")
    two, norm = hasattr(config, "tying"), norm_of(config)
    length = config.length if vision else length
    if vision:
        patch = config.patch**2 * config.channels
        made = [Part("patches", ((patch, d), (d,)), vectors=length - 1, saved=patch * length)]
        made += [Part("class token", ((d,),))]
        symbols, tied = config.classes, False
    else:
        symbols = config.target_vocabulary if two else config.vocabulary
        tied = config.tying in ("all", "target") if two else config.tied
        tables = 2 if two and config.tying in ("target", "none") else 1
        made = [Part("symbols", tables * ((symbols, d),))]
    if config.longest:
        made += [Part("positions", ((config.longest, d),))]
    if getattr(config, "segments", None):
        made += [Part("segments", ((config.segments, d),))]
    if config.embedding_norm:
        made += [Part("norm", norm, saved=d * length)]
    made += tower(config, "encoder: " if two else "", config.layers, length)
    if two:
        made += tower(config, "decoder: ", config.decoder_layers or config.layers, length, True)
    if getattr(config, "transform", False):
        shapes = (d, d), (d,), *norm
        made += [Part("before the output", shapes, vectors=length, saved=4 * d * length)]
    asked = 1 if vision else length  # an image has one class
    shapes = [(d, symbols)] * (not tied) + [(symbols,)] * (vision or config.output_bias)
    work = 2 * asked * d * symbols * tied  # tied: no parameters, but a product all the same
    return [*made, Part("output", (*shapes,), 1, asked, work, asked * (d + symbols))]


def norm_of(config) -> Shapes:
    return (2 if config.normalization == "layer" else 1) * ((config.d_model,),)


def tower(config, name: str, count: int, length: int, cross: bool = False) -> list[Part]:
    """The parts of `count` layers; with `cross` also attention to a memory of this length."""
    d, f, norm, gates = config.d_model, config.d_ff, norm_of(config), SAVED[config.activation]

    def attention(what: str, groups: int) -> Part:
        key, value = config.key_size, config.d_v or config.key_size
        queries, answers = config.heads * key, config.heads * value
        shapes = [(d, queries), (d, groups * key), (d, groups * value), (answers, d)]
        biases = [shape[1:] for shape in shapes if config.attention_bias]
        pairs = 2 * length**2 * (queries + answers)
        saved = length * (d + queries + groups * (key + value) + answers)
        saved += config.heads * length**2
        return Part(name + what, (*shapes, *biases), count, length, pairs, saved)

    inner = (d, f * getattr(later.ACTIVATIONS[config.activation], "inputs", 1))
    biases = ((inner[1],), (d,)) if config.feed_forward_bias else ()
    norms = 2 + cross
    made = [attention("attention", groups_of(config))]
    made += [attention("cross-attention", config.heads)] * cross
    network = (inner, (f, d), *biases)
    made += [Part(f"{name}feed-forward", network, count, length, saved=length * (d + gates * f))]
    made += [Part(f"{name}norms", norms * norm, count, saved=length * norms * d)]
    if "relative" in config.mixers:
        made += [Part(f"{name}distances", ((config.distance_buckets, config.heads),))]
    if config.norm == "pre":
        made += [Part(f"{name}last norm", norm, saved=length * d)]
    return made


SAVED = {"relu": 1.25, "gelu": 2, "gelu_tanh": 2, "swish": 2, "swiglu": 4, "geglu": 5}
"""How many numbers of 4 bytes a feed-forward network saves for each of its inner units."""


def total(config) -> int:
    return sum(part.parameters for part in parts(config))


# The page


def ledger(page) -> str:
    """The parts of each model with their parameters; all but the first are folded."""
    made = []
    for name, config in configs().items():
        rows = [(part.name, part.formula, f"{part.parameters:,}") for part in parts(config)]
        rows.append(("together", "", f"{total(config):,}"))
        text = table(["part", "layers · (entries)", "parameters"], rows).markdown()
        title = f"<summary>{name}: {total(config):,} parameters</summary>"
        made.append(f"<details{' open' * (not made)}>{title}{page.markdown(text)}</details>")
    return f'<div class="ledger-of-models">{"".join(made)}</div>'


def step(config) -> tuple[int, int, int]:
    """A training step: operations, bytes for weights and Adam, bytes that forward saves."""
    of_parts = parts(config)
    operations = 3 * BATCH * sum(part.operations for part in of_parts)
    saved = 4 * BATCH * sum(part.layers * part.saved for part in of_parts)
    return operations, TRAINED * total(config), round(saved)


def duration(seconds: float) -> str:
    """In words: 12 s, 3.1 minutes, 1,200 years."""
    units = ("years", 365.25 * 86400), ("days", 86400), ("hours", 3600), ("minutes", 60)
    for unit, size in units:
        if seconds >= 1.5 * size:
            return f"{float(f'{seconds / size:.2g}'):,g} {unit}"
    return f"{seconds:.2g} s"


def steps_table() -> str:
    """What a training step of each model costs: operations, their time, memory."""
    rows = []
    for name, config in configs().items():
        operations, *sizes = step(config)
        cost = amount(operations), duration(operations / landscape.rate())
        rows.append((name, *cost, *(f"{size / 1e9:.1f}" for size in sizes)))
    columns = ["model", "operations", "time", "weights, Adam: GB", "saved: GB"]
    return table(columns, rows).markdown()


def published_page(page) -> tuple[str, str]:
    """The title of published.md, and its text as HTML, with its tables and numbers."""
    known, rate = configs(), landscape.rate()
    bert, marian, llama = (known[name] for name in ("BERT base", "Marian", "Llama 2 7B"))
    fits = [name for name, config in known.items() if sum(step(config)[1:]) < 8e9]
    pooler = bert.d_model**2 + bert.d_model
    head = sum(part.parameters for part in parts(bert) if "output" in part.name)
    tables = 2 * PUBLISHED["Marian"]["max_position_embeddings"] * marian.d_model
    biases = marian.target_vocabulary
    counted = dict(pooler=pooler, head=head, tables=tables, biases=biases)
    counted |= dict(bert=total(bert) - head + pooler, marian=total(marian) + tables - biases)
    said = {name: f"{count:,}" for name, count in counted.items()}
    said |= dict(choices=choices_table(), places=places_table(), ledger=ledger(page))
    said |= dict(steps=steps_table(), batch=f"{BATCH}", length=f"{LENGTH}")
    said |= dict(rate=figure(rate / 1e9), fits=f"{', '.join(fits[:-1])} and {fits[-1]}")
    said |= dict(trained=figure(TRAINED * total(llama) / 1e9), alone=figure(4 * total(llama) / 1e9))
    symbols = fact("symbols for each parameter")
    said |= dict(symbols=f"{symbols}")
    for name in ("GPT-2 small", "Llama 2 7B"):  # 6 operations for each parameter and symbol
        said[name] = duration(6 * symbols * total(known[name]) ** 2 / rate)
    title, text = (FOLDER / "published.md").read_text(encoding="utf-8").split("\n", 1)
    text = re.sub(r"\{\{(.+?)\}\}", lambda name: said[name[1]], text)
    return title.removeprefix("# "), page.markdown(text)
