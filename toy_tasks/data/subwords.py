"""Subwords of one's own texts: learned for a run, kept in its folder and read there again."""

import argparse
from collections.abc import Iterable
from pathlib import Path

from numformer.data import Subwords
from numformer.errors import InputError
from numformer.runs.files import write_atomically

FILE = "subwords.model"
HELP = "symbols are subwords, at most N of them, as sentencepiece learns them; without: characters"


def subwords_of(
    options: argparse.Namespace, texts: Iterable[str], size: int, flag: str, **how
) -> Subwords:
    """Those of the run that is resumed; for a new one they are learned.

    What `flag` asks for is told where it cannot be. `how` goes to `Subwords.train`.
    """
    kept = options.resume and options.out / FILE
    if kept and kept.is_file():
        return Subwords(kept.read_bytes())
    try:
        learned = Subwords.train(texts, size, **how)
    except InputError as problem:
        rule, received, fix = problem.args
        raise InputError(f"{flag} {size}: {rule}", received, fix) from None
    if len(learned) < size:
        print(f"{flag} {size:,}: the texts have {len(learned):,} subwords, which are all used")
    return learned


def keep(subwords: Subwords, folder: Path) -> None:
    """Make the run's folder whole by itself."""
    if not (folder / FILE).exists():
        write_atomically(folder / FILE, subwords.model)
