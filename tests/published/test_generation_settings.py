"""The settings of generation: each is followed as transformers follows it, or a warning names it.

The tests compare with what transformers wrote, stored in generation_reference.json by

    python tests/published/test_generation_settings.py --store
"""

import dataclasses
import functools
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from published_cases import CASES, V, WritingModel

import numformer as nf
from numformer.generation import Labelling
from numformer.generation.binding import Binding
from numformer.generation.rules import RENORMALIZE, RULES, RuledWriter, Texts, are_valid
from numformer.paper.beam import largest_entries, most_probable
from numformer.paper.memory import Memory, State
from numformer.published import generation
from numformer.published.configs import ForeignConfig
from numformer.published.generation import notes, read_rules
from numformer.published.loading import load_published
from numformer.symbols import special_ids

STORED = Path(__file__).with_name("generation_reference.json")
NO_TRANSFORMERS = "transformers is not installed; its stored texts stand in"
NAMES = ["marian", "t5", "gpt2"]
SETTINGS: dict[str, dict] = {
    "plain": {},
    "renormalized": dict(renormalize_logits=True, bad_words_ids=[[5], [9], [11], [12, 13]]),
    "early": dict(early_stopping=True),
    "patient": dict(early_stopping="never"),
    "words": dict(bad_words_ids=[[n, m] for n in range(V) for m in range(5, V, 7)] + [[6], [2]]),
    "suppressed": dict(suppress_tokens=[*range(3, 25)]),
    "at first": dict(begin_suppress_tokens=[*range(3, 40)]),
    "forced": dict(forced_bos_token_id=0, forced_eos_token_id=[2]),
    "forced and suppressed": dict(
        forced_eos_token_id=1, forced_bos_token_id=7, begin_suppress_tokens=[*range(3, 40)]
    ),
    "decay": dict(exponential_decay_length_penalty=[1, 3.0]),
    "longer": dict(exponential_decay_length_penalty=[0, 0.1], min_length=10),
    "late": dict(min_new_tokens=6),
    "biased": dict(sequence_bias=[[[9], 2.5], [[9, 9], -5.0], [[11, 9, 30], 3.0], [[12], 2.0]]),
    "once": dict(no_repeat_ngram_size=1),
    "no pair twice": dict(no_repeat_ngram_size=2),
    "not of the source": dict(encoder_no_repeat_ngram_size=1),
    "no pair of the source": dict(encoder_no_repeat_ngram_size=2, repetition_penalty=0.2)
    | dict(bad_words_ids=[[0]]),
    "penalized": dict(repetition_penalty=1.8),
    "of the source": dict(encoder_repetition_penalty=3.0),
}
BEAMS = 1, 4


class UnsureModel(WritingModel):
    """A WritingModel whose symbols are about equally probable, the end more than others."""

    def __post_init__(self):
        super().__post_init__()
        output = self.model.output.weight.data
        output *= 0.1
        output[self.model.config.special.end] *= 2


@functools.cache
def stored() -> dict:
    return json.loads(STORED.read_text(encoding="utf-8"))


def example_of(name: str, settings: dict) -> UnsureModel:
    """A model whose config.json has the settings, as that of an early release."""
    values = CASES[name] | settings
    if "bad_words_ids" in CASES[name] and "bad_words_ids" in settings:
        values["bad_words_ids"] = CASES[name]["bad_words_ids"] + settings["bad_words_ids"]
    return UnsureModel(name, values)


@pytest.mark.parametrize("case", SETTINGS)
@pytest.mark.parametrize("name", NAMES)
def test_texts_follow_the_settings_as_transformers_does(name, case, tmp_path):
    example = example_of(name, SETTINGS[case])
    model, _ = load_published(example.save(tmp_path))
    foreign, source = ForeignConfig(example.values), example.inputs[0]
    rules, early = read_rules(foreign, V), foreign.get("early_stopping", False)
    greedy = nf.generation.greedy(RuledWriter(model, rules), source, example.length)
    settings = 4, 1.0, "length", rules, early
    found = nf.generation.beam_search(model, source, example.length, *settings)
    assert [greedy, found] == stored()["written"][name][case]


def test_every_setting_changes_a_text():
    written = stored()["written"]
    for case in {*SETTINGS} - {"plain"}:
        assert any(written[name][case] != written[name]["plain"] for name in NAMES), case


def written_by_transformers(reference, name: str) -> dict:
    written, example = {}, UnsureModel(name, CASES[name])
    with tempfile.TemporaryDirectory() as folder:
        example.save(Path(folder))
        for case, settings in SETTINGS.items():
            words = example_of(name, settings).values.get("bad_words_ids") or []
            words = [*words, *([n] for n in example.model.config.special.unwritten)]
            further = settings | dict(bad_words_ids=words or None, length_penalty=1.0)
            written[case] = [reference.written(example, Path(folder), n, **further) for n in BEAMS]
    return written


@pytest.mark.parametrize("name", NAMES)
def test_transformers_writes_the_stored_texts(name):
    reference = pytest.importorskip("published_reference", reason=NO_TRANSFORMERS)
    assert written_by_transformers(reference, name) == stored()["written"][name]


FOLDER = Path("folder")
EFFECTIVE: dict[str, object] = dict(num_beams=3, max_length=30, max_new_tokens=8, do_sample=True)
EFFECTIVE |= dict(constraints=[[4]], force_words_ids=[[4]], stop_strings=["."], max_time=3.5)
EFFECTIVE |= dict(watermarking_config={"bias": 2.5}, token_healing=True, dola_layers="low")
EFFECTIVE |= dict(guidance_scale=1.5, remove_invalid_values=True, num_return_sequences=2)
EFFECTIVE |= dict(penalty_alpha=0.6, diversity_penalty=0.5, num_beam_groups=2, min_p=0.1)
EFFECTIVE |= dict(top_h=0.5, typical_p=0.9, epsilon_cutoff=3e-4, eta_cutoff=2e-3)
"""Values with an effect of the settings that a warning may name."""


def warned(values: dict, continues: bool) -> list[str]:
    return [*notes(FOLDER, ForeignConfig(values), values, continues)]


def test_every_field_of_transformers_is_followed_or_a_warning_names_it():
    """One of another release, whose effect is unknown, is named, too."""
    parts = generation.FOLLOWED, generation.WITHOUT_EFFECT, generation.LACKING, generation.CUTS
    assert sorted(name for part in parts for name in part) == sorted({*stored()["fields"]} | LATER)
    for name in (*generation.LACKING, *generation.CUTS):
        (line,) = warned({"do_sample": True, "top_k": 0, name: EFFECTIVE[name]}, True)
        assert line.startswith(f"folder sets {name} {EFFECTIVE[name]!r}, which numformer lacks: ")
    for name in generation.WITHOUT_EFFECT:
        assert not warned({name: "anything"}, True) + warned({name: "anything"}, False)
    (line,) = warned(dict(new_in_6=[5], newer=None), False)
    assert line.startswith("folder sets new_in_6 [5], which")


LATER = {"_commit_hash"}
"""What files of earlier releases have besides."""


WITHOUT_EFFECT: dict[str, Any] = dict(guidance_scale=1, num_return_sequences=1)
WITHOUT_EFFECT |= dict(penalty_alpha=0, diversity_penalty=0.0, min_p=0, top_h=1, typical_p=1.0)
WITHOUT_EFFECT |= dict(epsilon_cutoff=0.0, eta_cutoff=0.0, num_beams=1, num_beam_groups=1)
WITHOUT_EFFECT |= dict(
    token_healing=False, remove_invalid_values=False, max_time=None, top_k=0, top_p=1.0
)
RULES_WITHOUT_EFFECT: dict[str, Any] = dict(
    min_length=0, min_new_tokens=0, renormalize_logits=False
)
RULES_WITHOUT_EFFECT |= dict(no_repeat_ngram_size=0, encoder_no_repeat_ngram_size=0)
RULES_WITHOUT_EFFECT |= dict(repetition_penalty=1, encoder_repetition_penalty=1)
RULES_WITHOUT_EFFECT |= dict(sequence_bias=[], bad_words_ids=[], begin_suppress_tokens=[])


def test_settings_without_an_effect_are_not_warned_of():
    neutral = WITHOUT_EFFECT | RULES_WITHOUT_EFFECT
    for continues in (True, False):
        assert not warned(neutral | dict(do_sample=continues), continues)
    assert read_rules(ForeignConfig(neutral), V) == []
    assert not warned(dict(min_p=0.1, top_h=0.5, top_k=7, top_p=0.9), True)  # it does not sample


@pytest.mark.parametrize(
    ("name", "continues", "words"),
    [
        ("num_beams", True, "sets num_beams 3, which"),
        ("max_length", True, "sets max_length 30, which"),
        ("max_new_tokens", True, "as in trained(text, length=8)"),
        ("do_sample", True, "as in trained(text, top_k=50)"),
        ("do_sample", False, "sets do_sample True, which"),
        *((name, False, "") for name in ("num_beams", "max_length", "max_new_tokens", "min_p")),
    ],
)
def test_what_depends_on_the_kind_of_model_is_named(name, continues, words):
    lines = warned({name: EFFECTIVE[name]}, continues)
    assert len(lines) == bool(words) and all(words in line for line in lines)


def test_the_fields_of_transformers_are_the_stored_ones():
    pytest.importorskip("transformers", reason=NO_TRANSFORMERS)
    assert fields_of_transformers() == stored()["fields"]


WRONG: dict[str, list] = {
    "sequence_bias": [3, [[4, 1.0]], [[[4], True]], [[[4], 1.0, 2]], [[[50], 1.0]], [([4], 1.0)]],
    "encoder_repetition_penalty": [0, -1.0, "1", float("inf")],
    "repetition_penalty": [0.0],
    "no_repeat_ngram_size": [-1, 1.5, True, "2"],
    "encoder_no_repeat_ngram_size": [-2],
    "bad_words_ids": [[[]], [[4, 50]], [[4, -1]], [[True, 2]]],
    "min_length": [-1],
    "min_new_tokens": [2.5],
    "forced_bos_token_id": [50, -1, True, [3], "3"],
    "forced_eos_token_id": [50, [], [50], [3, "4"]],
    "exponential_decay_length_penalty": [
        3,
        [3],
        [3, 0.0],
        [3, "2"],
        [-1, 1.5],
        [1.5, 1.5],
        [1, 1.5, 2],
    ],
    "begin_suppress_tokens": [4, [50], [-1]],
    RENORMALIZE: [3, "yes"],
}


@pytest.mark.parametrize("name", WRONG)
def test_an_invalid_rule_is_refused_by_name(name, complaint):
    for value in WRONG[name]:
        refused = complaint(read_rules, ForeignConfig({name: value}), V)
        assert refused.startswith(f"{name} is a rule of generation for 50 symbols; received ")
    assert {*WRONG} == {*RULES, RENORMALIZE}
    assert not are_valid([["bad_words_ids", {}]], V)
    with pytest.raises(KeyError):
        are_valid([["another", 3]], V)
    values = [value for settings in SETTINGS.values() for value in settings.items()]
    valid = [[rule, value] for rule, value in values if rule in RULES]
    assert are_valid(valid, V) and {rule for rule, _ in valid} == {*RULES}


def test_a_search_follows_known_rules_alone(complaint):
    model = UnsureModel("t5", CASES["t5"]).model
    ids = np.array([[4, 5, 1]])
    settings = dict(count=1, beam=2)
    unknown = complaint(nf.generation.n_best, model, ids, 3, rules=[["other", 1]], **settings)
    assert "one of sequence_bias, " in unknown and "renormalize_logits; received 'other'" in unknown
    assert type(RuledWriter(model, []).model) is Binding
    unknown = complaint(nf.generation.n_best, model, ids, 3, early_stopping="no", **settings)
    assert "early_stopping is None, True, False or \"never\"; received 'no'" in unknown


class Repeated:
    """A Writer that gives the same logits (B, V) in each step, in the same array."""

    def __init__(self, logits: np.ndarray):
        sizes = dict(d_model=8, d_ff=8, heads=2, layers=1)
        self.logits, self.config = logits, nf.LanguageModel.Config(vocabulary=V, **sizes)

    def start(self, inputs, length: int):
        return State(inputs[:, -1], Memory(length))

    def step(self, ids, state):
        return self.logits


@pytest.mark.parametrize("searched", [False, True])
def test_a_writer_with_rules_by_hand(searched, rng):
    """Probabilities that are renormalized are those of what may be written."""
    logits = rng.standard_normal((2, V)).astype(np.float32)
    before, prompt = logits.copy(), np.array([[4, 5], [6, 7]])
    rules = [["min_new_tokens", 1], [RENORMALIZE, True]]
    special = special_ids(Repeated(logits))
    assert special.unwritten and not {*special.unwritten} & {*special.ends}
    for renormalized in (True, False):
        writer = RuledWriter(Repeated(logits), rules[: 1 + renormalized], searched)
        texts = writer.start(prompt, 3)
        for ids, never in (texts.ids, special.ends), (np.array([8, 9]), ()):
            scores = writer.step(ids, texts)
            choose = writer.candidates(most_probable, largest_entries)
            symbols, log_p = choose(scores, V + 9, special)
            assert_array_equal(symbols, [[*range(V)]] * 2)
            excluded = {*special.unwritten, *never}
            assert {*np.flatnonzero(np.isneginf(log_p).all(axis=0))} == excluded
            if renormalized:
                assert_allclose(np.exp(log_p).sum(axis=1), 1, rtol=1e-6)
            elif never:
                assert_array_equal(log_p, np.where(np.isin(symbols, [*excluded]), -np.inf, scores))
            best, _ = choose(scores, 3, special)
            for row, found in zip(log_p, best, strict=True):
                assert_array_equal(found, np.sort(np.argsort(row)[-3:]))
            assert_array_equal(logits, before)
        assert scores is logits and texts.known.tolist() == [[4, 5, 8], [6, 7, 9]]


def test_rules_by_hand():
    scores = np.zeros((2, V))
    texts = Texts(None, np.array([[5, 6], [6, 5]]), np.array([[5, 6, 7, 9]] * 2), 1, 9, None, False)
    texts.special = special_ids(Repeated(scores))
    RULES["encoder_no_repeat_ngram_size"].change(scores, texts, 3)
    assert np.argwhere(scores < 0).tolist() == [[0, 7]]
    RULES["forced_bos_token_id"].change(scores, texts, 3)
    assert_array_equal(scores, [[0.0 if n == 3 else -np.inf for n in range(V)]] * 2)


@pytest.mark.parametrize(
    ("name", "value", "lengths"),
    [
        ("sequence_bias", [[[5], 1.0]], {3, 4, 5, 6, 7, 8}),
        ("min_length", 5, {3, 4}),
        ("min_new_tokens", 3, {3, 4, 5}),
        ("forced_bos_token_id", 5, set()),
        ("forced_eos_token_id", 5, {8}),
        ("exponential_decay_length_penalty", [2, 1.5], {6, 7, 8}),
        ("begin_suppress_tokens", [5], {3}),
    ],
)
def test_the_lengths_at_which_a_rule_holds(name, value, lengths):
    """For texts of at most nine ids, of which three are the prompt, so that no start is single."""
    ids, holds = np.full((1, 9), 5), RULES[name].when
    for forced in (False, True):
        texts = {n: Texts(None, ids[:, :n], ids, 3, 9, None, forced) for n in range(3, 9)}
        assert {n for n in texts if holds(texts[n], value)} == lengths


def test_after_a_single_start():
    """If the first id is forced, ids that may not begin a text may not come second."""
    for forced in (False, True):
        ids = np.array([[1, 5, 6]])
        written = [Texts(None, ids[:, :n], ids, 1, 9, None, forced) for n in range(1, 4)]
        suppressed = [RULES["begin_suppress_tokens"].when(texts, [5]) for texts in written]
        assert RULES["forced_bos_token_id"].when(written[0], 5)
        assert suppressed == [not forced, forced, False]


def test_rules_and_labels_on_a_device_are_those_on_the_host(stand_in, tmp_path):
    small, vocabulary = dict(d_model=8, d_ff=8, heads=2, layers=1), nf.Vocabulary("abcdef")
    model = nf.Transformer(nf.Config.base(len(vocabulary), **small))
    rules = [["no_repeat_ngram_size", 1], ["repetition_penalty", 1.5]]
    text = nf.Transduction(vocabulary, vocabulary, 4, rules=rules)
    classes = dict(vocabulary=len(vocabulary), relations=2, transform=True)
    classifier = nf.MaskedLanguageModel(nf.MaskedLanguageModel.Config(**classes, **small))
    labels = Labelling(vocabulary, 9, ["good", "bad"])

    def answers():
        written = [text.write(model, [["a", "b"]], beam=beam) for beam in (1, 3)]
        return written, labels.write(classifier, [["a", "b"]])

    expected = answers()
    nf.pack(model, np.float32, stand_in), nf.pack(classifier, np.float32, stand_in)
    assert answers() == expected


def test_pipelines_follow_rules_however_they_write():
    """By greedy choice, by beam search, and at random; of several hypotheses, each one."""
    vocabulary = nf.Vocabulary("abcdef")
    size, (a, b) = len(vocabulary), vocabulary.encode("ab")
    sizes = dict(d_model=8, d_ff=8, heads=2, layers=1)
    model = nf.Transformer(nf.Config.base(size, **sizes))
    rules = [["forced_bos_token_id", a], ["min_new_tokens", 3], ["no_repeat_ngram_size", 1]]
    text = nf.Transduction(vocabulary, vocabulary, 4, rules=rules, early_stopping=False)
    assert text.fits(model.config)
    texts = [["c", "d"], ["e"]]
    for settings in ({}, dict(beam=2), dict(temperature=1.0, seed=5)):
        for written in text.write(model, texts, **settings):
            assert written[0] == "a" and len({*written}) == len(written) >= 2, settings
    for hypotheses in text.n_best(model, texts, 2):
        assert all(written[0] == "a" for _, written in hypotheses)
    for wrong in (dict(rules=[["min_length", -1]]), dict(early_stopping="no")):
        assert not dataclasses.replace(text, **wrong).fits(model.config)
    language = nf.LanguageModel(nf.LanguageModel.Config(vocabulary=size, **sizes))
    words = [["begin_suppress_tokens", [*range(size - 1)]], ["no_repeat_ngram_size", 1]]
    text = nf.generation.Continuation(vocabulary, 9, rules=words)
    assert text.fits(language.config)
    assert not dataclasses.replace(text, rules=[["min_length", -1]]).fits(language.config)
    for settings in ({}, dict(temperature=1.0)):
        for written in text.write(language, [["b", "a"]], length=3, **settings):
            assert written[2] == "f" and len({*written}) == len(written), settings
    assert b != a


def fields_of_transformers() -> list[str]:
    import transformers

    return sorted(vars(transformers.GenerationConfig()))


def store() -> None:
    import published_reference as reference

    written = {name: written_by_transformers(reference, name) for name in NAMES}
    parts = {"fields": fields_of_transformers(), "written": written}
    lines = (f"{json.dumps(name)}: {json.dumps(part)}" for name, part in parts.items())
    STORED.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__" and sys.argv[1:] == ["--store"]:
    store()
