"""The mutation proof itself: its operators break what they say, and its verdicts are right."""

import ast
import json
import os
import signal
from pathlib import Path
from types import SimpleNamespace

import mutation_proof as mutation
import numpy as np
import pytest
from equivalent_mutants import PROOFS, equivalent
from mutants import OPERATORS, Source

from numformer.layers.softmax import softmax_backward

EXAMPLES = {
    "other operator": ("a + b", "a - b"),
    "missing term": ("1 - beta ** step", "1"),
    "swapped operands": ("matmul(a, b)", "matmul(b, a)"),
    "missing sign": ("not a", "a"),
    "epsilon outside the root": ("xp.sqrt(variance + epsilon)", "xp.sqrt(variance) + epsilon"),
    "other constant": ("0.1", "0.2"),
    "missing statement": ("x -= mean", "nothing"),
    "missing with": ("with inference():\n        f()", "its body"),
    "other branch": ("a if b else c", "c"),
    "set for added": ("self.weight.grad += dw", "self.weight.grad[...] = dw"),
    "divided by the batch": ("return dx", "return (lambda gradient: gradient / len(gradient))(dx)"),
    "swapped gradients": ("return dkey, dvalue", "return (dvalue, dkey)"),
    "stale saved value": ("self.pop_saved()", "self.saved.pop(0)"),
    "dropout scale missing": ("dy * keep", "dy * (keep != 0)"),
    "mask off by one": ("xp.tril(ones)", "xp.tril(ones, -1)"),
    "mask on the query axis": ("real[:, None, None, :]", "real[:, None, :, None]"),
    "wrong axis": ("x.sum(axis=0)", "axis=-1"),
    "missing call": ("transpose(key)", "key"),
    "missing transpose": ("weight.T", "weight"),
    "missing argument": ("x.max(axis=-1, keepdims=True)", "x.max(axis=-1)"),
    "missing bound": ("x[first::2]", "first:"),
}


def source_of(code: str) -> Source:
    """A backward with this statement, or with a statement that uses this expression."""
    try:
        statement = f"y = {ast.unparse(ast.parse(code, mode='eval'))}"
    except SyntaxError:
        statement = code
    return Source(
        "here.py", f"def backward(self):\n    x = y = 1\n    {statement}\n", Path("here.py")
    )


def test_every_operator_has_an_example():
    assert OPERATORS.keys() == EXAMPLES.keys()


@pytest.mark.parametrize("kind", OPERATORS)
def test_an_operator_breaks_what_it_says(kind):
    before, after = EXAMPLES[kind]
    source = source_of(before)
    mutants = [mutant for mutant in source.mutants if mutant.kind == kind]
    assert after in [mutant.change.split(" -> ")[1] for mutant in mutants]
    for mutant in mutants:
        assert source.code(mutant) != source.code()
    assert source.code() == source_of(before).code()  # nothing stays broken


def test_texts_annotations_and_complaints_are_left_alone():
    text = 'def f(x: int = 1) -> "a":\n    """a + 1"""\n    raise InputError(f"{x + 1}")\n'
    mutants = Source("here.py", text, Path("here.py")).mutants
    assert [(mutant.kind, mutant.in_function) for mutant in mutants] == [
        ("other constant", False),
        ("missing statement", True),
    ]


def test_names_tell_mutants_apart_and_do_not_depend_on_lines():
    text = "def f(a):\n    return a + a, a + a, f(a)\n"
    names = [mutant.name for mutant in Source("here.py", text, Path("here.py")).mutants]
    later = [mutant.name for mutant in Source("here.py", "\n\n" + text, Path("here.py")).mutants]
    assert len(set(names)) == len(names) > 6
    assert names == later


@pytest.fixture
def softmax_source():
    return mutation.sources()["layers/softmax.py"]


class Item:
    """What the proof needs of a pytest item, with a test that is a plain function."""

    def __init__(self, nodeid, test=None, file="test_any.py"):
        self.nodeid, self.test = nodeid, test
        self.path, self.originalname = Path(file), "test"


def test_the_tests_of_a_file_itself_are_the_first_to_be_asked():
    """Although more tests of layers run it than are asked."""
    files = {"test_data": 3, "test_layers": mutation.MOST_TESTS, "test_backend": 2}
    items = [
        Item(f"{name}[{number}]", file=f"{name}.py")
        for name, count in files.items()
        for number in range(count)
    ]
    observed = {item.nodeid: (0.01, ["one function"]) for item in items}
    chosen = mutation.most_telling(items, "backend", observed)
    assert [item.path.stem for item in chosen[:3]] == [*["test_backend"] * 2, "test_layers"]
    assert len(chosen) == mutation.MOST_TESTS


def failure(item, following):
    try:
        item.test()
    except Exception as raised:
        return raised
    return None


def verdict(source, mutant, monkeypatch, *items):
    """What who_notices says, in a process of its own as always."""
    monkeypatch.setattr(mutation, "failure", failure)
    observed = {item.nodeid: (0.01, []) for item in items}

    def job(mutant, note):
        mutation.swap_code(source.code(mutant), mutation.live_functions()[str(source.file)])
        return mutation.who_notices(list(items), observed, note)

    ((_, answer),) = mutation.in_processes([mutant], job)
    return answer


def test_a_test_that_looks_notices_and_one_that_does_not_does_not(softmax_source, monkeypatch):
    def looks():
        weights = np.array([[0.25, 0.75]])
        assert abs(softmax_backward(np.ones((1, 2)), weights)).max() < 1e-12

    def runs_only():
        softmax_backward(np.ones((1, 2)), np.ones((1, 2)))

    mutant = next(
        m
        for m in softmax_source.mutants
        if m.place == "softmax_backward" and m.change.endswith("-> dweights")
    )
    blind, sharp = Item("blind", runs_only), Item("sharp", looks)
    assert verdict(softmax_source, mutant, monkeypatch, blind, sharp) == "AssertionError in sharp"
    assert verdict(softmax_source, mutant, monkeypatch, blind) == ""
    looks()  # here nothing was broken


def test_a_test_that_dies_or_takes_all_memory_is_named(softmax_source, monkeypatch):
    def dies():
        os.kill(os.getpid(), signal.SIGKILL)

    def asks():
        bytearray(mutation.MEMORY)

    mutant = softmax_source.mutants[-1]
    for test, said in ((dies, "died in it"), (asks, "MemoryError in it")):
        assert verdict(softmax_source, mutant, monkeypatch, Item("it", test)) == said


def test_a_fault_of_the_proof_itself_is_no_verdict():
    def job(number, note):
        raise KeyError("a bug")

    with pytest.raises(SystemExit, match="a bug"):
        list(mutation.in_processes([1], job))


def test_each_process_has_a_folder_of_its_own_which_is_gone_afterwards():
    """In pytest's usual one a test of a mutant lost its files, and the mutant counted as killed."""

    def job(number, note):
        folder = os.environ["PYTEST_DEBUG_TEMPROOT"]
        Path(folder, "file").write_text("")
        return folder

    folders = [folder for _, folder in mutation.in_processes(range(3), job)]
    assert len({*folders}) == 3 and not any(map(os.path.exists, folders))


def test_an_answer_may_be_long():
    """A pipe would be full, and both sides would wait for each other."""
    answers = list(mutation.in_processes(range(3), lambda n, note: str(n) * 100_000))
    assert sorted(answers) == [(n, str(n) * 100_000) for n in range(3)]


def test_verdicts_on_other_files_are_kept_where_asked_for_but_prove_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(mutation, "STATE", tmp_path)
    first = mutation.Verdicts("files", keep=bool)
    for name, said in (("noticed", "AssertionError in it"), ("unnoticed", "")):
        first.add(SimpleNamespace(name=name), said)
    names = mutation.Verdicts("files", keep=lambda verdict: False).of.keys()
    assert names == {"noticed", "unnoticed"}
    assert mutation.Verdicts("other files", keep=bool).of.keys() == {"noticed"}
    assert not mutation.Verdicts("other files", keep=lambda verdict: False).of


@pytest.fixture(scope="module")
def mutants():
    return [mutant for source in mutation.sources().values() for mutant in source.mutants]


def test_each_entry_of_the_equivalent_ones_fits_one_mutant_and_has_a_proof(mutants, monkeypatch):
    equal, unfit = equivalent(mutants)
    assert not unfit and len(equal) <= len(mutants) / 100
    assert all(len(proof) > 20 for proof in PROOFS)
    entries = ("backend.py: no such words", "backend.py: return")
    monkeypatch.setitem(PROOFS, "fits none, fits many", entries)
    assert equivalent(mutants)[1] == [*entries]


def test_every_function_that_computes_is_broken_somewhere():
    """A new file of formulas must not escape."""
    files = {path.name for path in (mutation.LIBRARY / "layers").glob("[a-z]*.py")}
    broken = {Path(path).name for path in mutation.sources()}
    assert files <= broken
    for path, source in mutation.sources().items():
        functions = {n.name for n in ast.walk(source.tree) if isinstance(n, ast.FunctionDef)}
        names = {mutant.place.split(".")[-1] for mutant in source.mutants}
        empty = functions - names - {"__len__", "__init__"}
        assert not {name for name in empty if "backward" in name}, path


def test_the_fast_subset_has_every_kind(mutants):
    chosen = mutation.of_each_kind(mutants, {})
    assert {mutant.kind for mutant in chosen} == OPERATORS.keys()
    assert len({(mutant.path, mutant.kind) for mutant in chosen}) == len(chosen)
    assert {mutant.path for mutant in mutants if mutant.in_function} == {m.path for m in chosen}


def test_functions_tell_that_they_run_whatever_stands_in_them():
    text = (
        "class A:\n    def f(self):\n        def g():\n            'a'\n            return h(1)\n"
    )
    text += "        h = lambda x: x + 1\n        return g\n"
    seen, names = set(), {}
    exec(Source("here.py", text, Path("here.py")).code_that_tells("seen"), {"seen": seen}, names)
    inner = names["A"]().f()
    assert seen == {"here.py A.f"}
    seen.clear()
    assert inner() == 2 and seen == {"here.py A.f"}


def test_what_noticed_mutants_of_the_same_function_quickly_is_asked_first():
    mutants = [SimpleNamespace(function=f"a.py {name}", path="a.py") for name in "fg"]
    experience = mutation.Experience()
    for mutant, noticer in zip(mutants, ("of f", "of g"), strict=True):
        experience.add(mutant, noticer)
    worth = [
        experience.worth(mutants[0], *asked, 0.1)
        for asked in (("of f", 0.1), ("of f", 0.9), ("of g", 0.1), ("nothing", 0.1))
    ]
    assert worth == sorted(worth, reverse=True) and worth[-1] == 0


def test_a_name_that_fits_no_mutant_proves_nothing(capsys):
    assert mutation.main(["--only", "no such place"]) == 2
    assert capsys.readouterr().out.startswith("error: no mutant's name holds 'no such place'")


def test_a_test_that_fails_once_is_told_of_and_one_that_fails_twice_is_not_observed(monkeypatch):
    monkeypatch.setattr(mutation, "failure", failure)
    calls = []

    def fails_once():
        calls.append("once")
        assert len(calls) > 1

    def fails():
        raise ValueError("always")

    items = [Item("first", fails_once), Item("second", fails), Item("third", fails_once)]
    ((_, answer),) = mutation.in_processes([items], mutation.observe)
    answer = json.loads(answer)
    assert list(answer["observed"]) == ["first"]
    assert [text.split(" failed")[0].split()[-1] for text in answer["raised"]] == [
        *("first", "second", "second")
    ]
    assert "assert len(calls) > 1" in answer["raised"][0]
    assert "ValueError: always" in answer["raised"][1]
