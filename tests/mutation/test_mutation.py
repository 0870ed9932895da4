"""The mutation proof itself: its operators break what they say, and its verdicts are right."""

import ast
import json
import os
import re
import signal
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from numformer.paper.softmax import softmax_backward
from tests.mutation import __main__ as mutation
from tests.mutation.equivalent_mutants import PROOFS, equivalent
from tests.mutation.mutants import OPERATORS, Source


def source_of(code: str) -> Source:
    """A backward with this statement, or with a statement that uses this expression."""
    try:
        statement = f"y = {ast.unparse(ast.parse(code, mode='eval'))}"
    except SyntaxError:
        statement = code
    text = f"def backward(self):\n    x = y = 1\n    {statement}\n"
    return Source("here.py", text, Path("here.py"))


@pytest.mark.parametrize("kind", OPERATORS)
def test_an_operator_breaks_what_it_says(kind):
    before, after = re.match(r"(.*?) -> (.*?)(?:;|\.$)", OPERATORS[kind].__doc__).groups()
    source = source_of(before)
    mutants = [mutant for mutant in source.mutants if mutant.kind == kind]
    assert after in [mutant.change.split(" -> ")[1] for mutant in mutants]
    for mutant in mutants:
        assert source.code(mutant) != source.code()
    assert source.code() == source_of(before).code()  # nothing stays broken


def test_texts_annotations_and_complaints_are_left_alone_and_names_tell_mutants_apart():
    text = 'def f(x: int = 1) -> "a":\n    """a + 1"""\n    raise InputError(f"{x + 1}")\n'
    mutants = Source("here.py", text, Path("here.py")).mutants
    kinds = [(mutant.kind, mutant.in_function) for mutant in mutants]
    assert kinds == [("other constant", False), ("missing statement", True)]
    text = "if TYPE_CHECKING:\n    a = 1\nelse:\n    b: int = 2\ndef f():\n    ...\n"
    (mutant,) = Source("here.py", text, Path("here.py")).mutants
    assert mutant.change == "2 -> 3"
    text = "def f(a):\n    return a + a, a + a, f(a)\n"
    both = [Source("here.py", code, Path("here.py")).mutants for code in (text, "\n\n" + text)]
    names, later = ([mutant.name for mutant in mutants] for mutants in both)
    assert len(set(names)) == len(names) > 6
    assert names == later


def item_of(test) -> SimpleNamespace:
    """What the proof needs of a pytest item, with a test that is a plain function."""
    return SimpleNamespace(nodeid=test.__name__, test=test)


@pytest.fixture
def plain_items(monkeypatch):
    def failure(item, following):
        try:
            item.test()
        except Exception as raised:
            return raised

    monkeypatch.setattr(mutation, "failure", failure)


def test_verdicts(plain_items, monkeypatch):
    """On tests that check, that only run, that die, and that take all memory."""

    def looks():
        weights = np.array([[0.25, 0.75]])
        assert abs(softmax_backward(np.ones((1, 2)), weights)).max() < 1e-12

    def runs_only():
        softmax_backward(np.ones((1, 2)), np.ones((1, 2)))

    def dies():
        os.kill(os.getpid(), signal.SIGKILL)

    def asks():
        bytearray(mutation.MEMORY)

    file = mutation.LIBRARY / "paper/softmax.py"
    source = Source("paper/softmax.py", file.read_text(), file)
    monkeypatch.setattr(mutation, "sources", lambda: {source.path: source})
    change = "missing term: dweights - dot_last(dweights, weights) -> dweights"
    (mutant,) = [mutant for mutant in source.mutants if mutant.name.endswith(change)]
    functions = mutation.live_functions()[str(source.file)]

    def verdict(*tests):
        def job(mutant, note):
            mutation.swap_code(source.code(mutant), functions)
            observed = {test.__name__: (0.01, []) for test in tests}
            return mutation.first_failure([*map(item_of, tests)], observed, note)

        ((_, answer),) = mutation.run_in_processes([mutant], job)
        return answer

    assert verdict(runs_only, looks) == "AssertionError in looks"
    assert verdict(runs_only) == ""
    assert verdict(dies) == "died in dies" and verdict(asks) == "MemoryError in asks"
    looks()  # here nothing was broken


def test_processes_answer_at_any_length_with_a_folder_of_their_own_which_is_gone_afterwards():
    """In pytest's usual one a test of a mutant lost its files, and the mutant counted as killed."""

    def job(number, note):
        Path(os.environ["PYTEST_DEBUG_TEMPROOT"], "file").write_text("")
        return os.environ["PYTEST_DEBUG_TEMPROOT"] + " " * 100_000  # more than a pipe holds

    folders = {answer.rstrip() for _, answer in mutation.run_in_processes(range(3), job)}
    assert len(folders) == 3 and not any(map(os.path.exists, folders))

    def fails(number, note):
        raise KeyError("a bug")

    with pytest.raises(SystemExit, match="a bug"):  # no verdict
        list(mutation.run_in_processes([1], fails))


def test_verdicts_are_kept_but_prove_nothing_for_other_files(tmp_path, monkeypatch):
    monkeypatch.setattr(mutation, "STATE", tmp_path)
    first = mutation.Verdicts("files")
    for name, verdict in (("noticed", "AssertionError in it"), ("unnoticed", "")):
        first.add(SimpleNamespace(name=name), verdict)
    assert mutation.Verdicts("files").by_mutant.keys() == {"noticed", "unnoticed"}
    assert not mutation.Verdicts("other files").by_mutant


def test_the_library_s_mutants(monkeypatch, capsys):
    """Each proof fits one, every layer and every backward has some, the fast ones are all kinds."""
    assert all(list(mutation.TESTS.glob(f"{name}.py")) for name in mutation.SUITE)
    mutants = [mutant for source in mutation.sources().values() for mutant in source.mutants]
    equal, unfit = equivalent(mutants)
    assert not unfit and len(equal) <= len(mutants) / 80
    entries = ("backend.py: no such words", "backend.py: return")
    monkeypatch.setitem(PROOFS, "fits none, fits many", entries)
    assert equivalent(mutants)[1] == [*entries]
    monkeypatch.undo()

    rooms = ("paper", "later", "recurrence")
    files = [path for room in rooms for path in (mutation.LIBRARY / room).rglob("[a-z]*.py")]
    assert files and {str(path.relative_to(mutation.LIBRARY)) for path in files} <= {
        *mutation.sources()
    }
    for path, source in mutation.sources().items():
        functions = {n.name for n in ast.walk(source.tree) if isinstance(n, ast.FunctionDef)}
        names = {mutant.place.split(".")[-1] for mutant in source.mutants}
        assert not {name for name in functions - names if "backward" in name}, path

    chosen = mutation.one_of_each_kind(mutants, {})
    assert {mutant.kind for mutant in chosen} == OPERATORS.keys()
    assert len({(mutant.path, mutant.kind) for mutant in chosen}) == len(chosen)
    assert {mutant.path for mutant in mutants if mutant.in_function} == {m.path for m in chosen}
    assert mutation.main(["--only", "no such place"]) == 2
    assert capsys.readouterr().out.startswith("error: no mutant's name holds 'no such place'")


def test_functions_tell_that_they_run_whatever_stands_in_them():
    text = "class A:\n  def f(self):\n    def g():\n      'a'\n      return h(1)\n"
    text += "    h = lambda x: x + 1\n    return g\n"
    seen, names = set(), {}
    exec(Source("here.py", text, Path("here.py")).instrumented_code("seen"), {"seen": seen}, names)
    inner = names["A"]().f()
    assert seen == {"here.py A.f"}
    seen.clear()
    assert inner() == 2 and seen == {"here.py A.f"}


def test_functions_on_one_line_keep_their_own_code():
    text = "f, g = lambda x: x + 1, lambda x: x + 2\n"
    source, names = Source("here.py", text, Path("here.py")), {}
    exec(source.code(), names)
    keys = {code: key for key, code in mutation.codes_by_key(source.code()).items()}
    functions = [(names[name], keys[names[name].__code__]) for name in "fg"]
    (mutant,) = [m for m in source.mutants if m.change == "x + 2 -> x"]
    for code, results in ((source.code(mutant), (2, 1)), (source.code(), (2, 3))):
        mutation.swap_code(code, functions)
        assert (names["f"](1), names["g"](1)) == results


def test_a_test_that_fails_twice_though_nothing_is_broken_ends_the_proof(plain_items):
    calls = []

    def once():
        calls.append("once")
        assert len(calls) > 1

    def twice():
        raise ValueError("always")

    ((_, answer),) = mutation.run_in_processes([[item_of(once)]], mutation.observe)
    assert [*json.loads(answer)] == ["once"]
    with pytest.raises(SystemExit, match=r"(?s)ValueError: always.*twice fails although noth"):
        list(mutation.run_in_processes([[item_of(twice)]], mutation.observe))
