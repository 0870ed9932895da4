"""Answers of a trained model: the flags of its kind of text, and the order of the answers."""

import io
import shlex
from pathlib import Path

import pytest

from numformer.data import Vocabulary
from numformer.generation import Continuation, Transduction
from numformer.models import LanguageModel, Transformer
from numformer.runs import save_model
from numformer.trained import Trained
from tests.toy_tasks.small import main_of
from toy_tasks import TASKS

LETTERS = Vocabulary("abcd")
TEXTS = {
    "pairs": Transduction(LETTERS, LETTERS, 6, None, beam=3, penalty="length"),
    "write": Continuation(LETTERS, context=8),
    "shakespeare": Continuation(LETTERS, 8, temperature=0.3),
    "scaling": Continuation(LETTERS, 8, temperature=0.0),
}
SIZES = dict(d_model=8, d_ff=8, heads=2, layers=1)
MODELS = {
    "pairs": Transformer(Transformer.Config.base(len(LETTERS), **SIZES)),
    "write": LanguageModel(LanguageModel.Config(vocabulary=len(LETTERS), **SIZES)),
}
MODELS |= dict.fromkeys(("shakespeare", "scaling"), MODELS["write"])
RULE = "-" * 15
BEST = "0.5000\t<a>", "0.5000\t<b>"
SAMPLED = dict(length=200, temperature=0.8)
ANSWERS = [  # task, flags, settings of the writing, what is printed
    ("pairs", "--input a", {}, ["<a>"]),
    ("pairs", "--input a '' b", {}, ["<a>", "", "<b>"]),
    ("pairs", "", {}, ["<d>", "", "<b >"]),
    ("write", "", SAMPLED | dict(seed=1), ["<d>", "", "<b >"]),
    ("pairs", "--input a --beam 1", dict(beam=1), ["<a>"]),
    (
        "pairs",
        "--input a --beam 4 --length-penalty 2 --penalty paper --max-length 5",
        dict(beam=4, length_penalty=2.0, penalty="paper", max_length=5),
        ["<a>"],
    ),
    (
        "pairs",
        "--input a '' b --temperature 2 --top-k 3 --top-p 0.5 --seed 4 --count 2",
        dict(temperature=2.0, top_k=3, top_p=0.5, seed=4),
        ["<a>", "<a>", "", "<b>", "<b>"],
    ),
    ("pairs", "--n-best 2 --input a '' b", {}, [BEST[0], BEST[0], "", BEST[1], BEST[1]]),
    ("pairs", "--n-best 1 --beam 3 --input a", dict(beam=3), [BEST[0]]),
    ("write", "--input a ''", SAMPLED | dict(seed=1), ["<a>", ""]),
    ("write", "--input ' '", SAMPLED | dict(seed=1), ["< >"]),
    ("write", "--input a --seed 3 --length 5", dict(length=5, temperature=0.8, seed=3), ["<a>"]),
    ("write", "--input a --greedy", dict(length=200, temperature=0.0, seed=1), ["<a>"]),
    ("write", "--input a b --count 1", SAMPLED | dict(seed=1), ["<a>", RULE, "<b>", RULE]),
    ("write", "--input-file scene.txt", SAMPLED | dict(seed=1), ["<ab", "cd>"]),
    ("write", "--input-file -", SAMPLED | dict(seed=1), ["<d", "", "b ", ">"]),
]
ANSWERS += [  # a run's own temperature, also from Python; the command line overrides it
    ("shakespeare", "--input a", dict(length=200, seed=1), ["<a>"]),
    ("shakespeare", "--input a --top-k 2", dict(length=200, top_k=2, seed=1), ["<a>"]),
    ("shakespeare", "--input a --greedy", dict(length=200, temperature=0.0, seed=1), ["<a>"]),
]
REFUSED = [
    (
        "pairs --n-best 2 --temperature 1",
        "--n-best cannot be combined with --temperature; received both",
    ),
    (
        "pairs --n-best 3 --beam 2",
        "count (--n-best) is at most beam (--beam); received count 3, beam 2",
    ),
    ("pairs --n-best 1001", "an integer from 1 to 1,000, not '1001'"),
    ("pairs --n-best 0", "an integer from 1 to 1,000, not '0'"),
    ("pairs --beam 2 --top-k 2", "either found by beam search or sampled; received beam 2 and"),
    ("pairs --beam 1 --penalty paper", "the hypotheses of a beam; received beam 1"),
    ("pairs --length-penalty 9.1", "a number from 0 to 9, not '9.1'"),
    ("pairs --length-penalty x", "a number from 0 to 9, not 'x'"),
    ("pairs --max-length 4097", "max_length is an integer from 1 to 4096; received 4097"),
    ("pairs --length 5", "unrecognized arguments: --length 5"),
    ("pairs --count 2", "--count is for answers that are sampled at random"),
    ("write --greedy --top-p 0.5", "--top-p is for answers that are sampled at random"),
    ("write --temperature 0 --seed 2", "--seed is for answers that are sampled at random"),
    ("scaling --count 2", "--count is for answers that are sampled at random"),
    ("scaling --seed 2", "is for answers that are sampled at random"),
    ("write --input-file absent.txt", "absent.txt must be a file that can be read"),
    ("write --max-length 5", "received --max-length. Leave that out"),
]


@pytest.fixture(autouse=True)
def runs(empty_folder, monkeypatch):
    """A run of each task; a text of several lines; lines on standard input."""
    for name, text in TEXTS.items():
        (folder := Path(name)).mkdir()
        file, task = folder / "best.safetensors", {"name": name}
        save_model(file, MODELS[name], text=text.description(), task=task)
    Path("scene.txt").write_text("ab\ncd")
    monkeypatch.setattr("sys.stdin", io.StringIO("d\n\nb \n"))


@pytest.mark.parametrize(("task", "flags", "expected", "printed"), ANSWERS)
def test_flags_set_how_a_model_writes(task, flags, expected, printed, call, monkeypatch):
    calls = []

    def write(trained, texts, say, **settings):
        calls.append(dict(settings))
        return [f"<{text}>" for text in texts]

    def n_best(trained, texts, count, say, **settings):
        return [count * [(0.5, answer)] for answer in write(trained, texts, say, **settings)]

    monkeypatch.setattr(Trained, "write", write)
    monkeypatch.setattr(Trained, "n_best", n_best)
    result = call(main_of(task), "--run", task, *shlex.split(flags))
    assert result == (0, printed, []) and calls == [expected]


@pytest.mark.parametrize("name", TASKS)
def test_a_task_refuses_the_runs_of_other_tasks_and_names_their_programs(name, refuse):
    kinds = {"write": "write", "reverse": "pairs"}
    kinds.pop(name, None)
    for task, kind in kinds.items():
        text, file = TEXTS[kind].description(), Path("run.safetensors")
        save_model(file, MODELS[kind], text=text, task={"name": task})
        program = "" if name == "images" else f"Use python -m toy_tasks.{task}."
        refuse(main_of(name), f"--run {file} --input a", f"a run of {task}", program)


@pytest.mark.parametrize("name", ["reverse", "pairs", "pronounce"])
def test_a_task_with_pairs_refuses_a_language_model(name, refuse, call):
    text, flags = TEXTS["write"].description(), "--run own.safetensors --input a"
    save_model(Path("own.safetensors"), MODELS["write"], text=text)
    refuse(main_of(name), flags, "a model for write. Use python -m toy_tasks.write")
    save_model(Path("own.safetensors"), MODELS["write"], text=text, task={"name": "mine"})
    refuse(main_of(name), flags, "a run of mine. Use python -m toy_tasks.write")
    assert call(main_of("write"), flags)[::2] == (0, ["note: own.safetensors is a run of mine"])


def test_impossible_flags_are_refused(refuse):
    for command, message in REFUSED:
        task, flags = command.split(maxsplit=1)
        text = "" if "--input-file" in flags else "--input a"
        refuse(main_of(task), f"--run {task} {text} {flags}", message)
