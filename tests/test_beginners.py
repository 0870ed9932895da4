"""What goes wrong in first scripts and commands: each mistake meets the rule, what was received,
the fix. What goes wrong with a run that is there stands in toy_tasks/test_answers.py,
test_resuming.py and the files of its task.
"""

import warnings

import numpy as np
import pytest
from cupy_stand_in import synchronisations

import numformer
from numformer import Adam, FlatParameters, Schedule, pack, train
from numformer.paper import Linear
from tests.toy_tasks.small import assert_refused, main_of

BEGIN = """
import numpy as np
from numformer import *

model = Transformer(Config.base(12, d_model=8, d_ff=8, heads=2, layers=1))
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


# What a script does, and the words of the complaint that it meets; "{folder}" is a run's.
ARRAY = "NumPy array of integers; received list ... Use numpy.array(ids) for lists"
SOURCES = "numformer.pad_sources(sources) makes the array from lists of ids"
TEXT = "t = Reversing(0); t.text = {}; train(model, t, folder, 1)"
REFUSED = {
    "Adam(model)": "the vectors that pack() makes from ... Transformer. Write Adam(pack(model)).",
    "CrossEntropy().forward(np.zeros((2, 12)), [4, 5])": ARRAY,
    "model.source.embedding.forward([[4, 5]])": ARRAY,
    "model.forward([[4, 5, 2]], batch.target_in)": f"source ids are ... list ... {SOURCES}",
    "train(model, Reversing(0.5), folder, Schedule(1))": "0.5. Return for example {{'accuracy'",
    "train(model.config, Reversing(0), folder, 1)": "received Config. Write train(Transformer(con",
    "train(model, Reversing(0), 2, Recipe())": "a folder, given by its path; received int",
    "train(model, Reversing, folder, 1)": "received the class Reversing. Write Reversing(...)",
    "train(model, Reversing(0), folder, 1, patience=2)": "received patience. Pass it to Schedule(",
    "train(model, Reversing(0), folder, 1, rate=2)": "received rate. Pass it to Recipe(...)",
    "train(model, Reversing(0), folder, 1, resum=True)": "received resum. Did you mean resume?",
    "Schedule(20, pateince=2)": "received pateince. Did you mean patience?",
    "train(model, Reversing(0), folder, 1, epochs=2)": "help(numformer.train) ... epochs. Leave",
    "train(model, Reversing(0), folder, 1, seed=1.5)": "integer of at least 0; received 1.5. Write",
    "train(model, Reversing(0), folder, 1, seed=-1)": "at least 0; received -1. Write seed=3.",
    "train(model, object(), folder, 1)": "evaluate, description; received object without metric",
    "t = Reversing({'accuracy': 1}); t.batch = lambda step: [([4], [5])]; "
    "train(model, t, folder, 1, parts=1)": "returns a Batch, or a list of them; received tuple",
    TEXT.format("Transduction(vocabulary, Vocabulary('ab'), 9)"): "its model was built for",
    TEXT.format("'abc'"): "a task's text has the vocabularies ... received 'abc'",
    "train(model, Reversing({'accuracy': 1, 'rate': 2}), folder, 1)": "'loss_scale', 'rate',",
    "train(model, Reversing(0), folder, 0.5)": "an integer of at least 1; received 0.5",
    "pad_sources(['123'])": "received '1', which is of type str. Encode symbols by Vocabulary(",
    "pad_sources([[4, 5.7]])": "5.7, which is of type float ... convert numbers to int",
    "pad(np.ones((1, 2), bool))": "of type bool",
    "pad([])": "at least one sequence; received none. Leave this batch out",
    "pad([[4, 0, 5], [6]])": "after a sequence and not within it; received [4, 0, 5]. Leave it",
    "PairBatch.of([([4], [5, 0])])": "received [5, 0, 2]",
    "Vocabulary('abcb')": "has each symbol once; received 'b' twice. Vocabulary.of(texts)",
    "model.forward(np.array([['4', '2']]), np.array([[1]]))": "dtype <U1 ... .encode for symbols",
    "model.forward(batch.source / 1, batch.target_in)": "dtype float64 ... ids.astype(int)",
    "model.forward(pad_sources([[4, -1]]), np.array([[1]]))": "size 12; received ids from -1 to 4",
    "objective.forward(*PairBatch.of([([4], [-5])]).inputs)": "received ids from -5 to 1",
    "vocabulary.decode([4, -1])": "below 12; received [4, -1]. Decode each row of a batch",
    "vocabulary.decode([[4, 5]])": "received [[4, 5]]. Decode each row",
    "greedy(model, pad([[4, 2], [4, 5, 6], [7]]), 3)": f"row 1, which ends with 6. {SOURCES}",
    "load_model(str(folder))": "received the folder {folder}. Name {folder}/best.safetensors, or",
    "load_model(folder / 'last.safetensors')": "{folder}/last.safetensors, the state of a run",
    "import numformer as n; n.Linear(4, 6, np.random.default_rng(0))(np.ones((2, 5)))": "this "
    "Linear takes an array (..., 4); received shape (2, 5). Build the Linear for this",
    "import numformer as n; n.LayerNorm(4)(np.ones((4, 5)))": "LayerNorm takes an array (..., 4)",
    "import numformer as n; n.RMSNorm(4)(3)": "RMSNorm takes an array (..., 4); received int",
    "import numformer as n; n.layers.Convolution(4, np.random.default_rng(0))(3)": "this "
    "Convolution takes an array (..., 4); received int",
    "model.output(np.ones((2, 5)))": "this OutputProjection takes an array (..., ",
    "Transformer.Config.base(12, d_modle=8)": "received d_modle. Did you mean d_model?",
    "Recipe(xyzzy=1)": "Recipe has the settings ... received xyzzy. Leave it out.",
    "Transformer(Transformer.Config)": "Transformer.Config(...); received the class numformer.mod"
    " ... Write Transformer(Transformer.Config(...)).",
    "Transformer({'d_model': 8})": "Transformer.Config(...); received an object of builtins.dict",
    "import numformer as n; n.load(None)": "named by the path of its folder; received None. Write",
    "import numformer as n; n.load(['runs/a'])": "received ['runs/a']. Write a path such as",
    "save_model(model, folder)": "takes a path and then a model; received ... Path. Write save",
    "from toy_tasks.compare import compare; compare([folder, 1])": "folders; received ([ ... list",
    "load_model('mine')": "received no file mine. Name the best.safetensors of a training run",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run of one step."""
    namespace = {}
    exec(BEGIN, namespace)
    folder = tmp_path_factory.mktemp("run")
    train(namespace["model"], Reversing({"accuracy": 0.5}), folder, Schedule(1))
    return folder


@pytest.mark.parametrize(("code", "words"), REFUSED.items(), ids=[*REFUSED])
def test_a_mistake_meets_the_rule_and_the_fix(code, words, folder, tmp_path, complaint):
    of_mistake = tmp_path if "train(" in code else folder
    message = complaint(run, code, folder=of_mistake, Reversing=Reversing)
    for part in words.format(folder=of_mistake).split(" ... "):
        assert part in message


COMMANDS = {
    "pairs --lr 3": "--lr 3; is --rate meant?",
    "pairs --learning-rate=1e-3": "; is --rate meant?",
    "copy_task --dropout 3": "--dropout 3; is --p-drop meant?",
    "translate --batch 3": "--batch 3; is --max-tokens meant?",
    "copy_task --max-iters 3": "--max-iters 3; is --steps meant?",
    "copy_task --hidden 3": "--hidden 3; is --d-model meant?",
    "pairs --vocab-size 3": "--vocab-size 3; is --subwords meant?",
    "translate --vocab-size 3": "--vocab-size 3; is --vocabulary meant?",
    "pairs --opti sgd": "--opti sgd; is --optimizer meant?",
    "write --predictions a.tsv": "--predictions a.tsv; --predictions is for other tasks",
    "write --block-size 3": "--block-size 3; is --context meant?",
    "copy_task --rate 0": "rate is a number above 0, or None; received 0.0. Change rate",
    "copy_task --rate 1 --factor 2": "by --rate or by --factor; received both. Leave out one",
    "copy_task --resume": "no run of copy_task under runs/. Start one without --resume",
    "pairs --demo dates --resume": "received no run of pairs with --demo dates under runs/",
    "copy_task --start mine": "received mine, which is not there. Name the folder of a run",
    "pairs --run mine --input a": "received mine, which is not there. Name the folder of a run",
    "copy_task --config mine.toml": "mine.toml must be a file that can be read; received No such",
    "pairs": "pairs takes --data with one file or three, or a --demo, or a --run to use; received "
    "0 files and no demo",
    "write": 'For example --data FILE.txt, or --run runs/write-FILE --input "To be"',
}


@pytest.mark.parametrize(("command", "words"), COMMANDS.items())
def test_a_wrong_command_meets_the_rule_and_the_fix(command, words, call, empty_folder):
    task, _, flags = command.partition(" ")
    assert_refused(call(main_of(task), flags), words)


STEP = "objective.forward(*batch.inputs); objective.backward(); optimizer.step(0.01)\n"
PREPARE = "flat = pack(model); optimizer = Adam(flat)\n"
FORWARD, FORGOTTEN = "objective.forward(*batch.inputs)\n", "each step uses only new gradients"
OFF = "Evaluate in `with numformer.inference():`, where nothing is saved and dropout is off."
SUM = "received a sum including gradients that an earlier step has used. Begin each step with"
READ = "for _ in range(2): model.forward(batch.source, batch.target_in)\nmodel.zero_grad()"
WARNED = [  # the code, its line that is warned of, and the words
    (2 * FORWARD + "objective.zero_grad()", 3, "which left 82 records, now discarded. " + OFF),
    (READ, 2, "each forward that saves is followed by its backward; received forwards without one"),
    ("for _ in range(25):\n    " + FORWARD, 2, "which left 370 records so far. " + OFF[:39]),
    (PREPARE + 2 * STEP, 3, f"{FORGOTTEN}; {SUM} objective.zero_grad()."),
    (PREPARE + STEP + "flat.grad[...] = 0\n" + 2 * STEP, 5, FORGOTTEN),
]


@pytest.mark.parametrize(("code", "line", "words"), WARNED)
def test_a_mistake_that_still_computes_is_reported_once_at_its_line(code, line, words):
    with warnings.catch_warnings(record=True) as records:
        warnings.simplefilter("always")
        run(code)
    (warning,) = records
    assert words in str(warning.message) and warning.category is UserWarning
    assert (warning.filename, warning.lineno) == ("mine.py", line)


ZEROED = [
    "objective.zero_grad()",
    "flat.zero_grad()",
    "flat.grad[...] = 0",
    "for p in model.named_parameters().values(): p.grad *= 0",
    # Two backwards for a step, of which the gradients are looked at.
    FORWARD + "objective.backward(); model.output.weight.grad; objective.zero_grad()",
]
AGAIN = FORWARD + "objective.backward()\n{}; flat.grad[...] = 1; optimizer.step(0.01)"
RIGHT = [
    *(PREPARE + 3 * f"{zeroed}\n{STEP}" for zeroed in ZEROED),
    PREPARE + 3 * (STEP + "abs(model.output.weight.grad).max(); model.zero_grad()\n"),
    PREPARE + 3 * "flat.grad[...] = 1; optimizer.step(0.01); model.output.weight.grad.max()\n",
    *(PREPARE + STEP + AGAIN.format(zeroed) for zeroed in ("model.zero_grad()", ZEROED[1])),
    9 * FORWARD,
    "with inference():\n    for _ in range(20): " + FORWARD + "objective.zero_grad()",
    "greedy(model, pad([[4, 2], [0], [4, 5, 2], [2], [2, 4, 2, 0]]), 3)",
    "ids = pad([np.array([4, 5], np.uint8), [np.int64(6)], ()])\n"
    "assert ids.tolist() == [[4, 5], [6, 0], [0, 0]]",
    "assert vocabulary.decode(np.array([4, 0, 11])) == ['0', '<padding>', '7']",
]


@pytest.mark.parametrize("code", RIGHT)
def test_what_is_right_is_told_of_nothing(code):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(code)


def test_an_ordinary_step_looks_at_no_numbers_of_the_gradient(monkeypatch):
    """Looking is for gradients that may have been zeroed by hand."""
    monkeypatch.setattr(FlatParameters, "detect_zeroed", None)
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
    assert (flat.needs_zeroing, flat.stale) == (seen, seen)


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
