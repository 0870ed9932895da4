"""Simulations: what a reader moves and the page answers, over numbers that numformer computed."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from lessons.lesson import Picture


@dataclass(frozen=True, kw_only=True)
class Simulation(Picture):
    """A simulation; `caption` says how to read its picture, its module what to do on a page.

    `name` is that of its module and style sheet in its lesson's folder, and the class of its
    figure. `data(page)` is what the module reads, made of what JSON has. `draw` is the picture for
    pages without scripts and for the terminal. `window(figure)` draws it with matplotlib's widgets
    and returns these. `code` are lines of Python that give its numbers.
    """

    title: str
    code: str
    data: Callable[[object], dict]
    window: Callable[[Figure], list]

    def html(self, page) -> str:
        page.script(self.name)
        data = json.dumps(self.data(page), separators=(",", ":"), ensure_ascii=False)
        data = data.replace("</", "<\\/")  # or a tag in it would end the script
        return f"""\
<figure class="simulation {self.name}" data-simulation="{self.name}">
<figcaption><h3>{self.title}</h3></figcaption>
<div class="simulation-picture">{self.svg()}{page.markdown(self.caption)}</div>
<div class="simulation-stage" hidden></div>
<details class="simulation-code"><summary>The same numbers in Python</summary>
{page.code(self.code)}</details>
<script type="application/json">{data}</script>
</figure>
"""

    def in_window(self, figure: Figure) -> None:
        figure.widgets = self.window(figure)  # widgets that nothing refers to are deaf


def numbers(array: np.ndarray) -> list:
    """An array as JSON has it, to 6 decimals; minus infinity becomes null."""
    if array.ndim:
        return [numbers(row) for row in array]
    if array == -np.inf:
        return None
    value = round(float(array), 6)
    return int(value) if value == int(value) else value


def equation(text: str, symbols: Mapping[str, str], page) -> str:
    """MathML in which each @name is its symbol and carries the name; a blank line parts equations.

    `symbols` has the LaTeX of each name. LaTeX has no attributes, so a character of the private use
    area stands for each symbol while the equation is translated.
    """
    names = list(symbols)
    standing_in = re.sub("@([a-z]+)", lambda found: chr(0xE000 + names.index(found[1])), text)
    mathml = "".join(page.math(each, display=True) for each in standing_in.split("\n\n"))
    for number, (name, latex) in enumerate(symbols.items()):
        symbol = re.sub("</?math[^>]*>", "", page.math(latex))
        mathml = mathml.replace(
            f"<mi>{chr(0xE000 + number)}</mi>", f'<mrow data-matrix="{name}">{symbol}</mrow>'
        )
    return mathml


def tagged(html: str, names: dict[str, str | tuple[str, ...]]) -> str:
    """Highlighted Python in which each name of a matrix, or of several in turn, carries theirs."""
    turns = {name: 0 for name in names}

    def tag(found):
        name = found[2]
        if name not in names:
            return found[0]
        meant = names[name]
        if not isinstance(meant, str):
            meant = meant[turns[name]]
        turns[name] += 1
        return f'<span class="{found[1]}" data-matrix="{meant}">{name}</span>'

    return re.sub(r'<span class="(n\w*)">(\w+)</span>', tag, html)
