"""The subwords of a run: learned from its texts, saved in its folder, loaded when it is resumed."""

import argparse
from collections.abc import Iterable
from pathlib import Path

from numformer.data import Subwords
from numformer.errors import InputError
from numformer.runs.files import write_atomically

FILE = "subwords.model"
HELP = "use at most N subwords as symbols, learned with sentencepiece (default: characters)"


def subwords_for_run(
    options: argparse.Namespace, texts: Iterable[str], size: int, flag: str, **settings
) -> Subwords:
    """Learn at most `size` subwords from texts, or load the subwords of a run that is resumed.

    `flag` is the flag that gave the size, for messages. `settings` go to `Subwords.train`.
    """
    saved = options.resume and options.out / FILE
    if saved and saved.is_file():
        return Subwords(saved.read_bytes())
    try:
        subwords = Subwords.train(texts, size, **settings)
    except InputError as problem:
        rule, received, fix = problem.args
        raise InputError(f"{flag} {size}: {rule}", received, fix) from None
    if len(subwords) < size:
        print(f"{flag} {size:,}: the texts have only {len(subwords):,} subwords; all are used")
    return subwords


def save_subwords(subwords: Subwords, folder: Path) -> None:
    """Save the subwords in the folder of a run, unless they are there already."""
    if not (folder / FILE).exists():
        write_atomically(folder / FILE, subwords.model)
