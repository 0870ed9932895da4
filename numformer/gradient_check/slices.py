"""A slice of a trained model that is small enough to check: its first layers, at full width."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from numformer.data.vocabulary import DEFAULT_IDS, END, PADDING, START
from numformer.models import (
    DualEncoder,
    LanguageModel,
    MaskedLanguageModel,
    Model,
    RecurrentEncoderDecoder,
    SpeechTransformer,
    Transformer,
    VisionTransformer,
)
from numformer.trained import model_of_run

SYMBOLS, LENGTH = 64, 16
B, S, T = 2, 6, 5


def slice_of(run: Path) -> tuple[Model, list]:
    """Return the first layers of a run or published model, with their weights, and random inputs.

    If layers cycle through several mixers, feed-forward networks or numbers of heads, each stack
    has one whole cycle. The slice has the first 64 symbols of the vocabulary, and the first 16
    positions, or up to six patches of an image. Raises InputError as `numformer.load` does.
    """
    trained, _ = model_of_run(run)
    model = type(trained)(slice_config(trained.config), np.random.default_rng(0))
    weights = trained.state_dict()
    for name, parameter in model.named_parameters().items():
        parameter.data[...] = weights[name][tuple(map(slice, parameter.shape))]
    return model, slice_inputs(model, np.random.default_rng(1))


def slice_config(config: Any) -> Any:
    """Return the config of the slice, with this library's own special ids."""
    if isinstance(config, DualEncoder.Config):
        towers = slice_config(config.texts), slice_config(config.images)
        return dataclasses.replace(config, texts=towers[0], images=towers[1])
    names = [field.name for field in dataclasses.fields(config)]
    layers = getattr(config, "period", 1)
    unwritten = tuple(DEFAULT_IDS.unwritten)
    smaller: dict[str, Any] = dict(layers=layers, decoder_layers=layers, unwritten=unwritten)
    smaller |= dict(
        padding_id=DEFAULT_IDS.padding, start_id=DEFAULT_IDS.start, end_id=DEFAULT_IDS.end
    )
    smaller["frames"] = 2 * S
    for name in ("vocabulary", "source_vocabulary", "target_vocabulary"):
        smaller[name] = min(getattr(config, name, 0), SYMBOLS)
    if isinstance(config, VisionTransformer.Config):
        del smaller["padding_id"]
        patch = config.patch
        smaller |= dict(height=min(config.height, 2 * patch), width=min(config.width, 3 * patch))
        smaller["max_length"] = None
    elif getattr(config, "longest", None):
        smaller["max_length"] = min(config.longest, LENGTH)
    return dataclasses.replace(config, **{n: v for n, v in smaller.items() if n in names})


def slice_inputs(model: Model, rng: np.random.Generator) -> list:
    """Return random inputs of the model's forward, with padding if the model allows padding."""
    config: Any = model.config
    if isinstance(model, DualEncoder):
        (images,), (ids,) = (slice_inputs(tower, rng) for tower in (model.images, model.texts))
        ids[:, -1] = END
        return [images, ids]
    if isinstance(model, VisionTransformer):
        return [rng.standard_normal((B, config.height, config.width, config.channels))]
    if isinstance(model, SpeechTransformer):
        sounds = rng.standard_normal((B, config.frames, config.bands))
        target = rng.integers(4, config.vocabulary, (B, T))
        return [sounds, target]
    if isinstance(model, Transformer | RecurrentEncoderDecoder):
        source = rng.integers(4, config.source_vocabulary, (B, S))
        target = rng.integers(4, config.target_vocabulary, (B, T))
        source[:, -1] = END
        source[1, -3:] = END, PADDING, PADDING
        target[:, 0] = START
        return [source, target]
    ids = rng.integers(4, config.vocabulary, (B, T))
    if isinstance(model, MaskedLanguageModel):
        ids[1, -2:] = PADDING
    else:
        assert isinstance(model, LanguageModel)
    return [ids]
