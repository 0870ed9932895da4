"""The running example: the lessons show one sentence in one model, and its numbers are right."""

import re

import numpy as np
import pytest

import lessons
from lessons import opening, running
from lessons.kit.lesson import pieces
from lessons.lesson_11 import explorer, small
from numformer.data.vocabulary import END, START
from numformer.layer import mode

TABLE = dict(
    re.findall(
        r"^\| (\d+) \| ([A-Z].*\.) \|$",
        (lessons.FOLDER / "teaching.md").read_text(encoding="utf-8"),
        re.M,
    )
)


def texts(number: int) -> str:
    shown = pieces(lessons.load(number).in_the_running_example)
    return "\n".join(piece.markdown() for piece in shown)


def column(text: str, name: str) -> list[str]:
    """The cells of the column of this name, in the first table that has it."""
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|")]
    (head,) = [n for n, row in enumerate(rows) if name in row][:1]
    place, found = rows[head].index(name), []
    for row in rows[head + 2 :]:
        if len(row) != len(rows[head]):
            break
        found.append(row[place].strip("*"))
    return found


@pytest.mark.parametrize("number", [*range(1, 11), 12])
def test_the_table_of_lessons_is_true(number):
    shows = lessons.load(number).in_the_running_example
    assert shows.shown and TABLE[str(number)] == shows.__doc__


def test_the_explorer_begins_with_it():
    assert explorer.texts()[0].ids == running.SOURCE and "11" in TABLE


def test_a_step_is_that_of_the_home_page():
    step = running.step()
    weights = small.weights("translator").astype(float)
    state = weights, 0 * weights, 0 * weights, np.zeros(1)
    pair = [*running.SOURCE, END], [START, *running.TARGET], [*running.TARGET, END]
    with mode(training=False, saving=True):
        learned = opening.learn(*state, *map(small.padded, pair))
    assert step.loss == pytest.approx(learned["loss"])
    length, own = len(running.READ), len(running.SAYS)
    for n in range(small.LAYERS):
        for kind, name, rows, to in (
            ("encoder", f"encoder.layers.{n}.self_attention", length, length),
            ("decoder", f"decoder.layers.{n}.self_attention", own, own),
            ("cross", f"decoder.layers.{n}.cross_attention", own, length),
        ):
            near = step.weights[name], learned[kind][n, :, :rows, :to]
            np.testing.assert_allclose(*near, atol=1e-9)
        for tower, rows in ("encoder", length), ("decoder", own):
            stream = learned[f"{tower} streams"][n : n + 2, :rows]
            through = step.into[f"{tower}.layers.{n}"], step.out[f"{tower}.layers.{n}"]
            np.testing.assert_allclose(through, stream, atol=1e-9)
            back = learned[f"{tower} streams back"][n : n + 2, :rows]
            through = step.on[f"{tower}.layers.{n}"], step.back[f"{tower}.layers.{n}"]
            np.testing.assert_allclose(through, back, atol=1e-9)
    np.testing.assert_allclose(step.chances, learned["chances"][:own], atol=1e-9)
    table = step.objective.model.source.embedding.weight.grad
    np.testing.assert_allclose(sum(step.table.values()), table, atol=1e-12)
    assert not step.table["encoder"][running.TARGET[running.HARD]].any()
    (loss, before), *_, (_, after) = running.training()
    assert (loss, after) == (pytest.approx(step.loss), opening.GERMAN) and before != after
    writes = small.written("translator", (*running.SOURCE,))
    assert running.written(opening.ENGLISH) == running.text(writes) == before


def test_the_gradients_of_all_losses_sum_to_that_of_the_step():
    back = running.step().on["encoder"]
    np.testing.assert_allclose(running.reached().sum(axis=0), back, atol=1e-12)


def test_the_lessons_show_the_numbers_of_the_step():
    """Numbers that are read off the pages, against sums that the page does not make."""
    two, three, seven = texts(2), texts(3), texts(7)
    for tau in "1.12", "4.47", "17.89":
        assert sum(map(float, column(two, rf"$\tau$ = {tau}"))) == pytest.approx(1, abs=0.03)
    bear = running.READ.index("bear")
    assert column(two, "key") == running.READ and float(column(two, r"$\tau$ = 4.47")[bear]) > 0.9
    assert sum(map(float, column(three, "$a$"))) == pytest.approx(1, abs=0.03)
    dz = [float(x.replace("−", "-")) for x in column(three, r"$1000\,\mathrm{d}z$")]
    assert sum(dz) == pytest.approx(0, abs=0.03) and np.abs(dz).max() > 1
    assert column(seven, "reads")[1:] == column(seven, "has to say")[:-1]
    losses = [float(loss) for loss in column(seven, "loss")]
    assert np.mean(losses) == pytest.approx(running.step().loss, abs=0.01)
    eight = texts(8)
    for p, right, dz in zip(
        *(column(eight, name) for name in ("$p$", "$p^*$", r"$\mathrm{d}z$")), strict=True
    ):
        assert float(p) - float(right) == pytest.approx(float(dz.replace("−", "-")), abs=1e-9)
    assert column(eight, "the model writes")[-1] == opening.GERMAN
    parameters = [int(count.replace(",", "")) for count in column(texts(12), "parameters")]
    assert parameters[-1] == sum(parameters[:-1]) == small.weights("translator").size
    log_p = [float(p.replace("−", "-")) for p in column(texts(10), "log probability")]
    assert log_p == sorted(log_p)
