"""Sentences and their translations, line by line in two files."""

import zlib
from collections.abc import Sequence
from pathlib import Path

from numformer.data.moses import tokenize
from numformer.errors import InputError
from toy_tasks.data.datasets import CACHE, MAX_BYTES, Pair, fetch, read_pairs, read_text

ADDRESS = (
    "https://raw.githubusercontent.com/multi30k/dataset/"
    "a3d2e0d26b56f3846f66a952536ffed4e401d05a/data/task1/tok"
)
"""Multi30k (Elliott et al. 2016): descriptions of pictures. For research and education."""

SHA256 = {
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
SPLITS = "train", "val", "test"
TOKENS = ".tok."
"""What stands in the name of a file whose sentences are cut into tokens, in lower case."""


def multi30k(cache: Path = CACHE / "multi30k", address: str = ADDRESS) -> Path:
    """The folder of English and German Multi30k, downloaded first where it is missing."""
    for name, sum_ in SHA256.items():
        otherwise = f"download its six files from {address}/ and pass their folder with --data DIR"
        fetch(f"{address}/{name}", cache / name, sum_, otherwise)
    return cache


def rules(languages: Sequence[str], cased: bool) -> tuple[str, str]:
    """The languages whose rules cut the two sides into tokens; "" for a side that is kept raw."""
    source, target = languages
    return ("", "") if cased else (source, target)


def read_corpus(
    folder: Path, languages: tuple[str, str], cased: bool = False
) -> dict[str, list[Pair]]:
    """The pairs of "train", "val" and "test", tokens with spaces between them; `cased`: as written.

    Of one file of pairs, with a TAB between, a hash of the source decides what a pair is for. In a
    folder they are read from the two files whose names begin so and end in .LANGUAGE, the first two
    by the alphabet that are alike else. What is left out is printed, and how many sources to judge
    by are trained on, too. Raises InputError where there are no such two, and as `read_parallel`
    and `read_pairs` do.
    """
    cut_by = rules(languages, cased)
    corpus, file = {}, folder.is_file() and read_split(folder, cut_by)
    for split in SPLITS:
        pairs = file[split] if file else read_parallel(*find(folder, split, languages), cut_by)
        kept = pairs if split == "test" else [pair for pair in pairs if all(pair)]
        if len(kept) < len(pairs):
            print(f"{split}: {len(pairs) - len(kept)} lines with an empty side are left out")
        if not kept:
            fix = "Give more of them: sentences on both sides."
            raise InputError(f"{split} holds pairs of sentences", "none", fix)
        corpus[split] = kept
    trained = {source for source, _ in corpus["train"]}
    for split in SPLITS:
        shared = sum(source in trained for source, _ in corpus[split])
        if split != "train" and shared:
            print(f"{split}: {shared:,} of {len(corpus[split]):,} sources are trained on, too")
    return corpus


def read_split(file: Path, languages: tuple[str, str]) -> dict[str, list[Pair]]:
    """The pairs of one file: eight in ten to train on, one for development, one for the test."""
    pairs: dict[str, list[Pair]] = {split: [] for split in SPLITS}
    for pair in read_pairs(file, "", "Name a file of pairs: --data FILE.tsv", MAX_BYTES):
        tokens = tuple(map(tokenize, pair, languages))
        number = zlib.crc32(tokens[0].encode()) % 10
        pairs[("test", "val", *["train"] * 8)[number]].append(tokens)
    return pairs


def find(folder: Path, split: str, languages: tuple[str, str]) -> list[Path]:
    """The two files of a split, whose names differ in nothing but the language."""
    endings = [f".{language}" for language in languages]
    names = [
        {path.name.removesuffix(ending) for path in folder.glob(f"{split}*{ending}")}
        for ending in endings
    ]
    wanted = " and ".join(f"{split}*{ending}" for ending in endings)
    if not (shared := set.intersection(*names)):
        raise InputError(
            f"--data names a folder with {wanted}, "
            "alike before that ending, a sentence on each line",
            f"{folder}, which has none" if folder.is_dir() else f"{folder}, which is no folder",
            "Name another folder or other --languages, or leave out --data to download Multi30k.",
        )
    return [folder / f"{min(shared)}{ending}" for ending in endings]


def read_parallel(source: Path, target: Path, languages: tuple[str, str]) -> list[Pair]:
    """The lines of two files side by side, as `read_sentences` reads them.

    Raises InputError for a file that `read_text` refuses, and for files of which one has more
    lines than the other: where one is missing, all later ones belong to other lines.
    """
    sides = [*map(read_sentences, (source, target), languages)]
    if len(sides[0]) != len(sides[1]):
        raise InputError(
            f"{source} and {target} have a line for each line of the other",
            f"{len(sides[0]):,} and {len(sides[1]):,} lines",
            "Find the line that is missing, or leave an empty line where there is no translation.",
        )
    return list(zip(*sides, strict=True))


def read_sentences(path: Path, language: str) -> list[str]:
    """The lines of a file, tokenized; what is so by its name is taken as it is."""
    text = read_text(path, "Name a file with a sentence on each line.")
    lines = text.removesuffix("\n").split("\n")
    if TOKENS in path.name:
        return [" ".join(line.split()) for line in lines]
    return [tokenize(line, language) if line.strip() else "" for line in lines]
