"""Every setting does something with every choice, or is refused."""

import json
from collections.abc import Iterator
from dataclasses import MISSING, asdict, fields, replace

import numpy as np
import pytest

import numformer as nf
from numformer.errors import InputError
from numformer.gradient_check.cases import MIXER_SETTINGS
from numformer.later import FEED_FORWARDS, MIXERS, NORMALIZATIONS, POSITIONS
from numformer.models.fields import saved_value
from numformer.randomness import dropout_stream

V = 11
SOURCE = np.array([[4, 5, 6, 7, 2, 9], [8, 5, 6, 2, 0, 0]])
TARGET = np.array([[1, 9, 4, 5, 5, 6], [1, 9, 9, 0, 0, 0]])
FOLLOWING = np.array([[9, 4, 5, 5, 6, 2], [9, 9, 2, 0, 0, 0]])
IMAGES = np.random.default_rng(0).standard_normal((2, 4, 6, 1)).astype(np.float32)
TOWER = dict(d_model=8, d_ff=6, heads=2, layers=2)
PAIR = dict(source_vocabulary=V, target_vocabulary=V)
# Of each model: its sizes and a batch.
KINDS = {
    nf.Transformer: (PAIR | TOWER, (SOURCE, TARGET, FOLLOWING)),
    nf.LanguageModel: (dict(vocabulary=V) | TOWER, (TARGET[:1], FOLLOWING[:1])),
    nf.MaskedLanguageModel: (dict(vocabulary=V) | TOWER, (SOURCE, SOURCE)),
    nf.VisionTransformer: (
        dict(height=4, width=6, channels=1, classes=7) | TOWER,
        (IMAGES, np.array([1, 2])),
    ),
    nf.SpeechTransformer: (
        dict(vocabulary=V, bands=1, frames=12) | TOWER,
        (IMAGES.reshape(2, 12, 2)[:, :, :1], TARGET, FOLLOWING),
    ),
    nf.RecurrentEncoderDecoder: (PAIR | dict(d_model=6), (SOURCE, TARGET, FOLLOWING)),
}
RELATIVE = dict(distance_buckets=6, farthest=4)
CHOICES = [
    {},
    # With few buckets of distances all are near, however far the farthest one is.
    *(
        form | (RELATIVE if "relative" in form.get("mixers", "") else {})
        for form in MIXER_SETTINGS.values()
    ),
    *(dict(feed_forwards=name) for name in FEED_FORWARDS),
    *(dict(normalization=name) for name in NORMALIZATIONS),
    *(dict(positions=name) for name in POSITIONS),
]
# Choices inside a layer, which all models build alike: only models of texts try them.
LAYER_CHOICES = {"mixers", "feed_forwards"}
# What is tried by the type of a rule, in this order; of a choice all names.
VALUES = {
    bool: (True, False),
    int: (2, 1, 3, 4, 12, 24),
    float: (0.5, 2.0),
    str: ("5,6", "2,1"),
}


def is_possible(kind, choice) -> bool:
    if not issubclass(kind.Config, nf.TowerConfig):
        return not choice
    mixers = choice.get("mixers", "attention").split(",")
    if kind in (nf.VisionTransformer, nf.SpeechTransformer) and choice.keys() & LAYER_CHOICES:
        return False
    return not kind.Config.both_ways or all(MIXERS[name].looks_ahead for name in mixers)


def candidates(field, value) -> list:
    """Other values of a field."""
    rule, value = field.metadata["rule"], saved_value(value)
    of_type = (*VALUES[int], *VALUES[str]) if rule.type not in VALUES else VALUES[rule.type]
    return [other for other in rule.choices or of_type if other != value]


def identity(kind, config, batch) -> Iterator:
    """What tells a model from others: its layers, weights, what it computes and what it writes."""
    model = kind(config, seed=1)
    nodes = [*model._walk("", {}).values()]
    yield [(name, type(node)) for name, node in nodes]
    yield [(p.shape, p.data.tobytes()) for _, p in nodes if isinstance(p, nf.Parameter)]
    flat = nf.pack(model)
    flat.data += 0.3 * np.random.default_rng(1).standard_normal(flat.data.shape, np.float32)
    dropout_stream.reseed(0, 1)
    yield float(model.objective().forward(*batch))
    if kind is not nf.VisionTransformer:  # which has no symbols
        yield getattr(config, "special", None)


FORMS = [(kind, choice) for kind in KINDS for choice in CHOICES if is_possible(kind, choice)]


@pytest.mark.parametrize(
    ("kind", "choice"), FORMS, ids=[f"{kind.__name__} {json.dumps(c)}" for kind, c in FORMS]
)
def test_a_setting_changes_the_model_or_is_refused(kind, choice):
    sizes, batch = KINDS[kind]
    config = kind.Config(**(sizes | choice))
    before, without_effect = [*identity(kind, config, batch)], []
    for field in fields(config):
        if field.default is MISSING and field.name not in TOWER:
            continue  # of the task
        accepted = []
        for value in candidates(field, getattr(config, field.name)):
            try:
                found = identity(kind, replace(config, **{field.name: value}), batch)
                changed = any(one != other for one, other in zip(found, before, strict=True))
            except InputError as refused:
                if "belongs to" in str(refused):
                    break  # it is refused whatever its value is
                if "a sequence of length" not in str(refused):
                    continue
                changed = True  # a limit, which the batch exceeds
            if changed:
                break
            accepted.append(value)
        else:
            without_effect += [(field.name, accepted)] if accepted else []
    assert not without_effect, f"with {asdict(config)}"
