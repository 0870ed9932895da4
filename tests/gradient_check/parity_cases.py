"""The cases in which numformer is compared with PyTorch, and numformer's results: `solve(case)`."""

import importlib
import itertools
import zlib
from collections.abc import Callable
from dataclasses import Field, fields, replace
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple
from unittest import mock

import numpy as np

from numformer.data import PairBatch
from numformer.errors import InputError
from numformer.gradient_check.cases import CASES, Case
from numformer.gradient_check.cases.case import B, S, T
from numformer.gradient_check.cases.models import SMALL
from numformer.gradient_check.gradients import GradientCheck
from numformer.layer import Layer, inference, pack
from numformer.models import Config, Objective, Transformer
from numformer.models.config import CHOICES_WITH_SETTINGS
from numformer.models.owned_settings import own_names
from numformer.optimization import Recipe
from numformer.optimization.optimizers import (
    OPTIMIZERS,
    OptimizerSettings,
    ineffective_settings,
    settings_of,
)
from numformer.paper import Places, Reach
from numformer.training import trainer
from toy_tasks import reverse
from toy_tasks.text_to_text.sequences import SequenceTask, digits


class Solved(NamedTuple):
    """A case's random numbers, numformer's results by name, and a function for torch's."""

    drawn: list
    results: dict[str, np.ndarray]
    results_of_torch: Callable[[], dict[str, np.ndarray]]


def by_torch(function: str, *arguments) -> Callable[[], dict[str, np.ndarray]]:
    """Call a function of torch_reference.py; torch is imported only at the call."""
    return lambda: getattr(importlib.import_module("torch_reference"), function)(*arguments)


def differentiate(layer: Layer, inputs: list, reference: str, **settings) -> Solved:
    """The "output" and the gradients by tensor; `reference` and `settings` as in a Case.

    Skip the rules of a gradient check: test_contract.py applies them to every layer.
    """
    rules = dict.fromkeys(("require_same_outputs", "require_stacked_forwards"), lambda check: None)
    with (
        mock.patch.multiple("numformer.gradient_check.rules", **rules),
        mock.patch.object(GradientCheck, "_earlier_check", lambda self: None),
    ):
        checked = GradientCheck(layer, inputs)
    inputs = [x.mask() if isinstance(x, Reach) else x for x in checked.inputs]
    inputs = [x.valid if isinstance(x, Places) else x for x in inputs]
    drawn = [*(x for x in inputs if x is not None), *checked.tensors.values(), checked.upstream]
    results = {"output": checked.output, **checked.gradients}
    return Solved(drawn, results, by_torch("differentiate", checked, reference, settings))


def train(config: Config, recipe: Recipe, batches: list, seed: int, shift=None) -> Solved:
    """A step on each batch by numformer's own training loop: losses, norms and final weights.

    Without biases of keys: one adds the same to all scores of a query, so its gradient is 0 but for
    rounding, and an optimizer that follows a gradient's sign moves it either way. Random numbers of
    `shift` move the initial weights, gammas and biases among them.
    """
    model = Transformer(config, seed)
    task = SimpleNamespace(batch=lambda step: batches[step - 1], description=dict, metric=None)
    # The loop trains in float32, too coarse for most comparisons.
    with mock.patch.object(trainer, "pack", lambda model, _, xp: pack(model, float, xp)):
        run = trainer.Trainer(model, task, Path(), len(batches), recipe, seed)
    if shift:
        run.parameters.data += 0.1 * shift.standard_normal(run.parameters.data.shape)
    initial = model.state_dict()

    norms = []
    for _ in batches:
        run.advance()
        norms.append(run.norm)
    results = {"losses": np.array(run.losses), "norms": np.array(norms), **model.state_dict()}
    ids = [ids for batch in batches for ids in batch.inputs]
    torch_trains = by_torch("train", config, recipe, initial, batches, seed)
    drawn = [*initial.values(), *ids]
    return Solved(drawn, _defined(results), lambda: _defined(torch_trains()))


def _defined(results: dict) -> dict:
    undecided = ".key.bias", ".key.norm.beta"
    return {name: array for name, array in results.items() if not name.endswith(undecided)}


def random_batch(rng, config: Config, size: int, source: int, target: int, shortest=1) -> PairBatch:
    """`size` pairs of `shortest` or more symbols, with the end symbol up to `source`, `target`."""

    def symbols(vocabulary, most):
        return rng.integers(3, vocabulary, rng.integers(shortest, most))

    both = (config.source_vocabulary, source), (config.target_vocabulary, target)
    return PairBatch.of([[symbols(*side) for side in both] for _ in range(size)], config.special)


# Random Configs, on batches of other sizes. Where there is no dropout, padding is also left out,
# and a few steps are trained.

LONGEST = 9
DROPOUTS = ("p_drop", "attention_dropout", "activation_dropout")
VALUES = dict.fromkeys(DROPOUTS, (0.0, 0.1, 0.3)) | dict(
    source_vocabulary=range(5, 21),
    target_vocabulary=(5, 11, 20, 300, 301),  # beyond 256 scatter_add takes another way
    d_model=range(4, 14),
    d_ff=range(1, 21),
    heads=range(1, 5),
    d_k=(None, 1, 2, 3, 5),
    d_v=(None, 1, 2, 3, 5),
    layers=range(1, 4),
    max_length=range(LONGEST, LONGEST + 4),
    label_smoothing=(0.0, 0.1, 0.4),
    beta1=(0.0, 0.6, 0.9),
    beta2=(0.5, 0.9, 0.999),
    # Were it smaller, a gradient that is 0 but for rounding, a key bias's, would move weights.
    adam_epsilon=(1e-5, 1e-4, 1e-3),
    weight_decay=(0.0, 0.05, 0.3),
    key_value_heads=(None, 1, 2, "2,1"),
    distance_buckets=(4, 5, 8),
    farthest=(5, 9, 20),
    epsilon=(1e-5, 1e-3, 0.1),
    rotary_base=(50.0, 10000.0),
    rotary_frequencies=("", "(0.7,)", "(0.7,),()"),
    rotary_longest=(None,),
    attention_cap=(None, 2.0),
    logit_cap=(None, 3.0),
    attention_output_bias=(None, True, False),
    sublayers=("in_turn",),
    padding_id=(0, 1),
    start_id=(0, 1),  # where they are one, what stands first is real
    end_id=(2,),
    unwritten=("0,1,3",),
    other_ends=("", "5,6"),
    decoder_layers=(None, 1, 3),
    warmup=range(1, 7),
    factor=(0.02, 0.07, 0.2),
    rate=(None,),  # another way to set the factor
    clip_norm=(None, 0.2, 0.7, 2.0),
    average=(1, 2, 3),
    r_drop=(0.0, 0.5, 4.0),
    precision=("float32",),  # mixed agrees to three digits: optimization/test_loss_scale.py
)


OF_OPTIMIZERS = {field.name for field in fields(OptimizerSettings)}
ENTRIES = [entry for registry in CHOICES_WITH_SETTINGS.values() for entry in registry.values()]
OF_CHOICES = set().union(*map(own_names, ENTRIES))
AHEAD = [entry for entry in ENTRIES if getattr(entry, "looks_ahead", True)]  # for the encoder
CHOSEN = set().union(*map(own_names, AHEAD))


def choices_of(field: Field) -> tuple:
    """The values of a field of Config or Recipe: those that it declares, or else some."""
    rule = field.metadata["rule"]
    if rule.type is bool:
        return (False, True)
    if rule.several:
        names = [n for n, entry in CHOICES_WITH_SETTINGS[field.name].items() if entry in AHEAD]
        return *names, *map(",".join, itertools.permutations(names, 2))
    others = (field.default,) if field.name in OF_CHOICES else ()
    others = (field.default, 1, 2) if field.name in CHOSEN else others
    others = (field.default, 0.6 * field.default) if field.name in OF_OPTIMIZERS else others
    return VALUES.get(field.name) or rule.choices or others


def stream(*key) -> np.random.Generator:
    """A random generator for one seed and purpose, independent of all others."""
    return np.random.default_rng([zlib.crc32(str(part).encode()) for part in key])


def random_settings(seed: int) -> tuple[Config, Recipe]:
    """A small Config and a Recipe with every field drawn; without dropout where `seed` is odd.

    Each value of a field draws a lot, and the highest wins. So a further field changes nothing in
    the others, and a further value only the Configs that take it.
    """
    drawn = {}
    for field in (*fields(Config), *fields(Recipe)):
        lots = {value: stream(seed, field.name, value).random() for value in choices_of(field)}
        drawn |= {field.name: max(lots, key=lots.get)} if lots else {}
    if not (drawn["d_k"] and drawn["d_v"]):
        drawn["d_model"] = drawn["heads"] * (4 + drawn["d_model"] % 2)
    if "rotary" in drawn["positions"]:  # which turns pairs
        drawn |= dict(d_k=2 * (drawn["d_k"] or 2), d_v=drawn["d_v"] or 3)
    if drawn["d_k"] == 1:  # a norm of one value has no gradient but of rounding
        drawn["qk_norm"] = "none"
    if drawn["tying"] in ("all", "inputs"):
        drawn["source_vocabulary"] = drawn["target_vocabulary"]
    drawn |= dict.fromkeys(DROPOUTS, 0.0) if seed % 2 else {}
    recipe = {field.name: drawn.pop(field.name) for field in fields(Recipe) if field.name in drawn}
    recipe |= ineffective_settings(recipe)
    for field in fields(Config):  # what belongs to other choices
        owners = Config.base(5).owners(field).items()
        if any(not {*names} & {*str(drawn[owner]).split(",")} for owner, names in owners):
            del drawn[field.name]
    try:
        return Config(**drawn), Recipe(**recipe)
    except InputError:  # settings of choices that do not fit
        without = OF_CHOICES | {*CHOICES_WITH_SETTINGS, "key_value_heads", "qk_norm"}
        drawn = {name: value for name, value in drawn.items() if name not in without}
        return Config(**drawn), Recipe(**recipe)


def random_inputs(rng: np.random.Generator, config: Config) -> PairBatch:
    """1 to 4 pairs of up to LONGEST ids, some without symbols; at times a source is all padding."""
    size, source, target = rng.integers((1, 2, 2), (5, LONGEST + 1, LONGEST + 1))
    batch = random_batch(rng, config, size, source, target, shortest=0)
    if size > 1 and rng.random() < 0.3:
        batch.source[0] = config.padding_id
    return batch


def of_random_config(seed: int, way: str) -> Solved:
    """Its gradients, "padded"; its loss's, "skipped_padding"; or six steps, "trained"."""
    (config, recipe), rng = RANDOM_SETTINGS[seed], stream(seed, "inputs")
    if way == "trained":
        batches = [random_inputs(rng, config) for _ in range(6)]
        return train(config, recipe, batches, seed, shift=rng)
    batch, model = random_inputs(rng, config), Transformer(config, seed)
    if way == "padded":
        inputs = [batch.source, batch.target_in]
        return differentiate(model, inputs, "transformer", config=config)
    settings = dict(config=config, smoothing=recipe.label_smoothing)
    layer = Objective(model, recipe.label_smoothing)
    return differentiate(layer, batch.inputs, "objective", **settings)


RANDOM_SETTINGS = [random_settings(seed) for seed in range(25)]
WITHOUT_DROPOUT = range(1, 25, 2)
RANDOM_CASES = {
    f"random_{seed}_{way}": partial(of_random_config, seed, way)
    for way in ("padded", "skipped_padding", "trained")
    for seed in (range(25) if way == "padded" else WITHOUT_DROPOUT)
}


# Ten steps of each optimizer. No setting of it at its default: one that does not arrive is seen.

# Training leaves padding out, so its dropout masks have other shapes than torch's.
TRAINED = Config(**(SMALL | dict(p_drop=0.0)))
STEPS, SEED = 10, 5


def ten_steps(optimizer: str) -> Solved:
    own = [f for f in fields(OptimizerSettings) if f.name in settings_of(OPTIMIZERS[optimizer])]
    others = {f.name: next(v for v in choices_of(f) if v not in (0, f.default)) for f in own}
    how = dict(label_smoothing=0.2, warmup=4, factor=0.1, clip_norm=3)
    rng = np.random.default_rng(SEED)
    batches = [random_batch(rng, TRAINED, B, S, T) for _ in range(STEPS)]
    return train(TRAINED, Recipe(optimizer=optimizer, **how, **others), batches, SEED, shift=rng)


# Long sequences: position tables and causal masks far beyond the sizes elsewhere.


def long_sequences(skip_padding: bool) -> Solved:
    """Logits and gradients, or the loss's without padding, of sources up to 300, targets to 257.

    A first batch leaves position tables of length 256, which have to grow.
    """
    rng = np.random.default_rng(11)
    config = Config.base(30, d_model=16, d_ff=24, heads=2, layers=2, p_drop=0.0)
    lengths = ((300, 190), (90, 257))
    batch = PairBatch.of([[rng.integers(3, 30, n - 1) for n in pair] for pair in lengths])
    model = Transformer(config)
    pack(model, float)
    with inference():
        model.forward(batch.source[:, :256], batch.target_in[:, :256])
    if skip_padding:
        settings = dict(config=config, smoothing=0.1)
        return differentiate(Objective(model, 0.1), batch.inputs, "objective", **settings)
    return differentiate(model, [batch.source, batch.target_in], "transformer", config=config)


# A trajectory: digits to reverse, from the first step until most of it is learned.


def trajectory() -> Solved:
    """Training on `reverse` with up to 4 digits, 200 steps."""
    task = SequenceTask(replace(reverse.RULE, draw_source=digits(4)), batch_size=16, seed=1)
    config = Config.base(len(task.text.source), d_model=24, d_ff=48, heads=4, layers=1, p_drop=0.0)
    recipe = Recipe(label_smoothing=0.0, warmup=30, factor=0.1, decay="linear")
    return train(config, recipe, [task.batch(step) for step in range(1, 201)], seed=1)


def rounding(norm: str) -> Solved:
    """The errors of float32 gradients, (tensors,), over six models and batches.

    In units of float32's epsilon and of a gradient's largest entry. The truth is numformer's
    float64. "largest" is the largest error, "typical" the root of the mean square.
    """
    config = Config.base(50, d_model=64, d_ff=128, heads=4, layers=2, p_drop=0.0, norm=norm)
    drawn, truths, found = [], [], []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        batch = random_batch(rng, config, 16, 24, 20)
        model = Transformer(config, seed)
        shift = 0.1 * rng.standard_normal(pack(model).data.shape)

        def gradients(dtype, model=model, batch=batch):
            objective = Objective(model, 0.1)
            pack(model, dtype)
            assert objective.forward(*batch.inputs).dtype == dtype  # nothing widened it
            objective.backward()
            return {name: p.grad for name, p in model.named_parameters().items()}

        pack(model).data += shift.astype(np.float32)
        for side, tower in ((model.source, model.encoder), (model.target, model.decoder)):
            for layer in tower.layers:
                # Far from ReLU's kink, where rounding decides between two gradients.
                inner = layer.feed_forward.sublayer.inner
                inner.weight.data[...] *= 0.1
                inner.bias.data[...] = (-1) ** np.arange(config.d_ff)
            if norm == "pre":  # a mean far from 0, which shows where LayerNorm loses digits
                side.embedding.weight.data[...] += 1
        drawn.append((model.state_dict(), batch))
        found.append(gradients(np.float32))
        truths.append(gradients(np.float64))

    def errors(found):
        largest, typical, of_batches = [], [], [*zip(found, truths, strict=True)]
        for name in truths[0]:
            both = [(gradients[name], true[name]) for gradients, true in of_batches]
            relative = np.concatenate([np.ravel(a - b) / np.abs(b).max() for a, b in both])
            largest.append(np.abs(relative).max())
            typical.append(np.sqrt(np.mean(relative**2)))
        epsilon = np.finfo(np.float32).eps
        return {"largest": np.array(largest) / epsilon, "typical": np.array(typical) / epsilon}

    def errors_of_torch():
        return errors([by_torch("gradients", config, 0.1, *drawing)() for drawing in drawn])

    arrays = [a for weights, batch in drawn for a in [*weights.values(), *batch.inputs]]
    return Solved(arrays, errors(found), errors_of_torch)


def differentiate_layer(case: Case) -> Solved:
    return differentiate(*case(), case.reference, **case.settings)


SMALL_CASES = {name: partial(differentiate_layer, case) for name, case in CASES.items()}
SMALL_CASES |= {f"ten_steps_of_{name}": partial(ten_steps, name) for name in OPTIMIZERS}
LARGE_CASES = {
    **RANDOM_CASES,
    "long_sequences": partial(long_sequences, skip_padding=False),
    "long_sequences_skipped_padding": partial(long_sequences, skip_padding=True),
}
EXACT_CASES = SMALL_CASES | LARGE_CASES
ALL_CASES = EXACT_CASES | {
    "trajectory": trajectory,
    "rounding_post_norm": partial(rounding, "post"),
    "rounding_pre_norm": partial(rounding, "pre"),
}


@cache
def solve(case: str) -> Solved:
    return ALL_CASES[case]()
