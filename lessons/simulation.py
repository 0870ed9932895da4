"""Simulations: what a reader moves and the page answers, over numbers that numformer computed."""

import json
from dataclasses import dataclass

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from lessons.lesson import PICTURES, Piece

WIDGETS = "matrix"  # the module in lessons/page that the simulations share


@dataclass
class Simulation(Piece):
    """A simulation. `name` is that of its JavaScript module in lessons/page.

    `do` (markdown) says what to do and what to look for; `alt` describes the picture that stands
    in its place where there are no scripts; `code` are lines of Python that give its numbers.
    """

    name: str
    title: str
    do: str
    alt: str
    code: str
    size: tuple[float, float] = (7.6, 6.4)

    def data(self, page) -> dict:
        """What its module reads, made of what JSON has."""
        raise NotImplementedError

    def draw(self, figure) -> None:
        """The picture for a page without scripts and for the terminal."""
        raise NotImplementedError

    def window(self, figure) -> list:
        """Draw it with matplotlib's widgets, which are returned: unreferenced ones are deaf."""
        raise NotImplementedError

    def text(self) -> str:
        PICTURES.mkdir(parents=True, exist_ok=True)
        path = PICTURES / f"{self.name}.png"
        figure = Figure(figsize=self.size)
        FigureCanvasAgg(figure)
        self.draw(figure)
        figure.savefig(path, dpi=110)
        return f"{self.title}\nThe picture: {path}"

    def html(self, page) -> str:
        page.script(WIDGETS)
        page.script(self.name)
        data = json.dumps(self.data(page), separators=(",", ":"), ensure_ascii=False)
        data = data.replace("</", "<\\/")  # or a tag in it would end the script
        return f"""\
<figure class="simulation" data-simulation="{self.name}">
<figcaption><h3>{self.title}</h3>
{page.markdown(self.do)}</figcaption>
<div class="simulation-picture" tabindex="0" role="group" aria-label="{self.title}, picture">
{page.svg(self.draw, self.alt, self.size)}</div>
<div class="simulation-stage" hidden></div>
<details class="simulation-code"><summary>The same numbers in Python</summary>
{page.code(self.code)}</details>
<script type="application/json">{data}</script>
</figure>
"""


def numbers(array: np.ndarray) -> list:
    """An array as JSON has it, to 6 decimals; minus infinity becomes null."""
    if array.ndim:
        return [numbers(row) for row in array]
    if array == -np.inf:
        return None
    value = round(float(array), 6)
    return int(value) if value == int(value) else value
