"""A lesson in the terminal: what it shows, under the headings of its text."""

from pathlib import Path
from types import ModuleType

from matplotlib import pyplot

from lessons.lesson import pieces, plain
from lessons.percent import cells


UNDERLINES = {1: "=", 2: "-"}  # by the level of a heading


def run(module: ModuleType) -> None:
    """Print headings, numbers and tables; open pictures in windows, or save them to files.

    The text itself reads well in the file, in a notebook, or as a page.
    """
    path = Path(module.__file__)
    for cell in cells(path):
        if cell.is_markdown:
            for line in cell.text.splitlines():
                if line.startswith("#"):
                    hashes, title = line.split(" ", 1)
                    title = plain(title)
                    print(title, UNDERLINES.get(len(hashes), "") * len(title), sep="\n")
            continue
        for function in cell.shown(module):
            for piece in pieces(function):
                piece.present()
    print(f"The text of this lesson: {path}, or as a page: python -m lessons.build")
    if pyplot.get_fignums():
        print("Close the windows to end.")
        pyplot.show()
