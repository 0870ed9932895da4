"""Simulations: what a reader moves and the page answers, over numbers that numformer computed."""

import json
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from lessons.lesson import Picture


@dataclass(frozen=True, kw_only=True)
class Simulation(Picture):
    """A simulation; `name` is that of its module in lessons/page, `caption` says what to do.

    `data(page)` is what the module reads, made of what JSON has. `draw` is the picture for pages
    without scripts and for the terminal. `window(figure)` draws it with matplotlib's widgets and
    returns these. `code` are lines of Python that give its numbers.
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
<figure class="simulation" data-simulation="{self.name}">
<figcaption><h3>{self.title}</h3>
{page.markdown(self.caption)}</figcaption>
<div class="simulation-picture">{self.svg()}</div>
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
