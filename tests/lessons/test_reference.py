"""The reference: every public name has an example that runs; equations are set whole."""

import ast
import configparser
import re
import sys
from importlib.util import find_spec

import pytest

import numformer
from lessons import reference
from lessons.kit.ascii_math import in_latex
from lessons.kit.reference import signature

ENTRIES = list(dict.fromkeys(reference.entries().values()))


def test_every_public_name_has_an_example():
    assert {*numformer.__all__} <= {*reference.entries()}
    for page in reference.PAGES:
        names = {entry.names[0] for entry in ENTRIES if entry.page == page}
        assert names == {*reference.examples(page)[1]}, f"lessons/reference/{page}.py"


@pytest.mark.parametrize("page", reference.PAGES)
def test_examples_run_and_use_their_names(page, monkeypatch):
    """The extra `docs` alone, which README's first command installs, is enough to run them."""
    setup = configparser.ConfigParser()
    setup.read(reference.FOLDER.parents[1] / "setup.cfg")
    extras = {
        extra: {*re.findall(r"^\w+", packages, re.MULTILINE)}
        for extra, packages in setup["options.extras_require"].items()
    }
    for package in (extras["translate"] | extras["published"]) - extras["docs"]:
        monkeypatch.setitem(sys.modules, package, None)
    for entry in (entry for entry in ENTRIES if entry.page == page):
        name = entry.names[0]
        if name == "Subwords" and not find_spec("sentencepiece"):
            continue
        nodes = ast.walk(ast.parse(reference.examples(page)[1][name]))
        assert {*entry.names} <= {node.id for node in nodes if isinstance(node, ast.Name)}, name
        assert reference.run(page, name).strip(), name
        assert all(entry.docs) or entry.is_constant, name
        if name.endswith("Config") or name == "Recipe":  # the comments on settings are visible
            lines = signature(name, entry.objects[0]).splitlines()
            assert max(map(len, lines)) <= reference.WIDTH, name


@pytest.mark.parametrize(
    ("text", "latex"),
    [
        ("y = x W + b.", r"y \mathrel{=} x \, W + b"),
        ("so d_k = D / (2 H), too", r"d_{k} \mathrel{=} \frac{D}{2 H}"),
        (
            "x_hat = (x - m) / 2^(2i / D)",
            r"\hat{x} \mathrel{=} \frac{x - m}{2^{2 i / D}}",
        ),
        ("y = x P(X <= x) for a normal X", r"y \mathrel{=} x \, P(X \le x)"),
        ("l = -sum_v q(v) log p(v)", r"l \mathrel{=} -\sum_{v} q(v) \, \log p(v)"),
        ("head_i = f(a, ..., b_1)   (3.2)", r"\mathrm{head}_{i} \mathrel{=} f(a, \ldots, b_{1})"),
        # If a word could belong to an equation, the equation is not set.
        ("mask, True = may attend", ""),
        ("exponentials = exp(logits - the row's maximum)", ""),
        ("d_k = D / heads unless given", ""),
        ("y = a mean of x", ""),
        ("y_t = bias + sum over j", ""),
    ],
)
def test_an_equation_of_a_docstring_is_set_whole_or_not_at_all(text, latex):
    assert "".join(piece for piece, is_latex in in_latex(text) if is_latex) == latex


def test_most_equations_of_the_paper_are_set():
    docs = " ".join(doc for entry in ENTRIES if entry.page == "paper" for doc in entry.docs)
    assert sum(is_latex for _, is_latex in in_latex(docs.replace("\n", " "))) > 20
