"""Recordings: repeated in a browser with other numbers, they compute what NumPy does."""

import numpy as np
import pytest

from lessons import FOLDER
from lessons.kit import recorded
from lessons.kit.recording import Recording
from numformer.arithmetic import scatter_add
from numformer.backend import array_module
from numformer.layer import pack
from numformer.models import Transformer
from numformer.optimization.optimizers import Adam
from numformer.paper.dropout import Dropout
from numformer.randomness import dropout_stream

REPLAY = """([recording, rounds]) => {
  const replay = new Replay(recording);
  const texts = (array) => (Array.isArray(array) ? array.map(texts) : String(array));
  return rounds.map((given) => {
    for (const [name, values] of Object.entries(given)) replay.set(name, values);
    replay.run();
    return Object.keys(replay.names).map((name) => [name, texts(replay.get(name))]);
  });
}"""


@pytest.fixture(scope="module")
def replayed(chromium):
    """`replayed(recording, rounds)` -> of each round, for what it sets, every named array."""
    page = chromium.new_page()
    script = (FOLDER / "page/replay.js").read_text(encoding="utf-8")
    page.add_script_tag(content=script.replace("export class Replay", "window.Replay = class"))

    def replay(recording: Recording, rounds: list[dict]) -> list[dict[str, np.ndarray]]:
        given = [{name: np.asarray(x).tolist() for name, x in r.items()} for r in rounds]
        answers = page.evaluate(REPLAY, [recording.data(), given])
        return [{name: np.array(x, float) for name, x in answer} for answer in answers]

    yield replay
    page.close()


def everything(x, y, ids):
    """x (2, 3, 4), y (3, 4), ids (2, 3) below 3 -> arrays of every operation that is known."""
    xp, positive = array_module(x), abs(x) + 0.1
    arrays = {
        name: getattr(xp, name)(x) for name in "cos exp negative sign sin square tanh".split()
    }
    arrays |= {name: getattr(xp, name)(positive) for name in ("log", "sqrt")}
    for name in "add divide maximum minimum multiply subtract".split():
        arrays[name] = getattr(xp, name)(x, y)
    for name in "equal greater greater_equal less less_equal not_equal".split():
        arrays[name] = getattr(xp, name)(ids, 1)
    for name in ("sum", "max", "min", "any", "all", "mean"):
        array = x > 0 if name in ("any", "all") else x
        arrays[name] = getattr(array, name)()
        arrays[f"{name} along two"] = getattr(array, name)(axis=(0, 2))
        arrays[f"{name} kept"] = getattr(array, name)(axis=-1, keepdims=True)
    arrays["power"], arrays["powers of"] = positive**y, 0.9**ids
    arrays["logic"] = ~((x > 0) & (y > 0)) | xp.isfinite(x) & (x < y)
    arrays["where"] = xp.where(x > y, x, 0.5)
    arrays["infinite"] = xp.where(x > y, x, -np.inf)
    arrays["matmul"], arrays["batched"] = y @ x.swapaxes(-1, -2), x @ x.swapaxes(1, 2)
    arrays["vectors"], arrays["row"] = y[0] @ y[1], y[:, 1] @ y
    arrays["taken"], arrays["pairs"], arrays["by axis"] = (
        y[ids],
        y[ids, ids + 1],
        x.take(ids, axis=1),
    )
    arrays["reshaped"] = x.transpose(2, 0, 1).reshape(4, -1).T[1:, ::2]
    arrays["spread"] = xp.broadcast_to(y[:, None, 1:], (3, 2, 3)) + 0
    arrays["joined"] = xp.concatenate([x[0], y, x[1] * 2], axis=1)
    arrays["by the host"] = x @ np.arange(12.0).reshape(3, 4).T
    arrays["of the host"] = np.arange(6.0).reshape(2, 3) @ x
    arrays["stacked"] = np.stack([x[0], y], axis=-1)
    table = xp.zeros((3, 4), x.dtype)
    scatter_add(table, ids.ravel(), x.reshape(-1, 4))
    written = x.copy()
    written[0] += written[1]  # a part by another
    written[:, 1:] *= written[:, :-1]  # parts that overlap
    written[xp.arange(2), ids[:, 0]] -= y[:2]
    written[..., 0] = 7
    xp.exp(y, out=written[1])
    return arrays | {"table": table, "written": written, "whole": ids.astype(x.dtype) / 2}


def test_every_operation_repeats_with_other_numbers(replayed, rng):
    def drawn():
        return rng.normal(size=(2, 3, 4)), rng.normal(size=(3, 4)), rng.integers(3, size=(2, 3))

    with Recording() as recording:
        inputs = zip(("x", "y"), drawn(), strict=False)
        given = [recording.given(f"given {name}", values) for name, values in inputs]
        ids = recorded.asarray(recording.given_ids("given ids", drawn()[2]))
        for name, array in everything(*given, ids).items():
            recording.name(name, array)
    rounds = [dict(zip(("given x", "given y", "given ids"), drawn(), strict=True)) for _ in "12"]
    for given, answer in zip(rounds, replayed(recording, rounds), strict=True):
        expected = everything(*given.values())
        assert expected.keys() | given.keys() == answer.keys()
        for name, array in expected.items():
            np.testing.assert_allclose(answer[name], array, 1e-12, 1e-12, err_msg=name)


SOURCE, TARGET = np.array([[4, 5, 6, 7], [8, 9, 4, 5]]), np.array([[7, 6, 5], [9, 8, 4]])
IDS = {"source": SOURCE, "target in": TARGET, "target out": TARGET[:, ::-1].copy()}


def trained(p_drop: float):
    config = Transformer.Config.base(12, d_model=8, d_ff=16, heads=2, layers=1, p_drop=p_drop)
    return Transformer(config, seed=3).objective(0.1)


def test_a_training_step_of_a_whole_model_repeats_in_the_page(replayed, rng):
    """Forward, backward and Adam, for other weights and ids, forty times over."""
    with Recording() as recording:
        objective = trained(p_drop=0.0)
        flat = pack(objective.model, np.float64, recorded)
        optimizer = Adam(flat)
        vectors = {"weights": flat.data, "gradients": flat.grad, **optimizer.state}
        for name, vector in vectors.items():
            recording.input(name, vector)
        step, rate = recording.given("step", 1), recording.given("rate", 0.01)
        flat.zero_grad()
        ids = [recording.given_ids(name, batch) for name, batch in IDS.items()]
        recording.name("loss", objective.forward(*ids))
        objective.backward()
        optimizer.update(flat.grad, step, rate)
    objective = trained(p_drop=0.0)
    flat = pack(objective.model, np.float64)
    flat.data[...] = weights = rng.normal(0, 0.5, flat.data.shape)
    optimizer, other = Adam(flat), {name: ids[::-1, ::-1].copy() for name, ids in IDS.items()}
    rounds = [{"step": n} for n in range(1, 41)]
    rounds[0] |= other | {"weights": weights}
    answers = replayed(recording, rounds)
    for answer in answers:
        objective.zero_grad()
        loss = objective.forward(*other.values())
        objective.backward()
        np.testing.assert_allclose(answer["loss"], loss, 1e-9)
        np.testing.assert_allclose(answer["gradients"], flat.grad, atol=1e-9)
        optimizer.step(0.01)
        np.testing.assert_allclose(answer["weights"], flat.data, atol=1e-9)
    assert loss < answers[0]["loss"] / 2


def test_the_masks_of_dropout_are_a_reader_s(replayed):
    with Recording() as recording:
        x, layer = recording.given("x", np.ones((2, 3))), Dropout(0.25)
        recording.name("y", layer.forward(x))
    kept = np.array([[1, 0, 1], [0, 0, 1]])
    (answer,) = replayed(recording, [{"keep 0": kept}])
    np.testing.assert_allclose(answer["y"], kept / 0.75)
    assert dropout_stream.mask((2,), 0.5, np.ones(1)).shape == (2,)  # as it was


def looks(x):
    return x if x.sum() > 0 else -x


def apart(x):
    ids = array_module(x).arange(1)
    return x[None][ids, :, ids]


REFUSED = {  # what is done to a recorded array (2, 3), and the words of the complaint
    looks: "never look at an array's content; received a look in ",
    lambda x: float(x[0, 0]): "never look",
    lambda x: array_module(x).cumsum(
        x
    ): "operations that a page knows (page/replay.js); received c",
    lambda x: np.sort(x): "received sort in ",
    lambda x: np.add(x, x, where=x > 0): "without further settings",
    lambda x: x[x > 0]: "index arrays by numbers, slices and recorded ids",
    lambda x: x.astype(int): "never truncate numbers to integers",
    lambda x: x.astype(np.float32): "compute with float64",
    apart: "index axes that are neighbours; received indices of the axes [0, 2]",
    lambda x: array_module(x).arange(3).fill(0): "never write into a constant array",
    lambda x: x + "1": "recorded arrays and numbers; received str",
    lambda x: recorded.current.given("x", x): "never look",
    lambda x: recorded.current.name("x", x + 1): "each name has one array; received x twice",
    lambda x: recorded.asarray(recorded.current.given_ids("ids", [4]) * 2): "ids as they are",
}


@pytest.mark.parametrize(("lines", "words"), REFUSED.items())
def test_what_a_list_cannot_hold_is_refused_with_its_line(lines, words, complaint):
    with Recording() as recording:
        message = complaint(lines, recording.given("x", np.ones((2, 3))))
    assert words in message and ("twice" in words or __file__ in message)


def test_one_recording_is_made_at_a_time():
    with Recording(), pytest.raises(RuntimeError, match="within another"), Recording():
        pass
    with Recording():
        pass


def test_what_nobody_looks_at_is_not_repeated():
    with Recording() as recording:
        x = recording.given("x", [1.0, 2.0])
        np.exp(x).sum()
        recording.name("y", 2 * x)
    description = recording.data()
    assert [name for name, *_ in description["operations"]] == ["multiply", "copy"]
    assert len(description["buffers"]) == 3
