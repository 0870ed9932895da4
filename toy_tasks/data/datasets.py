"""The public data sets that tasks download when they first need them.

They are not part of this project.

- Pronunciations: the medium-resource part of SIGMORPHON 2021 task 1 (Ashby et al. 2021,
  github.com/sigmorphon/2021-task1). For each language 8,000 words to train on, 1,000 for
  development and 1,000 for the test, taken from Wiktionary by WikiPron. Licence: CC BY-SA 3.0.
- Multi30k (Elliott et al. 2016): descriptions of pictures, in English and German. For use in
  research and education.
- Shakespeare: a million characters of his plays, put together by Karpathy (2015).
"""

import re
from pathlib import Path

from numformer.errors import InputError
from toy_tasks.data.download import CACHE, fetch
from toy_tasks.data.text_files import Pair, read_pairs, read_text

PRONUNCIATIONS = (
    "https://raw.githubusercontent.com/sigmorphon/2021-task1/"
    "821bcdece5a47820872215969f275004b0abe80c/data/medium"
)

PRONUNCIATION_SUMS = {
    "dut": {
        "train": "08d327412cbf809a4cf894e015975d91588a38e8e05fb86450f42a4a38e534b8",
        "dev": "77a896e9510b6ebc610a9bc6a1bf32a06bc85489e9056caf77d996bb107318aa",
        "test": "eb31a13e8f797f1bda23194689805c8ea0cd6960e86f739d1e818f1815c287ae",
    },
    "fre": {
        "train": "e9de4f5125d2478e50506c5ed278f69d5fb17d8d213f99f845305c24e28a55c2",
        "dev": "3b42f14f318367dd94faa6d59e8fafabd845a3998800b6ce71a7c67e999490da",
        "test": "6202c2b7b8d5fbd76a4d40373f9564a9946671dab617438b534bd47c64071c92",
    },
    "vie_hanoi": {
        "train": "8f2a60af78668db3c2c4d201938a822d7fc7808ffd64b12504723f3ff64fea4c",
        "dev": "5d56e7d14dc4d90758d2d4ba0c74f3531b4e05b5344346786e2a1b1b447093ca",
        "test": "ed555cb71d164b1be52e72b5bd398fe5a787e1a598418498b67dcb1ab6fb439e",
    },
}
"""SHA-256 sums of the files to download, by language and split."""

MULTI30K = (
    "https://raw.githubusercontent.com/multi30k/dataset/"
    "a3d2e0d26b56f3846f66a952536ffed4e401d05a/data/task1/tok"
)

MULTI30K_SUMS = {
    "train.lc.norm.tok.en": "08925f8e0572bcd5a006702fc5fe20e2d77c6917d4eebd576fc20de6693c2119",
    "train.lc.norm.tok.de": "cb5a23529b65ec2061f1dc446192a9c37382b63cc75f81a0be59d34894b3a505",
    "val.lc.norm.tok.en": "46573ce391ae227f1c72f873392436a20ef18e0a6d518098cfbd70b77c8572ec",
    "val.lc.norm.tok.de": "97232bd273eceb7207f689527386a97e4be2616b18ada47576bdaf96c8ae1f00",
    "test_2016_flickr.lc.norm.tok.en": (
        "5b7f32627cf99eced828311b955dae9800bb52bc8b91cf8b6526829e605b29d2"
    ),
    "test_2016_flickr.lc.norm.tok.de": (
        "c6a33d39d48f9f510de147651316cd9d918e09ad0219df734a2f16b6baccacc4"
    ),
}
"""SHA-256 sums of the files to download."""

SHAKESPEARE = (
    "https://raw.githubusercontent.com/karpathy/char-rnn/"
    "6f9487a6fe5b420b7ca9afb0d7c078e37c1d1b4e/data/tinyshakespeare/input.txt",
    "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
)
"""The address of the plays, and their SHA-256 sum."""


def pronunciations(
    language: str, folder: Path | None = None, *, cache: Path = CACHE, address: str = PRONUNCIATIONS
) -> dict[str, list[Pair]]:
    """Read the words of a language and their phonemes -> the pairs of "train", "dev" and "test".

    With `folder`, read its files LANG_train.tsv, LANG_dev.tsv and LANG_test.tsv. Without it, read
    them from `cache`; first download missing or damaged files from `address`.

    Raises InputError if the language has characters that a file name must not have, if it is not
    one of `PRONUNCIATION_SUMS` and no folder is given, and as `fetch` and `read_pairs` do.
    """
    # The language becomes part of a path and of an address, so it may hold no separator.
    languages = ", ".join(PRONUNCIATION_SUMS)
    if not re.fullmatch("[A-Za-z0-9_-]+", language):
        raise InputError(
            "a language is named by ASCII letters, digits, _ and - only",
            repr(language),
            f"Pass one such as {languages}, or LANG for files named LANG_train.tsv.",
        )
    names = {split: f"{language}_{split}.tsv" for split in ("train", "dev", "test")}
    files = f"{names['train']}, {names['dev']} and {names['test']}"
    if folder is None:
        if language not in PRONUNCIATION_SUMS:
            raise InputError(
                f"a language to download must be one of {languages}",
                repr(language),
                f"Pass one of these, or the folder that holds {files} with `--data DIR`.",
            )
        alternative = (
            f"download {files} yourself from {address}/ and pass their folder with `--data DIR`"
        )
        for split, name in names.items():
            sha256 = PRONUNCIATION_SUMS[language][split]
            fetch(f"{address}/{name}", cache / name, sha256, alternative)
        folder = cache
    fix = f"Check the language and the folder: it must hold {files}."
    return {split: read_pairs(folder / name, "target", fix) for split, name in names.items()}


def multi30k(cache: Path = CACHE / "multi30k", address: str = MULTI30K) -> Path:
    """The folder of the English and German files, downloaded first if they are missing."""
    alternative = f"download its six files from {address}/ and pass their folder with --data DIR"
    for name, sha256 in MULTI30K_SUMS.items():
        fetch(f"{address}/{name}", cache / name, sha256, alternative)
    return cache


def shakespeare(path: Path | None = None, cache: Path = CACHE) -> str:
    """The text of the plays: from `path`, a file or its folder, or else from `cache`.

    If `cache` lacks it, download it first. Raises InputError as `fetch` and `read_text` do.
    """
    (address, sha256), name = SHAKESPEARE, "shakespeare.txt"
    if path is None:
        fetch(address, cache / name, sha256, f"download {address} and pass it with `--data FILE`")
        path = cache / name
    elif path.is_dir():
        path = path / "input.txt"
    return read_text(path, f"Name the file from {address}, or leave out --data to download it.")
