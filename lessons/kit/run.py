"""A lesson in the terminal: its text and what its cells show."""

from pathlib import Path
from types import ModuleType

from matplotlib import pyplot

from lessons.kit.lesson import Words, pieces
from lessons.kit.percent import cells


def run(module: ModuleType) -> None:
    """Print the lesson's text and what its cells show; pictures open in windows or are saved."""
    path = Path(module.__file__)
    for cell in cells(path):
        if cell.is_markdown:
            Words(cell.text).present()
            continue
        for function in cell.shown(module):
            for piece in pieces(function):
                piece.present()
    if pyplot.get_fignums():
        print("Close the windows to end.")
        pyplot.show()
