"""The page of published models: what it counts, beside published counts and our own models."""

import re
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

import numformer
from lessons import published
from lessons.lesson_12.sizes import counted

# As programs count their published weights; the first is the paper's model with 37,000 symbols.
COUNTS = {
    "Transformer base": 63_045_632,
    "Marian": 74_410_496,
    "GPT-2 small": 124_439_808,
    "BERT base": 109_482_240,
    "ViT-B/16": 86_567_656,
    "T5 small": 60_506_624,
    "Llama 2 7B": 6_738_415_616,
    "Llama 3 8B": 8_030_261_248,
}
CONFIGS = published.configs()
OTHERS = {"pooler": 590_592, "tables": 2 * 512 * 512}


@pytest.mark.parametrize("name", CONFIGS)
def test_the_parts_add_up_to_the_published_count(name):
    parts = {part.name: part.parameters for part in published.parts(CONFIGS[name])}
    if name == "BERT base":  # with its pooler, without what fills its holes
        body = {part: n for part, n in parts.items() if "output" not in part}
        layers = [body.pop(part) for part in ("attention", "feed-forward", "norms")]
        assert sum(body.values()) == 23_837_184 and sum(layers) == 12 * 7_087_872
        parts = {**body, "layers": sum(layers), "pooler": OTHERS["pooler"]}
    if name == "Marian":  # with two tables of sinusoids, without the biases of its logits
        parts |= {"tables": OTHERS["tables"], "output": 0}
    assert sum(parts.values()) == COUNTS[name]


def small(config, layers: int = 2):
    """The same choices in a small model."""
    sizes = dict(d_model=16, d_ff=24, heads=4, layers=layers, d_k=None, d_v=None, p_drop=0.0)
    sizes |= dict(attention_dropout=0.0, activation_dropout=0.0)
    sizes |= dict(vocabulary=50, source_vocabulary=50, target_vocabulary=50, decoder_layers=1)
    sizes |= dict(height=12, width=12, patch=4, classes=5)
    sizes |= {"distance_buckets": 8} if "relative" in config.mixers else {}
    sizes |= {"key_value_heads": 2 if published.groups_of(config) < config.heads else None}
    if config.positions == "learned" and not hasattr(config, "classes"):
        sizes["max_length"] = 12
    if "sinusoid" in config.positions or "relative" in config.mixers:
        sizes["d_k"] = sizes["d_v"] = 6
    known = {field.name for field in fields(config)}
    if not hasattr(config, "classes"):  # images have no special ids
        sizes |= dict(padding_id=0, start_id=1, end_id=2, unwritten="0")
    return replace(config, **{n: v for n, v in sizes.items() if n in known})


def model_of(config):
    cls = next(cls for cls in published.MODELS if cls.Config is type(config))
    return cls(config, seed=0)


def given(config, length: int) -> list[np.ndarray]:
    rng = np.random.default_rng(3)
    if hasattr(config, "classes"):
        return [rng.standard_normal((2, 12, 12, 3)).astype(np.float32)]
    ids = rng.integers(4, 50, (2, length))
    ids[:, -1] = 2
    return [ids] * (2 if hasattr(config, "tying") else 1)


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("name", CONFIGS)
def test_the_formulas_are_what_a_model_has(name, layers):
    """Parameters by the shapes of a small model's, and what forward saves, within a twentieth."""
    config, length = small(CONFIGS[name], layers), 9
    model = model_of(config)
    held = sum(parameter.size for parameter in model.named_parameters().values())
    assert published.total(config) == held
    with numformer.mode(training=True):
        model.forward(*given(config, length))
    arrays = {}
    for layer in model.layers_within():
        for array in (x for record in layer.saved for x in record.values()):
            if not isinstance(array, np.ndarray):
                continue
            while isinstance(array.base, np.ndarray) and array.dtype.kind != "c":  # rotary's table
                array = array.base
            if array.dtype.kind in "fcb":
                arrays[id(array)] = array
    saved = sum(array.nbytes for array in arrays.values())
    parts = published.parts(config, length)
    symbols = 0 if hasattr(config, "classes") else 2 * 50 * length  # the loss saves them
    numbers = 2 * sum(part.layers * part.saved for part in parts) - symbols
    assert saved == pytest.approx(4 * numbers, rel=0.05)


def test_operations_are_those_of_recorded_products():
    for name in ("GPT-2 small", "Marian", "Transformer base", "T5 small"):
        config = small(CONFIGS[name])
        ids = np.random.default_rng(3).integers(4, 50, (1, 9))
        model, both = model_of(config), hasattr(config, "tying")
        forward, _ = counted(model, *[ids] * (3 if both else 2))
        assert forward == sum(part.operations for part in published.parts(config, 9)), name


def test_every_choice_leads_to_its_file_and_its_lesson():
    places, table = published.places_table(), published.choices_table()
    assert {*re.findall(r"\(#([\w-]+)\)", table)} == {*re.findall(r'id="([\w-]+)"', places)}
    files = re.findall(r"`([\w/]+\.py)`", places)
    rows = [row for row in places.splitlines() if "id=" in row]
    assert len(files) == len(rows) == len(re.findall(r"\]\(lesson_\d\d_\w+\.html\)", places))
    folder = Path(numformer.__file__).parent
    assert [file for file in files if not (folder / file).is_file()] == []
    paper, marian, *_, llama = map(published.chosen, CONFIGS.values())
    assert [a == b for a, b in zip(paper, marian, strict=True)] == [1, 0, 0, 1, 1, 1]
    assert [a == b for a, b in zip(paper, llama, strict=True)] == 6 * [False]


def test_the_page_is_in_the_site_and_says_what_it_counts(site):
    folder, _ = site
    text = (folder / "published.html").read_text(encoding="utf-8")
    for name, config in CONFIGS.items():
        assert f"{name}: {published.total(config):,} parameters" in text
    assert [n for n in COUNTS.values() if f"{n:,}" not in text] == [] and "{{" not in text
    for page in "index", "lesson_12_connections", "search":
        assert "published.html" in (folder / f"{page}.html").read_text(encoding="utf-8"), page
