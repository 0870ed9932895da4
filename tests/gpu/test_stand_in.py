"""The stand-in refuses what CuPy refuses, and on it the whole library works as on NumPy."""

import json
import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from cupy_stand_in import Undefined, synchronisations
from numpy.testing import assert_allclose, assert_array_equal

from numformer.arithmetic import dot_rows, matmul, matrix_product
from numformer.backend import to_module
from numformer.errors import BrokenNumbers
from numformer.generation import reading
from numformer.gradient_check import __main__ as gradient_check
from numformer.half_precision import half_products
from numformer.kernels.cuda import Source
from numformer.later.attention.rotary import rotary, rotary_backward, rotary_turns
from numformer.layer import FlatParameters, pack
from numformer.models import Config, LanguageModel, Transformer
from numformer.optimization.clipping import clip_factor, norm_of
from numformer.optimization.optimizers import OPTIMIZERS
from numformer.optimization.recipe import Recipe
from numformer.paper.attention import (
    scaled_dot_product_attention,
    scaled_dot_product_attention_backward,
)
from numformer.paper.cross_entropy import CrossEntropy, cross_entropy, cross_entropy_backward
from numformer.paper.dropout import dropout
from numformer.paper.embedding import embed
from numformer.paper.feed_forward import relu, relu_backward
from numformer.paper.layer_norm import layer_norm, layer_norm_backward
from numformer.paper.linear import Linear, linear, linear_backward
from numformer.paper.masks import gather_rows
from numformer.paper.softmax import softmax
from numformer.runs.checkpoints import load_checkpoint
from numformer.training.trainer import Trainer
from tests.benchmarks import train_step
from tests.benchmarks.sizes import SIZES as SIZES_TIMED
from tests.equal_runs import without_seconds
from tests.gpu import __main__ as gpu
from tests.toy_tasks.small import RUN, copying, few_held_out, interrupted_at
from tests.training.tiny_runs import SIZES, Copying

FLAGS = f"{RUN} --parts 2 --average 2 --evaluate-every 2 --backend"
# float32, after some steps of Adam, which makes small differences large
CLOSE = dict(rtol=1e-3, atol=1e-5)


@pytest.fixture
def x(stand_in):
    return stand_in.arange(6.0).reshape(2, 3)


REFUSED = {
    "a host array in an operator": lambda cupy, x: x + np.ones(3),
    "a host array in place": lambda cupy, x: x.__imul__(np.ones(3)),
    "a device array in place": lambda cupy, x: np.ones((2, 3)).__iadd__(x),
    "a host array as out": lambda cupy, x: cupy.exp(x, out=np.ones((2, 3))),
    "a host mask": lambda cupy, x: cupy.where(np.ones((2, 3), dtype=bool), x, 0),
    "host indices": lambda cupy, x: x[np.array([1, 0])],
    "implicit conversion": lambda cupy, x: np.asarray(x),
    "NumPy's function": lambda cupy, x: np.concatenate([x, x]),
    "NumPy's ufunc": lambda cupy, x: np.exp(x),
    "a mask of a ufunc": lambda cupy, x: cupy.add(x, x, where=x > 2),
    "a mask of a sum": lambda cupy, x: x.sum(where=x > 2),
    "floats cast to integers in place": lambda cupy, x: cupy.arange(3).__iadd__(x[0]),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cupy_refuses_is_refused(what, stand_in, x):
    with pytest.raises(TypeError):
        REFUSED[what](stand_in, x)
    with pytest.raises(AttributeError, match="apply_along_axis"):
        _ = stand_in.apply_along_axis
    assert_array_equal(x.get(), [[0, 1, 2], [3, 4, 5]])


def test_results_are_of_the_dtype_and_on_the_device(stand_in, x):
    x32 = x.astype(np.float32)
    for result in (2 * x32, x32 - 1.0, np.float32(2) * x32, stand_in.where(x > 2, x32, -np.inf)):
        assert type(result) is stand_in.ndarray and result.dtype == np.float32
    for number in (x.sum(), x[1, 2], x[0] @ x[1], stand_in.sqrt(x.sum())):
        assert type(number) is stand_in.ndarray and number.shape == ()
    row, entry = x[0], x[1, 1]  # views
    row *= 0
    entry += 5
    assert_array_equal(x.get(), [[0, 0, 0], [3, 9, 5]])
    x.get()[...] = 9  # a copy
    assert x.get().max() == 9 and x.get()[0].max() == 0
    assert np.isnan(stand_in.empty(3).get()).all()


def test_indices_wrap_and_one_place_takes_one_value(stand_in, x):
    ids = stand_in.asarray([2, -3])
    assert_array_equal(x[ids].get(), [[0, 1, 2], [3, 4, 5]])
    assert_array_equal(x[..., None, ids + 3].get(), [[[2, 0]], [[5, 3]]])
    same = stand_in.asarray([0, 2])  # both are row 0
    with pytest.raises(Undefined):
        x[same] += 1
    with pytest.raises(Undefined):
        stand_in.add.at(x, same, stand_in.ones((2, 3)))
    x[same] = 4
    stand_in.add.at(x, stand_in.asarray([1, 2]), stand_in.ones((2, 3)))
    assert_array_equal(x.get(), [[5, 5, 5], [4, 5, 6]])


READING = [float, int, bool, repr, str, "{:.3f}".format, lambda x: x.item(), lambda x: x.tolist()]
READING += [lambda x: x[x > 1], lambda x: x.__setitem__(x > 1, 2)]


def test_an_implicit_read_is_a_hidden_wait(stand_in, x):
    for read in READING:
        with synchronisations() as waits:
            read(x[0, 1])
        assert waits.total() == 1 and "get" not in waits, read
    with synchronisations() as waits:
        (stand_in.exp(x) @ x.T).sum()
        x[stand_in.asarray([0, 1])] += 1
        assert not waits
        x.get()
        stand_in.asnumpy(x)
    assert waits == {"get": 2}


def test_the_gradient_check_on_the_device(stand_in, capsys, monkeypatch):
    arguments = ["--backend", "cupy", "--only", "linear_without_bias"]
    with synchronisations() as waits:
        assert gradient_check.main(arguments) == 0
    assert waits and "0 of 2 failed" in capsys.readouterr().out
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert gradient_check.main(arguments) == 2
    assert "needs CuPy and an NVIDIA GPU" in capsys.readouterr().err


def trainer(folder, xp, **changes) -> Trainer:
    model, recipe = Transformer(Config.base(9, **SIZES), seed=5), Recipe(warmup=10, **changes)
    return Trainer(model, Copying(), folder, 9, recipe, 1, xp)


def advance(trainer: Trainer, steps: int) -> None:
    for _ in range(steps):
        trainer.advance()


@pytest.mark.parametrize("clip_norm", [None, 0.5])
@pytest.mark.parametrize("device", ["stand_in", "with_kernels"])
def test_a_step_waits_for_nothing_and_metrics_and_checkpoints_for_little(
    tmp_path, device, clip_norm, request
):
    xp = request.getfixturevalue(device)
    device, host = (trainer(tmp_path, xp, clip_norm=clip_norm) for xp in (xp, np))
    for steps in (2, 1, 1):  # a line covers the steps since the line before
        with synchronisations() as waits:
            advance(device, steps)
        assert not waits
        with synchronisations() as waits:
            line = device.log()
        assert waits == {"get": 1}
        advance(host, steps)
        assert line == pytest.approx(host.log(), rel=1e-5)
    with synchronisations() as waits:
        device.save()  # reads whole vectors, not every parameter
    assert waits.total() <= 4 < len(device.model.named_parameters())


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize(
    ("what", "optimizer"),
    [("log", "adam"), ("evaluate", "adam"), *(("save", name) for name in OPTIMIZERS)],
)
@pytest.mark.parametrize("device", ["stand_in", "with_kernels"])
def test_broken_numbers_move_no_weight_before_they_are_seen(
    tmp_path, monkeypatch, what, optimizer, device, request
):
    """Later steps, whose numbers are finite, move no weight either, and no file is written."""
    forward, backward = CrossEntropy.forward, Transformer.backward

    def broken_loss(self, *inputs):
        loss = forward(self, *inputs)
        return loss * np.inf if what == "log" and broken.step == 1 else loss

    def broken_gradient(self, dlogits):
        backward(self, dlogits)
        if what != "log" and broken.step == 1:
            self.output.weight.grad[3, 1] = np.nan

    monkeypatch.setattr(CrossEntropy, "forward", broken_loss)
    monkeypatch.setattr(Transformer, "backward", broken_gradient)
    xp = request.getfixturevalue(device)
    broken = trainer(tmp_path, xp, clip_norm=1.0, optimizer=optimizer)
    advance(broken, 1)
    before = broken.model.state_dict()
    with synchronisations() as waits:
        advance(broken, 2)
    assert not waits
    with pytest.raises(BrokenNumbers, match=r"^step 2: loss .*, gradient norm "):
        getattr(broken, what)()
    for name, array in broken.model.state_dict().items():
        assert_array_equal(array, before[name], err_msg=name)
    assert broken.step == 1 and not list(tmp_path.iterdir())


def test_kernels_multiply_numbers_of_eleven_bits_and_sum_in_float32(with_kernels, rng):
    """In forward and backward, and with transposed matrices."""
    x, w, dy = (rng.standard_normal(shape).astype(np.float32) for shape in ((6, 3), (3, 4), (6, 4)))
    with half_products():
        results = [matmul(*map(with_kernels.asarray, (x, w)))]
        results += linear_backward(*map(with_kernels.asarray, (dy, x, w)))[:2]
        transposed = with_kernels.asarray(np.ascontiguousarray(w.T)).T
        results.append(matmul(with_kernels.asarray(x), transposed))
    a, b, c = (array.astype(np.float16).astype(np.float32) for array in (x, w, dy))
    for result, expected in zip(results, (a @ b, c @ b.T, a.T @ c, a @ b), strict=True):
        assert result.dtype == np.float32
        assert_allclose(result.get(), expected, rtol=1e-6, atol=1e-6)


def test_kernels_round_weights_and_inputs_of_layers_once_in_a_step(with_kernels, rng, monkeypatch):
    """A kernel that writes a layer's input also rounds it; the next step rounds new weights."""
    cp, started = with_kernels, []
    start = Source.start

    def record_start(source, name, *arguments):
        started.append(name)
        return start(source, name, *arguments)

    monkeypatch.setattr(Source, "start", record_start)
    x, w, b, dy = (
        cp.asarray(rng.standard_normal(shape).astype(np.float32))
        for shape in ((2, 3, 5), (5, 7), 7, (2, 3, 7))
    )

    def products(x):
        y = linear(x, w, b)
        dx, dw, _ = linear_backward(dy, x, w, b)
        return y, linear(x, w), dx, dw

    for _ in range(2):
        started.clear()
        with half_products():
            inputs = [x, layer_norm(x, x[0, 0], x[0, 1], 1e-5)[0], relu(x)[0]]
            results = [products(array) for array in inputs]
        assert started.count("round_to_half") == 5  # x and w once, dy three times
        for array, result in zip(inputs, results, strict=True):
            with half_products():
                expected = products(cp.array(array))
            for found, right in zip(result, expected, strict=True):
                assert_array_equal(found.get(), right.get())
        w *= 2
    with half_products():
        copies = matrix_product.get().rounded_copies
        layer_norm(x, x[0, 0], x[0, 1], 1e-5)
        assert not copies  # a copy goes with its array


def test_kernels_read_unusual_inputs_as_the_formulas_do(with_kernels, rng):
    """Ids by columns, another dtype, NaN, a mask for each head, heads side by side, many rows."""
    cp, x = with_kernels, rng.standard_normal((2, 3, 4, 5))
    ids = np.asfortranarray(rng.integers(0, 5, (3, 4)))
    nan = np.where(np.arange(5) == 1, np.nan, x)
    heads, mask = [x, x, x[:, :1]], rng.random((2, 3, 4, 4)) < 0.5
    many = rng.standard_normal((2, 2000, 3))
    beside, turns = x[..., :4].copy().swapaxes(1, 2), rotary_turns(3, 4)
    for formula, inputs in (
        (embed, [ids, x[0, 0].T]),
        (layer_norm_backward, [x.astype(np.float32), x, x[..., :1], x[0, 0, 0]]),
        (relu, [np.sign(x) * (x > -0.5)]),
        (dot_rows, many),
        (softmax, [nan]),
        (softmax, [x[..., :4], mask]),
        (scaled_dot_product_attention, [x, x, x, mask]),
        (softmax, [np.where(np.isnan(nan), np.inf, nan)]),
        (scaled_dot_product_attention, heads),
        (scaled_dot_product_attention_backward, [x, *heads, x[..., :4]]),
        (gather_rows, [beside, rng.integers(0, 24, (5, 4))]),
        (rotary, [beside, turns]),
        (rotary, [beside[0], turns]),
        (rotary_backward, [x[:, :, :3, 1:], turns]),
        (norm_of, [many[0, :, 0] ** 2]),
        (clip_factor, [np.array(2.0), 3.0]),
        (clip_factor, [np.array(4.0), 3.0]),
    ):
        assert_kernel_is_right(cp, formula, *inputs)


def assert_kernel_is_right(cp, formula, *inputs):
    """The kernel computes what the formula computes, both from copies of the inputs."""
    arrays = [x.copy() if isinstance(x, np.ndarray) else x for x in inputs]
    with np.errstate(invalid="ignore"):
        expected = formula(*arrays)
    found = formula(*(cp.asarray(x) if isinstance(x, np.ndarray) else x for x in inputs))
    pairs = zip(found, expected, strict=True) if type(found) is tuple else [(found, expected)]
    for result, right in pairs:
        assert_allclose(result.get(), right, rtol=2e-5, atol=1e-6, err_msg=formula.__name__)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("width", [130, 1029])
def test_kernels_read_long_rows_in_packs(with_kernels, rng, dtype, width):
    """Rows that end within a pack, rows that begin within one, and more packs than threads."""
    x, y = rng.standard_normal((2, 3, width)).astype(dtype)
    ids, share = rng.integers(0, width, 3), rng.random(3).astype(dtype)
    _, exponentials, total = cross_entropy(x, ids, share, 0.1)
    for formula, inputs in (
        (linear, [x[:, :5], y[:, :5].T @ y, x[0]]),
        (relu, [x]),
        (relu_backward, [x, y > 0]),
        (dropout, [x, np.sign(y)]),
        (layer_norm, [x, y[0], y[1], 1e-5]),
        (layer_norm_backward, [x, y, share[:, None], y[0]]),
        (cross_entropy, [x - 200, ids, share, 0.1]),
        (cross_entropy_backward, [share, exponentials, total, ids, 0.1]),
    ):
        assert_kernel_is_right(with_kernels, formula, *inputs)
    beginning_within_a_pack = with_kernels.asarray(x).reshape(-1)[1:]
    assert_array_equal(relu(beginning_within_a_pack)[0].get(), np.maximum(x, 0).reshape(-1)[1:])


@pytest.mark.parametrize("sizes", [(17, 33, 20, 31), (64, 50, 33, 64), (32, 32, 32, 32)])
def test_kernels_fill_a_block_with_a_head(with_kernels, rng, sizes):
    """Up to the largest head that fits, in both dtypes; in float64 some are too large."""
    T, S, K, K_v = sizes
    for dtype in (np.float32, np.float64):
        query, key, value, doutput = (
            rng.standard_normal((2, 3, *shape)).astype(dtype)
            for shape in ((T, K), (S, K), (S, K_v), (T, K_v))
        )
        mask = rng.random((2, 1, T, S)) < 0.7
        attention = [query, key, value, mask]
        _, weights = scaled_dot_product_attention(*attention)
        assert_kernel_is_right(with_kernels, scaled_dot_product_attention, *attention)
        backward = scaled_dot_product_attention_backward
        assert_kernel_is_right(with_kernels, backward, doutput, query, key, value, weights)


def test_a_small_array_is_uploaded_before_it_changes(stand_in, monkeypatch):
    """What is small is copied by the driver; what is large, by CuPy."""
    monkeypatch.setattr(stand_in, "asarray", None)
    ids = np.arange(12).reshape(3, 4)
    for x in (ids, ids.T, ids[:, ::2], ids > 5, np.zeros((1 << 14,), np.float32), np.array(2.5)):
        before = x.copy()
        uploaded = to_module(x, stand_in)
        x[...] = 0
        assert uploaded.dtype == before.dtype
        assert_array_equal(uploaded.get(), before, strict=True)
    monkeypatch.undo()
    for x in (np.zeros((0, 3)), np.arange(1 << 14)):
        assert_array_equal(to_module(x, stand_in).get(), x, strict=True)
    assert to_module(uploaded, stand_in) is uploaded and to_module(ids, np) is ids


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_gradient_adds_by_a_kernel_what_has_its_shape(with_kernels, rng, dtype, monkeypatch):
    cp, parameter = with_kernels, Linear(5, 7, np.random.default_rng(0)).weight
    packed = FlatParameters(cp.zeros(36, dtype)[1:], cp.zeros(36, dtype)[1:], [parameter])
    x = cp.asarray(rng.standard_normal((5, 7)).astype(dtype))
    kernels: list = []
    start = Source.start
    monkeypatch.setattr(
        Source, "start", lambda self, name, *a: (kernels.append(name), start(self, name, *a))
    )
    grad = parameter.grad
    parameter.grad += x
    parameter.grad += x
    assert kernels == ["add"] * 2 and parameter.grad is grad
    for other in (x.T.copy().T, x[:1], x.astype(np.float16), 0.5):  # CuPy adds these
        parameter.grad += other
    assert len(kernels) == 2
    y = x.get().astype(np.float64)
    total = 3 * y + y[:1] + y.astype(np.float16) + 0.5
    assert_allclose(packed.grad.get().reshape(5, 7), total, rtol=1e-5)
    with pytest.raises(TypeError, match="Unsupported type"):
        parameter.grad += np.ones((5, 7), dtype)


def test_weights_move_to_the_device_and_back(stand_in):
    device, host = (Transformer(Config.base(9, **SIZES), seed) for seed in (1, 2))
    pack(device, xp=stand_in)
    host.load_state_dict({name: p.data for name, p in device.named_parameters().items()})
    pack(device)
    for name, parameter in device.named_parameters().items():
        assert_array_equal(parameter.data, host.named_parameters()[name].data, strict=True)


def test_what_is_read_comes_back_to_the_host(stand_in):
    config = LanguageModel.Config(vocabulary=9, d_model=8, d_ff=8, heads=2, layers=1)
    device, host = LanguageModel(config), LanguageModel(config)
    pack(device, xp=stand_in)
    rows = [[3, 4, 5], [6, 7, 8]]
    assert_allclose(
        *(reading.embed(model, rows, "mean", True) for model in (device, host)), **CLOSE
    )
    for found, expected in zip(
        reading.hidden(device, rows), reading.hidden(host, rows), strict=True
    ):
        assert type(found) is np.ndarray
        assert_allclose(found, expected, **CLOSE)


def assert_same_runs(folder: str, expected: str):
    """Two runs agree in weights, Adam's state, measures and losses."""
    for name in ("last.safetensors", "best.safetensors"):
        tensors, others = (load_checkpoint(Path(run, name))[0] for run in (folder, expected))
        assert tensors.keys() == others.keys()
        for tensor, array in tensors.items():
            assert_allclose(array, others[tensor], **CLOSE, err_msg=tensor)
    lines, others = (without_seconds(Path(run))["metrics.jsonl"] for run in (folder, expected))
    assert lines == [pytest.approx(line, rel=1e-3) for line in others]


def test_a_task_gives_the_same_on_device_and_host(empty_folder, call, stand_in):
    """In a whole run, in a run that the other one resumes, and in its answers."""
    for backend, out in ("numpy", "host"), ("cupy", "device"):
        assert call(copying, f"{FLAGS} {backend} --out {out}")[0] == 1  # it learns little
    assert_same_runs("device", "host")
    for first, second in (("cupy", "numpy"), ("numpy", "cupy")):
        with interrupted_at(5):
            assert call(copying, f"{FLAGS} {first} --out {first}")[0] == 130
        assert call(copying, f"--backend {second} --resume --out {first}")[0] == 1
        assert_same_runs(first, "host")
    flags = "--run device --input 314 75 --backend"
    host, device = (call(copying, f"{flags} {backend}") for backend in ("numpy", "cupy"))
    assert host == device and len(host[1]) == 2


def test_the_report_on_a_gpu(tmp_path, stand_in, capsys, monkeypatch):
    monkeypatch.setenv("CUPY_TF32", "1")
    path = tmp_path / "report.md"
    with few_held_out():
        parts = "formulas layers steps training reverse copy_task".split()
        assert gpu.main(["--quick", "--out", str(path), "--only", *parts]) == 0
    last, text = capsys.readouterr().out.splitlines()[-1], path.read_text()
    assert re.fullmatch(r"(\d+) of \1 checks passed", last) and text.endswith(f"\n{last}\n")
    assert "| GPU | the stand-in for CuPy |" in text and "| CUPY_TF32 | 1 |" in text
    facts = json.loads(path.with_suffix(".json").read_text())
    assert facts["machine"]["CUPY_TF32"] == "1" and facts["passed"] == len(facts["checks"])
    layers, others = ["30 rows, float32", "linear, float64"], ["from NumPy to CuPy", "beam search"]
    for what in [*layers, "ten steps of Adam", *others, "half precision", "copy_task trained"]:
        assert re.search(rf"{what}.* \| [0-9.e-]+, at most [0-9.e-]+ \|", text)
        assert any(re.search(what, name) for name in facts["checks"])


def test_the_report_sees_wrong_numbers_and_goes_on_after_a_failure(stand_in, monkeypatch):
    def fail(array):
        raise RuntimeError("out of memory")

    wrong = {"relu": lambda array: array * 1.01, "softmax": lambda array: array * np.nan}
    wrong |= {"dropout": lambda array: array.astype(np.float16), "embedding": fail}
    right = gpu.differentiate

    def differentiate(name, dtype, xp, steps=0):
        change = wrong.get(name, lambda array: array) if xp is stand_in else lambda array: array
        return [change(array) for array in right(name, dtype, xp, steps)]

    monkeypatch.setattr(gpu, "differentiate", differentiate)
    report = gpu.Report()
    for check in gpu.check_layers, gpu.check_steps:
        check(report, stand_in, [*wrong, "linear"])
    failed = [True] * 8 + [False] * 2 + [True] * 4 + [False]
    assert ["failed" in result for _, result in report.rows] == failed
    assert report.last_line() == "3 of 15 checks passed"
    assert "| embedding, float64 | **failed**: RuntimeError: out of memory |" in report.text()


@pytest.mark.parametrize("precision", train_step.PRECISIONS)
def test_the_steps_that_are_timed_on_a_gpu_wait_once(stand_in, monkeypatch, precision):
    monkeypatch.setenv("CUPY_TF32", "0")  # the step sets it
    way = train_step.Way("cupy", precision)
    step, wait = train_step.numformer_step(SIZES_TIMED["toy64"]._replace(B=2), "padded", way)
    with synchronisations() as waits:
        assert train_step.seconds(step, wait, 2) > 0
    assert waits == {"get": 1}
    assert os.environ["CUPY_TF32"] == ("1" if precision == "tf32" else "0")


def test_a_missing_gpu_or_an_impossible_report_file_ends_it_at_once(tmp_path, monkeypatch, capsys):
    for out in ("", "absent/report.md", "report.json"):
        with pytest.raises(SystemExit, match="2"):
            gpu.main(["--quick", "--out", str(tmp_path / out)])
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert gpu.main(["--out", str(tmp_path / "report.md")]) == 2
    errors = capsys.readouterr().err
    assert errors.count("error: ") == 4 and "backend cupy needs CuPy and an NVIDIA GPU" in errors
    assert not list(tmp_path.iterdir())
