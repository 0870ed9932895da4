"""What holds for every model, in every form: each choice of its config, each mixer.

Nothing leaks from the future or from padding, writing step by step is reading the whole, a saved
model is one again.
"""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import numformer as nf
from numformer.gradient_check.cases import MIXER_SETTINGS
from numformer.later import MIXERS
from numformer.models.kinds import MODELS, model_class, model_kind
from numformer.paper.transformer import require_pair
from tests.equal_runs import assert_same_weights

V = 11
CLOSE = dict(rtol=1e-10, atol=1e-12)
SOURCE = np.array([[4, 5, 6, 7, 2], [8, 5, 2, 0, 0], [3, 2, 0, 0, 0]])
TARGET = np.array([[1, 9, 4, 5, 6, 3], [1, 9, 9, 8, 0, 0], [1, 7, 0, 0, 0, 0]])
WHOLE = np.where(TARGET, TARGET, 6)  # without padding
TOWER = dict(d_model=8, d_ff=12, heads=2, layers=2)
SIZES = {
    nf.Transformer: dict(source_vocabulary=V, target_vocabulary=V, **TOWER),
    nf.LanguageModel: dict(vocabulary=V, **TOWER),
    nf.MaskedLanguageModel: dict(vocabulary=V, **TOWER),
    nf.RecurrentEncoderDecoder: dict(source_vocabulary=V, target_vocabulary=V, d_model=6),
    nf.VisionTransformer: dict(height=4, width=6, channels=1, classes=7, **TOWER),
    nf.SpeechTransformer: dict(vocabulary=V, bands=3, frames=9, **TOWER),
}
SOUNDS = np.random.default_rng(4).standard_normal((3, 9, 3))
PAIRS = nf.Transformer, nf.RecurrentEncoderDecoder
CHOICES = [
    dict(norm="pre", activation="swiglu", normalization="rms"),
    dict(positions="learned", max_length=20),
    *(dict(positions=positions) for positions in ("rotary", "alibi", "none")),
    dict(attention_bias=True, d_k=4, d_v=5),
    dict(epsilon=0.1, embedding_norm=True, embedding_scale=False, output_bias=True),
    dict(positions="sinusoidal_halves"),
    *(changes for changes in MIXER_SETTINGS.values() if changes),
    *(
        changes | dict(positions="rotary", d_v=5) | ({} if name == "state_space" else dict(d_k=6))
        for name, changes in MIXER_SETTINGS.items()
        if changes
    ),
]
CELLS = [dict(cell="rnn", context="fixed"), dict(cell="lstm", context="fixed"), dict(cell="lstm")]


def is_possible(kind, form) -> bool:
    """Whether every mixer sees later positions, where the model has an encoder."""
    mixers = form.get("mixers", "attention").split(",")
    return not kind.Config.both_ways or all(MIXERS[name].looks_ahead for name in mixers)


FORMS = [
    *((kind, {}) for kind in SIZES),
    *(
        (kind, form)
        for kind in (nf.Transformer, nf.LanguageModel)
        for form in CHOICES
        if is_possible(kind, form)
    ),
    (nf.Transformer, dict(tying="none", source_vocabulary=V + 2)),
    (nf.Transformer, dict(tying="target", layers=3, decoder_layers=1)),
    (nf.LanguageModel, dict(tied=False)),
    (nf.MaskedLanguageModel, dict(tied=False, output_bias=True)),
    *((nf.MaskedLanguageModel, form) for form in CHOICES[:3]),
    *((nf.RecurrentEncoderDecoder, form) for form in CELLS),
    (nf.VisionTransformer, dict(positions="sinusoidal", patch=1)),
    (nf.VisionTransformer, dict(patch=1, channels=3, max_length=30)),
    (nf.VisionTransformer, dict(max_length=7)),
    (nf.SpeechTransformer, dict(norm="pre", decoder_layers=1, positions="sinusoidal")),
    (nf.SpeechTransformer, dict(attention_bias=True, attention_key_bias=False, frames=10)),
]


def every_model(*kinds):
    forms = [(kind, form) for kind, form in FORMS if kind in (kinds or SIZES)]
    names = [f"{kind.__name__} {form}" for kind, form in forms]
    return pytest.mark.parametrize(("kind", "form"), forms, ids=names)


every_writer = every_model(
    nf.Transformer, nf.LanguageModel, nf.RecurrentEncoderDecoder, nf.SpeechTransformer
)


def small(kind, seed: int = 0, **form):
    """A small model in float64, its parameters shaken, without dropout."""
    model = kind(kind.Config(**(SIZES[kind] | dict(p_drop=0.0) | form)), seed)
    flat = nf.pack(model, np.float64)
    flat.data += 0.3 * np.random.default_rng(1).standard_normal(flat.data.shape)
    return model


def read(model, target, source=SOURCE):
    """Its logits of every position of a target, of sources where it reads some."""
    if isinstance(model, nf.SpeechTransformer):
        return model.forward(SOUNDS[: len(target)], target)
    pair = isinstance(model, PAIRS)
    return model.forward(source[: len(target)], target) if pair else model.forward(target)


# Nothing leaks.


@every_writer
def test_no_position_sees_the_future_and_every_one_its_past_and_the_source(kind, form):
    """98 % accuracy with the right target as input, and nonsense when decoding."""
    model = small(kind, **form)
    logits = read(model, WHOLE)
    assert getattr(model.config, "both_ways", False) == (
        kind in (nf.Transformer, nf.SpeechTransformer)
    )  # which have an encoder
    for t in range(WHOLE.shape[1]):
        changed = WHOLE.copy()
        changed[:, t] = 10
        other = read(model, changed)
        assert_array_equal(other[:, :t], logits[:, :t])
        assert (other[:, t : t + 2] != logits[:, t : t + 2]).any(axis=-1).all()
    for s in range(SOURCE.shape[1]) if kind in PAIRS else ():
        source = SOURCE[:1].copy()
        source[:, s] = 10
        assert (read(model, WHOLE[:1], source) != logits[:1]).any(axis=-1).all()


@every_model(nf.MaskedLanguageModel)
def test_every_position_of_what_looks_both_ways_sees_every_other(kind, form):
    model = small(kind, **form)
    logits = model.forward(WHOLE)
    assert model.config.both_ways
    for t in range(WHOLE.shape[1]):
        changed = WHOLE.copy()
        changed[:, t] = 10
        assert (model.forward(changed) != logits).any(axis=-1).all()


@every_model(nf.Transformer, nf.MaskedLanguageModel, nf.RecurrentEncoderDecoder)
def test_a_padded_batch_is_its_sequences_alone(kind, form):
    """Forward; and backward the gradients of the batch are the sums of those of its rows."""
    model, rng = small(kind, **form), np.random.default_rng(2)
    upstream = rng.standard_normal((*TARGET.shape, V)) * (TARGET != 0)[..., None]
    source, target = np.pad(SOURCE, ((0, 0), (0, 3))), np.pad(TARGET, ((0, 0), (0, 2)))
    together = read(model, target, source)
    model.backward(np.pad(upstream, ((0, 0), (0, 2), (0, 0))))
    of_batch = [p.grad.copy() for p in model.named_parameters().values()]
    model.zero_grad()
    for row, (symbols, length) in enumerate(zip((5, 3, 2), (6, 4, 2), strict=True)):
        alone = read(model, TARGET[row : row + 1, :length], SOURCE[row : row + 1, :symbols])
        assert_allclose(alone[0], together[row, :length], **CLOSE)
        model.backward(upstream[row : row + 1, :length])
    for gradient, parameter in zip(of_batch, model.named_parameters().values(), strict=True):
        assert_allclose(parameter.grad, gradient, rtol=1e-9, atol=1e-10)


@every_model(*PAIRS)
def test_predictions_leave_padding_out(kind, form, complaint):
    """Logits and gradients are those of the padded batch, also of a source of padding alone."""
    model, real, source = small(kind, **form), TARGET != 0, SOURCE.copy()
    source[1] = 0
    following = np.where(real, TARGET - 1, 0)
    upstream = np.random.default_rng(3).standard_normal((*TARGET.shape, V)) * real[..., None]
    expected = read(model, TARGET, source)[real]
    model.backward(upstream)
    gradients = [p.grad.copy() for p in model.named_parameters().values()]
    model.zero_grad()
    logits, targets = model.predictions(source, TARGET, following)
    assert_array_equal(targets, TARGET[real] - 1)
    assert_allclose(logits, expected, **CLOSE)
    model.backward(upstream[real])
    for gradient, parameter in zip(gradients, model.named_parameters().values(), strict=True):
        assert_allclose(parameter.grad, gradient, rtol=1e-9, atol=1e-12)
    assert "at least one target position" in complaint(model.predictions, SOURCE, *[0 * TARGET] * 2)
    if kind is nf.Transformer:
        logits, _ = model.predictions(0 * SOURCE, TARGET, following)
        assert_allclose(logits, read(model, TARGET, 0 * SOURCE)[real], **CLOSE)


# Writing.


@every_writer
def test_writing_step_by_step_equals_reading_the_whole(kind, form):
    """Whatever rows were chosen, repeated or dropped on the way.

    Positions of the past, their offset and the padding of sources all enter here.
    """
    model, chosen, source = small(kind, **form), np.array([2, 2, 0]), SOURCE.copy()
    source[2] = 0
    beginning = 3 if kind is nf.LanguageModel else 1
    with nf.inference():
        whole = read(model, WHOLE, source)
        asked = source if kind in PAIRS else WHOLE[:, :beginning]
        asked = SOUNDS if kind is nf.SpeechTransformer else asked
        state = model.start(asked, WHOLE.shape[1] + 1 - beginning)
        assert_array_equal(state.ids, WHOLE[:, beginning - 1])
        for t in range(beginning - 1, 4):
            assert state.past.length == t
            assert_allclose(model.step(WHOLE[:, t], state), whole[:, t], **CLOSE)
        state.choose(chosen)
        assert_array_equal(state.ids, WHOLE[chosen, beginning - 1])
        for t in range(4, WHOLE.shape[1]):
            assert_allclose(model.step(WHOLE[chosen, t], state), whole[chosen, t], **CLOSE)


@every_model(nf.LanguageModel)
def test_several_positions_may_follow_what_is_remembered(kind, form):
    """Each sees the others before it, too."""
    model = small(kind, **form)
    with nf.inference():
        state = model.start(WHOLE[:, :3], 4)
        found = model.forward(WHOLE[:, 2:], state.past)
    assert_allclose(found, model.forward(WHOLE)[:, 2:], **CLOSE)


# What a model is.


@every_model()
def test_the_seed_determines_the_weights_and_the_config_the_least_parameters(kind, form):
    """The least number of parameters of a config is the number of entries of its matrices."""
    config = kind.Config(**(SIZES[kind] | form))
    weights = [nf.pack(kind(config, *seed)).data for seed in ((), (0,), (3,))]
    assert_array_equal(weights[0], weights[1])
    assert (weights[0] != weights[2]).any()
    parameters = kind(config).named_parameters().items()  # all layers share a table of distances
    matrices = [p.size for name, p in parameters if p.data.ndim > 1 and "bias.table" not in name]
    least, gates = config.least_parameters, form.get("activation") == "swiglu"
    assert least == sum(matrices) if not gates else least < sum(matrices)


def test_the_least_parameters_of_an_untied_language_model():
    model = small(nf.LanguageModel, tied=False)
    tied = replace(model.config, tied=True).least_parameters
    assert model.config.least_parameters - tied == model.output.weight.size


@every_model()
def test_a_saved_model_is_one_again(kind, form, empty_folder):
    for dtype in (np.float32,) if form else (np.float64, np.float32):
        model, path = small(kind, **form), Path("model.safetensors")
        nf.pack(model, dtype)
        nf.save_model(path, model, task={"symbols": "abc"})
        again, metadata = nf.load_model(path)
        assert (
            type(again) is kind is model_class(metadata["model"]) and again.config == model.config
        )
        assert_same_weights(again.state_dict(), model.state_dict())
        assert metadata["task"] == {"symbols": "abc"}
        assert {array.dtype for array in again.state_dict().values()} == {np.dtype(dtype)}


@pytest.mark.parametrize("kind", [*SIZES][:4])
def test_ids_that_are_no_batch_are_refused(kind, complaint):
    model = small(kind)
    readers = [model.forward]
    if kind in PAIRS:
        readers = [lambda ids: model.forward(SOURCE, ids), lambda ids: model.forward(ids, TARGET)]
    if kind is not nf.MaskedLanguageModel:
        readers += [lambda ids: model.start(ids, 3)]
    for reader in readers:
        for shape in ((0, 3), (3,)):
            message = complaint(reader, np.ones(shape, int))
            assert "ids are a NumPy array (B, " in message and f"shape {shape}" in message
        assert "received list" in complaint(reader, [[4, 2]])


@pytest.mark.parametrize("kind", PAIRS)
@pytest.mark.parametrize(("sources", "targets"), [(2, 3), (3, 2), (1, 3)])
def test_source_and_target_have_as_many_rows(kind, sources, targets, complaint):
    """A batch of 1 would broadcast in forward and fail far away in backward."""
    text = complaint(small(kind).forward, SOURCE[:sources], TARGET[:targets])
    assert f"{sources} sources and {targets} targets" in text
    padding = np.zeros_like(SOURCE), np.zeros_like(SOURCE)
    require_pair(*padding, skip_padding=False)
    assert "at least one target position is not padding" in complaint(require_pair, *padding, True)


@pytest.mark.parametrize("kind", PAIRS)
def test_a_source_to_write_from_ends_with_the_end_id(kind, complaint):
    """Rows of padding alone are none."""
    assert "row 1, which ends with 5" in complaint(small(kind).start, nf.pad([[4, 2], [4, 5]]), 3)
    with nf.inference():
        small(nf.Transformer).start(np.array([[4, 2], [0, 0], [2, 0]]), 3)


# Of one kind each.


def test_a_language_model_predicts_what_follows_every_position():
    model = small(nf.LanguageModel)
    logits, targets = model.predictions(WHOLE[:, :-1], WHOLE[:, 1:])
    assert_allclose(logits, model.forward(WHOLE)[:, :-1], **CLOSE)
    assert_array_equal(targets, WHOLE[:, 1:])


def test_a_masked_model_predicts_at_the_places_that_are_asked_for_alone(complaint):
    """With the gradient of the whole, 0 elsewhere; forwards of both kinds may wait together."""
    model, targets = small(nf.MaskedLanguageModel), np.where(np.eye(3, 6, 2), TARGET, 0)
    rng, parameters = np.random.default_rng(2), model.named_parameters().values()
    logits, asked = model.predictions(TARGET, targets)
    assert_array_equal(asked, targets[targets != 0])
    whole = model.forward(TARGET)
    assert_allclose(logits, whole[targets != 0], **CLOSE)
    dlogits, dwhole = rng.standard_normal(logits.shape), np.zeros_like(whole)
    dwhole[targets != 0] = dlogits
    model.backward(dwhole)
    gradients = [p.grad.copy() for p in parameters]
    model.backward(dlogits)
    for gradient, parameter in zip(gradients, parameters, strict=True):
        assert_allclose(parameter.grad, 2 * gradient, **CLOSE)
    assert "at least one target; received targets that are all padding" in complaint(
        model.predictions, TARGET, 0 * TARGET
    )


def test_a_kind_names_a_model(complaint):
    for name, model in MODELS.items():
        assert model_class(name) is model and model_kind(model) == name
    for kind in ("none", "model", "block", "", None, ["model"]):
        text = complaint(model_class, kind)
        assert "a saved model is one of encoder_decoder, language_model, masked, rec" in text
        assert f"received {kind!r}" in text


def test_an_ensemble_of_one_model_is_that_model():
    model = small(nf.LanguageModel)
    assert nf.greedy(nf.Ensemble([model]), WHOLE[:, :2], 3) == nf.greedy(model, WHOLE[:, :2], 3)


@pytest.mark.parametrize("form", [None, {}, dict(positions="alibi")])
def test_a_text_goes_on_whole_where_nothing_tells_how_long_it_is(form, monkeypatch):
    """Otherwise from half the context; of an ensemble nothing is known."""
    config = SimpleNamespace() if form is None else small(nf.LanguageModel, **form).config
    read = []

    def as_many(model, ids, room):
        read.append((ids.shape[1], room))
        return [[4] * room]

    monkeypatch.setattr("numformer.generation.continuation.greedy", as_many)
    text = nf.Continuation(nf.Vocabulary("abc"), context=8)
    text.write(SimpleNamespace(config=config), [[*"abc"]], length=10)
    assert read == ([(3, 10)] if form else [(3, 5), (4, 4), (4, 1)])
