"""Real weights give the stored results, where their packages are installed."""

import json

import pytest

from tests.real_models import __main__ as real_models
from tests.real_models import measuring
from tests.real_models.kinds import KINDS


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.packages[0][0])
def test_real_weights_give_the_stored_results(kind, tmp_path):
    if missing := kind.missing():
        pytest.skip(f"{' and '.join(missing)} not installed")
    assert measuring.measure(kind, tmp_path).difference < measuring.BOUND


def test_results_of_another_program_differ():
    theirs = ["ab", [100.0, 2.0], [0.5]]
    assert measuring.difference(theirs, theirs) == 0
    assert measuring.difference(["ab", [100.0, 3.0], [0.5]], theirs) == 0.01
    assert measuring.difference(["ab", [100.0, 2.0], [0.25]], theirs) == 0.25
    assert measuring.difference(["a", [100.0, 2.0], [0.5]], theirs) == 1


def test_the_command_says_what_is_missing_and_what_differs(monkeypatch, tmp_path, capsys):
    class Small(measuring.RealModel):
        packages = (("numpy", "numpy"),)
        kind, compared = "none", "a number"

        def __init__(self, packages, folder):
            self.model = __import__("numformer").Linear(2, 3, __import__("numpy").random)

        def ours(self):
            return [[2.0]]

        def theirs(self):
            return [[4.0]]

    class Missing(Small):
        packages = ("a-package", "no_such_module"), ("numpy", "numpy")

    monkeypatch.setattr(measuring, "STORED", tmp_path / "reference.json")
    measuring.STORED.write_text('{"numpy": [[2.0]]}')
    monkeypatch.setattr(real_models, "KINDS", [Missing])
    assert real_models.main([]) == 0
    assert "| a-package | none |  | nothing: a-package not installed |" in capsys.readouterr().out
    monkeypatch.setattr(real_models, "KINDS", [Small])
    assert real_models.main([]) == 0
    assert "| numpy | none | 9 | a number | 0.0e+00 |" in capsys.readouterr().out
    assert real_models.main(["--store"]) == 1
    assert "| 5.0e-01 |" in capsys.readouterr().out
    assert json.loads(measuring.STORED.read_text()) == {"numpy": [[4.0]]}
