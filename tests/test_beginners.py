"""What goes wrong in first scripts: each mistake meets the rule, what was received, the fix."""

import importlib.metadata
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from urllib.parse import urlparse
from urllib.request import url2pathname

import numpy as np
import pytest
from cupy_stand_in import synchronisations

import numformer
from numformer import Adam, FlatParameters, InputError, Schedule, pack, train
from numformer.layers import Linear

ROOT = Path(__file__).parents[1]

BEGIN = """
import numpy as np
from numformer import *

model = Transformer(Config.base(12, d_model=8, d_ff=8, heads=2, layers=1))
writer = LanguageModel(LanguageModel.Config(vocabulary=12, d_model=8, d_ff=8, heads=2, layers=1))
vocabulary = Vocabulary("01234567")
batch = PairBatch.of([([4, 5, 6], [6, 5, 4]), ([7, 8], [8, 7])])
objective = model.objective(0.1)
"""


class Reversing:
    """A task whose evaluation gives `measured`."""

    metric, higher_is_better, longest = "accuracy", True, 4

    def __init__(self, measured):
        self.measured = measured

    def batch(self, step):
        return numformer.PairBatch.of([([4, 5], [5, 4])])

    def evaluate(self, model):
        return self.measured

    def description(self):
        return {}


def run(code: str, **names) -> None:
    """What a script "mine.py" of this code does after BEGIN, which has a file of its own."""
    exec(compile(BEGIN, "begin.py", "exec"), names)
    exec(compile(code, "mine.py", "exec"), names)


ARRAY = "Take numpy.array(ids) of lists, ids.astype(int) of whole numbers"
SOURCES = "numformer.pad_sources(sources) makes it of lists of ids."
INTEGERS = "sequences are made of ids, which are integers; received "
ENCODE = "Encode symbols by Vocabulary(symbols).encode(sequence)"
OF_12 = "token ids are at least 0 and below the vocabulary's size 12; received ids from"
NONE = "a batch holds at least one sequence; received none. Leave this batch out"
SEQUENCE = "decode takes one sequence of ids, each at least 0 and below 12; received"

# The name, the code, and the words that the message has.
REFUSED = [
    ("a model for its vectors", "Adam(model)", [
        "an optimizer works on the vectors that pack() makes of a model's parameters; received "
        "Transformer. Write Adam(pack(model)).",
    ]),
    ("an objective for its vectors", "Adam(objective)", ["Objective. Write Adam(pack(model))."]),
    ("a list of targets", "CrossEntropy().forward(np.zeros((2, 12)), [4, 5])", [
        "token ids are a NumPy array of integers; received list", ARRAY]),
    ("a list of ids for a layer", "model.source.embedding.forward([[4, 5]])", ["list", ARRAY]),
    ("lists of sources", "model.forward([[4, 5, 2]], batch.target_in)", [
        "source ids are a NumPy array (B, source length), neither of them 0; received list",
        SOURCES]),
    ("lists of targets", "model.forward(batch.source, [[1, 4], [1, 5]])", [
        "target ids are a NumPy array (B, target length), neither of them 0; received list",
        "numformer.PairBatch.of(pairs) makes it of pairs of lists of ids."]),
    ("lists to read", "greedy(model, [[4, 5, 2]], 3)", ["source ids", "received list", SOURCES]),
    ("lists to go on with", "greedy(writer, [[4, 5]], 3)", [
        "received list. Make it by numpy.array(rows)"]),
    ("a number as what was measured", "train(model, Reversing(0.5), folder, Schedule(1))", [
        "evaluate() gives a number for each measure by its name", "received 0.5. Return for "
        "example {'accuracy': 0.5}."]),
    ("a class for its task", "train(model, Reversing, folder, 1)", [
        "train takes a task, an object; received the class Reversing. Write Reversing(...)"]),
    ("a task that does not evaluate", "train(model, object(), folder, 1)", [
        "a task has metric, higher_is_better, batch, evaluate, description; received object "
        "without metric."]),
    ("pairs for a batch", "t = Reversing({'accuracy': 1}); t.batch = lambda step: [([4], [5])]; "
     "train(model, t, folder, 1, parts=1)", [
        "gives a Batch, or a list of them; received tuple. Return for example"]),
    ("a text of other symbols", "t = Reversing(0); t.text = Transduction(vocabulary, Vocabulary("
     "'ab'), 9); train(model, t, folder, 1)", ["the vocabularies that its model was built for"]),
    ("a text that is none", "t = Reversing(0); t.text = 'abc'; train(model, t, folder, 1)", [
        "a task's text has the vocabularies", "received 'abc'"]),
    ("another number's name", "train(model, Reversing({'accuracy': 1, 'rate': 2}), folder, 1)", [
        "'gradient_norm', 'loss', 'rate', 'seconds', 'step' not"]),
    ("half a step", "train(model, Reversing(0), folder, 0.5)", [
        "steps is an integer of at least 1; received 0.5"]),
    ("a string of digits", "pad_sources(['123'])", [
        INTEGERS + "'1', which is of type str. " + ENCODE]),
    ("strings of digits as pairs", "PairBatch.of([('123', '321')])", [INTEGERS + "'1'", ENCODE]),
    ("a string as target", "PairBatch.of([([4], '32')])", [INTEGERS + "'3'", ENCODE]),
    ("a digit among ids", "pad([[4, '5']])", [INTEGERS + "'5', which is of type str", ENCODE]),
    ("an array of strings", "model.forward(np.array([['4', '2']]), np.array([[1]]))", [
        "integers; received dtype <U1", "numformer.Vocabulary(symbols).encode gives of symbols"]),
    ("fractions as ids", "pad_sources([[4, 5.7]])", [
        INTEGERS + "5.7, which is of type float", "make numbers int"]),
    ("fractions as target", "PairBatch.of([([4], [5.0])])", [INTEGERS + "5.0", "type float"]),
    ("fractions of NumPy", "pad(np.ones((2, 3), np.float32))", [INTEGERS, "of type float32"]),
    ("an array of fractions", "model.forward(batch.source / 1, batch.target_in)", [
        "integers; received dtype float64", "ids.astype(int) of whole numbers"]),
    ("truths as ids", "pad_sources([[True, False]])", [INTEGERS + "True", "of type bool"]),
    ("truths of NumPy", "pad_sources(np.ones((1, 2), bool))", [INTEGERS, "of type bool"]),
    ("negative ids", "model.forward(pad_sources([[4, -1]]), np.array([[1]]))", [
        OF_12 + " -1 to 4. Encode with the vocabulary that the model was built for."]),
    ("negative targets", "objective.forward(*PairBatch.of([([4], [-5])]).inputs)", [
        OF_12 + " -5 to 1"]),
    ("negative ids to read", "greedy(model, pad_sources([[-1]]), 3)", [OF_12 + " -1 to 2"]),
    ("negative ids to decode", "vocabulary.decode([4, -1])", [
        SEQUENCE + " [4, -1]. Decode each row of a batch by itself"]),
    ("ids of another vocabulary", "vocabulary.decode([12])", [
        SEQUENCE + " [12]", "with the vocabulary that encoded"]),
    ("a batch to decode", "vocabulary.decode([[4, 5]])", [SEQUENCE + " [[4, 5]]", "each row"]),
    ("no sources", "pad_sources([])", [NONE]),
    ("no pairs", "PairBatch.of([])", [NONE]),
    ("nothing to read", "greedy(model, np.array([]), 3)", [
        "neither of them 0; received shape (0,)", SOURCES]),
    ("no rows to read", "beam_search(model, np.zeros((0, 3), int), 3)", ["(0, 3)", SOURCES]),
    ("one row to read", "greedy(model, np.array([4, 5, 2]), 3)", ["shape (3,)", SOURCES]),
    ("a source without its end", "greedy(model, pad([[4, 2], [4, 5, 6], [7]]), 3)", [
        "a source ends with the end id 2; received row 1, which ends with 6. " + SOURCES]),
    ("a short source without its end", "beam_search(model, pad([[2, 5], [4, 5, 2]]), 3)", [
        "received row 0, which ends with 5. " + SOURCES]),
    ("a folder for a model", "load_model(str(folder))", [
        "load_model takes the file of a saved model; received the folder {folder}. Name "
        "{folder}/best.safetensors, or take the whole run by numformer.load."]),
    ("a run for a model", "load_model(folder / 'last.safetensors')", [
        "the file of a saved model; received {folder}/last.safetensors, the state of a run that "
        "may go on. Name {folder}/best.safetensors, the best model of that run."]),
    ("a file that is not there", "load_model('mine')", [
        "received no file mine. Name the best.safetensors of a training run"]),
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run of one step."""
    made = {}
    exec(BEGIN, made)
    folder = tmp_path_factory.mktemp("run")
    train(made["model"], Reversing({"accuracy": 0.5}), folder, Schedule(1))
    return folder


@pytest.mark.parametrize(("code", "words"), [each[1:] for each in REFUSED],
                         ids=[each[0] for each in REFUSED])  # fmt: skip
def test_a_mistake_meets_the_rule_and_the_fix(code, words, folder, tmp_path):
    of_mistake = tmp_path if "train(" in code else folder
    with pytest.raises(InputError) as caught:
        run(code, folder=of_mistake, Reversing=Reversing)
    for each in words:
        assert each.replace("{folder}", str(of_mistake)) in str(caught.value)


STEP = "objective.forward(*batch.inputs); objective.backward(); optimizer.step(0.01)\n"
PREPARE = "flat = pack(model); optimizer = Adam(flat)\n"
WARNED = [
    ("an evaluation before the next step",
     "objective.forward(*batch.inputs)\nobjective.forward(*batch.inputs)\nobjective.zero_grad()",
     3, "received forwards without one, which left 86 records, forgotten now. Evaluate in "
     "`with numformer.inference():`, where nothing is saved and dropout is off."),
    ("an evaluation by the model",
     "for _ in range(2): model.forward(batch.source, batch.target_in)\nmodel.zero_grad()",
     2, "each forward that saves is followed by its backward; received forwards without one"),
    ("evaluations and never a step",
     "for _ in range(25):\n    objective.forward(*batch.inputs)",
     2, "which left 388 records so far. Evaluate in `with numformer.inference():`"),
    ("steps without zero_grad", PREPARE + 2 * STEP,
     3, "each step has gradients of its own; received a sum with those that an earlier step has "
     "used. Begin each step with objective.zero_grad()."),
    ("a layer's steps without zero_grad", "model = Linear(2, 3, np.random.default_rng(0))\n"
     + PREPARE + 2 * "model.forward(np.ones((1, 2))); model.backward(np.ones((1, 3)))\n"
     "optimizer.step(0.01)\n", 6, "each step has gradients of its own"),
    ("zeroed by hand, but once", PREPARE + STEP + "flat.grad[...] = 0\n" + 2 * STEP,
     5, "each step has gradients of its own"),
]  # fmt: skip


@pytest.mark.parametrize(("code", "line", "words"), [each[1:] for each in WARNED],
                         ids=[each[0] for each in WARNED])  # fmt: skip
def test_a_mistake_that_still_computes_is_told_once_at_its_line(code, line, words):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        run(code)
    (warning,) = told
    assert words in str(warning.message) and warning.category is UserWarning
    assert (warning.filename, warning.lineno) == ("mine.py", line)


@pytest.mark.parametrize(
    "code",
    [
        PREPARE + 3 * ("objective.zero_grad()\n" + STEP),
        PREPARE + 3 * ("flat.zero_grad()\n" + STEP),
        PREPARE + 3 * ("flat.grad[...] = 0\n" + STEP),
        PREPARE + 3 * ("for p in model.named_parameters().values(): p.grad.fill(0)\n" + STEP),
        PREPARE + 3 * ("for p in model.named_parameters().values(): p.grad *= 0\n" + STEP),
        # Two backwards for a step, of which the gradients are looked at.
        PREPARE + 3 * ("objective.zero_grad()\nobjective.forward(*batch.inputs)\n"
                       "objective.backward(); model.output.weight.grad\n" + STEP),
        PREPARE + 3 * (STEP + "abs(model.output.weight.grad).max(); model.zero_grad()\n"),
        PREPARE + 3 * "flat.grad[...] = 1; optimizer.step(0.01); model.output.weight.grad.max()\n",
        PREPARE + STEP + "objective.forward(*batch.inputs); objective.backward()\n"
        "model.zero_grad(); flat.grad[...] = 1; optimizer.step(0.01)",
        PREPARE + STEP + "objective.forward(*batch.inputs); objective.backward()\n"
        "flat.zero_grad(); flat.grad[...] = 1; optimizer.step(0.01)",
        "for _ in range(9): objective.forward(*batch.inputs)",
        "with inference():\n    for _ in range(20): objective.forward(*batch.inputs)\n"
        "objective.zero_grad()",
        "greedy(model, pad([[4, 2], [0], [4, 5, 2], [2], [2, 4, 2]]), 3)",
        "assert (pad([np.array([4, 5], np.uint8), [np.int64(6)], ()]) == [[4, 5], [6, 0], [0, 0]])"
        ".all()",
        "assert vocabulary.decode(np.array([4, 0, 11])) == ['0', '<padding>', '7']",
    ],
)  # fmt: skip
def test_what_is_right_is_told_of_nothing(code):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(code)


def test_an_ordinary_step_looks_at_no_numbers_of_the_gradient(monkeypatch):
    """Looking is for gradients that may have been zeroed by hand."""
    monkeypatch.setattr(FlatParameters, "look_whether_zero", None)
    run(PREPARE + 3 * ("objective.zero_grad()\n" + STEP))


@pytest.mark.parametrize(
    ("size", "place", "seen"),
    [(2, 1, True), (999, 1, True), (1000, 1, False), (1000, 2, True), (2000, 3, True)],
)
def test_of_a_long_gradient_about_a_thousand_numbers_are_looked_at(size, place, seen, rng):
    """One that is not zero is enough; of 2,000 every third is looked at."""
    model = Linear(size, 1, rng, bias=False)
    flat = pack(model)
    Adam(flat).step(0.01)
    flat.grad[place] = 1
    model.weight.grad += 0
    assert (flat.used, flat.stale) == (seen, seen)


@pytest.mark.filterwarnings("error")
def test_on_a_device_nothing_is_looked_at(stand_in, rng):
    """It would wait in every step."""
    model = Linear(2, 3, rng)
    optimizer = Adam(pack(model, np.float32, stand_in))
    with synchronisations() as waits:
        for _ in range(2):
            model.weight.grad += 1
            optimizer.step(0.01)
    assert not waits


# A script beside the clone.


def installed_from_here() -> bool:
    """Whether the numformer that Python would find from any folder is this one."""
    found = importlib.metadata.distributions(name="numformer")
    origins = [json.loads(each.read_text("direct_url.json") or "{}") for each in found]
    return any(url2pathname(urlparse(o.get("url", "")).path) == str(ROOT) for o in origins)


@pytest.mark.skipif(
    not installed_from_here(), reason="pip install -e . has not installed numformer from here"
)
def test_a_script_beside_a_folder_named_numformer_finds_the_package(tmp_path):
    """Such as the clone: a folder without __init__.py is a package, too, if nothing comes first."""
    (tmp_path / "numformer").mkdir()
    script = tmp_path / "mine.py"
    script.write_text("from numformer import load_model\nprint(load_model.__name__)")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("load_model\n", "")
