"""The stepper through attention: its numbers are the library's, its lines the library's lines."""

import contextlib
import dataclasses
import io
import json
import re
import sys

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from lessons.lesson_03 import attention_stepper as stepper
from lessons.lesson_03.attention_stepper import TEMPERATURES, Example
from lessons.lesson_03.attention_steps import MATRICES, STEPS
from lessons.simulation import equation, numbers, tagged
from lessons.trace import find, trace
from numformer.layers.attention import (
    scaled_dot_product_attention,
    scaled_dot_product_attention_backward,
)

TOKENS = ["a", "b", "c"]
EXAMPLE = dict(
    query=np.array([[0.0, 2], [2, 0], [1, -1]]),
    key=np.array([[2.0, 0], [0, 2], [1, 1]]),
    value=np.array([[-1.0, -1], [2, 1], [0, 2]]),
    doutput=np.array([[1.0, 0], [0, -1], [-1, 2]]),
    features=["f", "g"],
    entries=["x", "y"],
)


class Plain:
    """A page that leaves words as they are, and makes a symbol of every letter of a formula."""

    def __init__(self):
        self.scripts = []

    def markdown(self, text):
        return text

    def math(self, latex, display=False):
        return "<math>" + "".join(f"<mi>{letter}</mi>" for letter in latex) + "</math>"

    def code(self, python):
        return re.sub(r"(\w+)", r'<span class="n">\1</span>', python)

    def script(self, name):
        self.scripts.append(name)


@pytest.fixture(scope="module")
def example():
    return Example(TOKENS, **EXAMPLE)


@pytest.fixture(scope="module")
def data(example):
    return json.loads(json.dumps(example.data(Plain())))


def doubled(x, flag=True):
    y = 2 * x
    if not flag:  # a comment
        y += 1
    y[0] = helper(y)  # the first "# of" them
    return y


def helper(y):
    y[-1] = 7
    return 5


def test_a_trace_is_the_lines_that_ran_and_the_arrays_after_each():
    x = np.array([1.0, 2])
    lines = trace(doubled, x, into=[helper])
    assert [(line.function, line.text) for line in lines] == [
        ("doubled", "def doubled(x, flag=True):"),
        ("doubled", "y = 2 * x"),
        ("doubled", "if not flag:"),
        ("doubled", "y[0] = helper(y)"),
        ("helper", "def helper(y):"),
        ("helper", "y[-1] = 7"),
        ("helper", "return 5"),
        ("doubled", "return y"),
    ]
    assert [line.comment for line in lines if line.comment] == [
        "a comment",
        'the first "# of" them',
    ]
    after = [{name: x.tolist() for name, x in line.after.items()} for line in lines]
    x = {"x": [1, 2]}
    assert after[:4] == [x, x | {"y": [2, 4]}, x | {"y": [2, 4]}, x | {"y": [5, 7]}]
    assert after[5] == {"y": [2, 7]}
    assert lines[6].value == 5 and lines[7].value.tolist() == [5, 7]
    assert lines[7].after["y"] is not lines[7].value  # a copy


def test_a_trace_enters_only_what_it_is_asked_to():
    assert {line.function for line in trace(doubled, np.ones(2))} == {"doubled"}


@pytest.mark.parametrize("fails", [False, True])
def test_what_traced_before_goes_on(fails):
    def before(frame, event, argument):
        return None

    outer = sys.gettrace()
    try:
        sys.settrace(before)
        with contextlib.suppress(TypeError):
            trace(doubled, None if fails else np.ones(2))
        after = sys.gettrace()
    finally:
        sys.settrace(outer)
    assert after is before


def test_a_line_that_is_gone_is_an_error(complaint):
    lines = trace(doubled, np.ones(2))
    assert find(lines, "doubled", "y = ").text == "y = 2 * x"
    message = complaint(find, lines, "doubled", "y = 3")
    assert "doubled" in message and "'y = 3'" in message


def test_a_step_whose_line_is_gone_stops_the_page(example, complaint, monkeypatch):
    monkeypatch.setattr(stepper, "softmax", lambda scores, mask=None: scores)
    assert "softmax" in complaint(example.data, Plain())


def upright(values):
    return np.array([[-np.inf if x is None else x for x in row] for row in values], float)


def direct(example, mask, temperature, doutput):
    """The same by calling the library, and by what each step says."""
    query = example.query / temperature
    output, weights, dropped = scaled_dot_product_attention(query, example.key, example.value, mask)
    dquery, dkey, dvalue = scaled_dot_product_attention_backward(
        doutput, query, example.key, example.value, weights, dropped, None
    )
    scores = query @ example.key.T
    root = np.sqrt(query.shape[1])
    dweights = doutput @ example.value.T
    average = (dweights * weights).sum(axis=1, keepdims=True)
    with np.errstate(invalid="ignore"):
        masked = np.where(mask, scores / root, -np.inf)
        exponentials = np.where(mask, np.exp(masked - masked.max(axis=1, keepdims=True)), 0)
    return dict(
        query=query,
        key=example.key,
        value=example.value,
        scores=scores,
        scaled=scores / root,
        allowed=mask,
        masked=masked,
        exponentials=exponentials,
        total=exponentials.sum(axis=1, keepdims=True),
        weights=weights,
        output=output,
        doutput=doutput,
        dvalue=dvalue,
        dweights=dweights,
        average=average,
        centred=dweights - average,
        dscaled=weights * (dweights - average),
        dscores=weights * (dweights - average) / root,
        dquery=dquery,
        dkey=dkey,
    )


def test_the_page_has_the_numbers_of_the_library_for_every_choice(example, data, rng):
    for mask in example.masks:
        for at, temperature in enumerate(TEMPERATURES):
            doutput = rng.integers(-3, 4, example.doutput.shape).astype(float)
            expected = direct(example, mask["mask"], temperature, doutput)
            forward = data["forward"][mask["id"]][at]
            backward = data["backward"][mask["id"]][at]
            assert forward.keys() | backward.keys() == expected.keys() - {"doutput"}
            assert not forward.keys() & backward.keys()
            for name, values in forward.items():
                np.testing.assert_allclose(upright(values), expected[name], atol=1e-6)
            for name, units in backward.items():
                total = np.tensordot(doutput.ravel(), np.array(units, float), 1)
                np.testing.assert_allclose(total, expected[name], atol=2e-5)


def test_masks_hide_what_they_say(example):
    hidden = {mask["id"]: np.argwhere(~mask["mask"]).tolist() for mask in example.masks}
    assert hidden == {
        "none": [],
        "causal": [[0, 1], [0, 2], [1, 2]],
        "padding": [[0, 2], [1, 2], [2, 2]],
        "nothing": [[1, 0], [1, 1], [1, 2]],
    }


def test_values_are_those_of_any_upstream_gradient(example):
    mask = example.masks[1]["mask"]
    expected = direct(example, mask, 2, example.doutput)
    for name, array in example.values(mask, 2, example.doutput).items():
        np.testing.assert_allclose(array, expected[name], atol=1e-12, err_msg=name)


def test_the_keys_that_a_token_reaches_are_as_the_last_step_says(example):
    for row in range(len(TOKENS)):
        doutput = example.doutput * (np.arange(len(TOKENS)) == row)[:, None]
        dkey = example.values(example.masks[1]["mask"], 1, doutput)["dkey"]  # the causal mask
        assert not np.any(dkey[row + 1 :])
        assert np.any(dkey) == (row > 0)  # a single weight is 1, whatever its score


def test_a_token_that_sees_nothing_has_zeros_and_no_nan(data):
    blind = data["picked"]
    for forward, backward in zip(
        data["forward"]["nothing"], data["backward"]["nothing"], strict=True
    ):
        assert not np.any(forward["weights"][blind]) and not np.any(forward["output"][blind])
        assert forward["masked"][blind] == [None] * len(TOKENS)
        assert not np.any(np.array(backward["dquery"])[:, blind])
        everything = [*backward.values(), *(v for k, v in forward.items() if k != "masked")]
        assert all(np.isfinite(np.array(values, float)).all() for values in everything)


def test_every_step_shows_lines_of_the_library_with_their_matrices_tagged(data):
    for step, shown in zip(STEPS, data["steps"], strict=True):
        tags = re.findall(r'data-matrix="(\w+)"', shown["code"])
        assert tags and set(tags) <= MATRICES.keys()
        assert set(step.results) & set(tags), step.id
        assert set(step.inputs + step.results) <= set(
            re.findall(r'data-matrix="(\w+)"', shown["equation"])
        )
        assert "@" not in shown["equation"]
    assert [step["inverts"] for step in data["steps"] if step["part"] == "backward"] == [
        *("blend",) * 3,
        *("softmax",) * 2,
        "scale",
        *("scores",) * 2,
    ]
    assert "# <span" in next(s["code"] for s in data["steps"] if s["id"] == "dvalue")


def test_a_name_that_stands_for_several_matrices_is_tagged_in_turn():
    html = '<span class="n">s</span> = <span class="n">s</span> + <span class="n">t</span>'
    assert tagged(html, {"s": ("masked", "scaled")}) == (
        '<span class="n" data-matrix="masked">s</span> = '
        '<span class="n" data-matrix="scaled">s</span> + <span class="n">t</span>'
    )


def test_symbols_of_equations_carry_the_names_of_their_matrices():
    assert equation("@scores=@query\n\n2", {"query": "Q", "scores": "S"}, Plain()) == (
        '<math><mrow data-matrix="scores"><mi>S</mi></mrow><mi>=</mi>'
        '<mrow data-matrix="query"><mi>Q</mi></mrow></math><math><mi>2</mi></math>'
    )


def chosen(code, **choices):
    """The lines of Python under the simulation, with the reader's choices."""
    for name, value in choices.items():
        code, count = re.subn(rf"^{name} = .*$", f"{name} = {value}", code, flags=re.MULTILINE)
        assert count == 1
    return code


def test_the_lines_of_python_give_the_same_numbers(example, data):
    for mask in example.masks:
        made = {}
        with contextlib.redirect_stdout(io.StringIO()):
            exec(chosen(example.python(), mask=mask["code"], temperature=2), made)
        expected = direct(example, mask["mask"], 2, example.doutput)
        for name in ("weights", "output", "dquery", "dkey", "dvalue"):
            np.testing.assert_array_equal(made[name], expected[name])
    assert [mask["code"] for mask in data["masks"]] == [mask["code"] for mask in example.masks]


def test_json_has_integers_six_decimals_and_null_for_minus_infinity():
    array = np.array([[1.0, -0.0, -np.inf], [1 / 3, -2, 1e-9]])
    assert json.dumps(numbers(array)) == "[[1, 0, null], [0.333333, -2, 0]]"


def test_the_page_has_its_data_module_picture_and_code():
    page = Plain()
    simulation = stepper.attention_stepper(["a</script>", "b", "c"], **EXAMPLE)
    simulation = dataclasses.replace(simulation, draw=lambda figure: figure.text(0, 0, "drawn"))
    html = simulation.html(page)
    assert page.scripts == ["attention_stepper"]
    found = re.search(r'<script type="application/json">(.*?)</script>', html, re.DOTALL)
    read = json.loads(found[1])
    assert read["tokens"] == ["a</script>", "b", "c"] and read["entries"] == ["x", "y"]
    assert "<!-- drawn -->" in html and 'data-simulation="attention_stepper"' in html
    assert len(found[1]) < 250_000


def test_the_picture_has_each_gradient_below_what_it_belongs_to(example):
    figure = Figure()
    example.draw(figure)
    places = {}
    for axes in figure.axes:
        spec = axes.get_subplotspec()
        places[axes.get_title(loc="left").split("  ")[0]] = spec.rowspan.start, spec.colspan.start
    for names, row, below in (("QKV", 0, 3), ("SZAO", 1, 2)):
        for column, name in enumerate(names):
            assert places[f"${name}$"] == (row, column)
            assert places[rf"$\mathrm{{d}}{name}$"] == (below, column)


def test_the_lines_of_a_step_make_what_it_shows(data):
    """And the names in them, but for the arguments of a whole function, are its matrices."""
    for step, shown in zip(STEPS, data["steps"], strict=True):
        lines = {(code.function, code.begins) for code in step.code}
        made = {(MATRICES[name].function, MATRICES[name].begins) for name in step.results}
        if step.id == "dweights":  # before and after dropout, which a page has none of
            made |= {(step.code[0].function, step.code[0].begins)}
        if step.id == "softmax":  # the row's largest score is subtracted
            made |= {(step.code[0].function, step.code[0].begins)}
        assert lines == made, step.id
        tags = set(re.findall(r'data-matrix="(\w+)"', shown["code"]))
        assert tags <= {*step.inputs, *step.results} or step.id == "upstream", step.id
        assert shown["of"] == step.code[0].function


def test_a_gradient_has_the_axes_of_what_it_belongs_to():
    axes = {name: (made.rows, made.columns) for name, made in MATRICES.items()}
    for name in ("query", "key", "value", "scores", "scaled", "weights", "output"):
        assert axes[f"d{name}"] == axes[name]
    for name in ("allowed", "masked", "exponentials", "weights", "centred"):
        assert axes[name] == axes["scores"] == ("queries", "keys")


def test_a_page_has_all_that_a_step_says(data):
    for step, shown in zip(STEPS, data["steps"], strict=True):
        for name in ("id", "name", "title", "say", "ask", "answer", "note"):
            assert shown[name] == getattr(step, name)
        assert shown["part"] == ("backward" if step.id[0] == "d" or step.inverts else "forward")
        assert len({step.say, step.ask, step.answer, ""}) == 4


def test_each_temperature_says_what_it_does():
    """With d_k = 4, so that two of them are the scale's own."""
    wide = {name: np.zeros((3, 4)) for name in ("query", "key")}
    example = Example(TOKENS, **EXAMPLE | wide)
    words = {0.5: "undoes the division by √d_k = 2", 1: "As in the paper", 2: "now it acts twice"}
    for temperature in TEMPERATURES:
        general = "Scores grow" if temperature < 1 else "Scores shrink"
        assert words.get(temperature, general) in example.note(temperature)
        assert temperature == 1 or f"query / {temperature}." in example.note(temperature)


def test_drawn_matrices_have_their_numbers_and_names(example):
    figure = Figure()
    example.draw(figure)
    values = direct(example, example.masks[0]["mask"], 1, example.doutput)
    named = {f"${made.latex}$": name for name, made in MATRICES.items() if name != "masked"}
    names = dict(queries=TOKENS, keys=TOKENS, features=["f", "g"], entries=["x", "y"])
    drawn = 0
    for axes in figure.axes:
        name = named.get(axes.get_title(loc="left").split("  ")[0])
        if name is None:
            continue
        drawn += 1
        made = MATRICES[name]
        assert [each.get_text() for each in axes.get_yticklabels()] == names[made.rows]
        assert [each.get_text() for each in axes.get_xticklabels()] == names[made.columns]
        for text in axes.texts:
            column, row = map(int, text.get_position())
            number = float(text.get_text().replace("−", "-"))
            assert abs(number - values[name][row, column]) <= 0.005 + 1e-9, name
            colour = axes.images[0].get_array()[row, column]
            assert colour[3] == 0 or (colour[2] > colour[0]) == (values[name][row, column] > 0)
    assert drawn == 14


def test_widgets_redraw(example):
    figure = Figure()
    FigureCanvasAgg(figure)
    step, temperature, mask, query = example.window(figure)

    def shown():
        axes = figure.subfigs[0].axes
        return [a.get_title(loc="left") for a in axes], [
            t.get_text() for a in axes for t in a.texts
        ]

    titles, _ = shown()
    assert [title.split()[0] for title in titles] == ["$Q$", "$K$", "$V$"]
    step.set_val(6)
    titles, before = shown()
    assert titles == ["$A$  (3 × 3)", "$V$  (3 × 2)", "$O$  (3 × 2)"]
    assert figure.subfigs[0].get_suptitle() == f"6. {STEPS[5].title}"
    temperature.set_val(0.25)
    assert shown()[1] != before
    mask.set_active(1)
    assert shown()[1][:3] == ["1.00", "0", "0"]  # the first token sees only itself
    query.set_active(0)
    marked = [[patch.get_y() for patch in axes.patches] for axes in figure.subfigs[0].axes]
    assert marked == [[-0.5], [], [-0.5]]  # V has no row of a query
