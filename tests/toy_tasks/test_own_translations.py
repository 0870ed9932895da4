"""Translations of one's own: a file of pairs that is split, what is told, and no escapes."""

import zlib
from itertools import chain
from pathlib import Path

import pytest

import numformer
from numformer.data.moses import detokenized
from tests.toy_tasks.small import assert_refused
from toy_tasks import translate
from toy_tasks.kit.corpus import read_corpus

pytest.importorskip("sacremoses")
pytestmark = pytest.mark.usefixtures("empty_folder")


def test_a_file_of_pairs_is_split_by_its_sources(capsys, call):
    lines = [f"The Dog {number}!\tL'Oiseau {number}." for number in range(60)]
    Path("own.tsv").write_text("\n".join(lines))
    corpus = read_corpus(Path("own.tsv"), ("en", "fr"))
    assert ("the dog 7 !", "l&apos; oiseau 7 .") in {*chain(*corpus.values())}
    assert sum(map(len, corpus.values())) == 60 and capsys.readouterr().out == ""
    for split, numbers in {"test": {0}, "val": {1}, "train": {*range(2, 10)}}.items():
        assert {zlib.crc32(source.encode()) % 10 for source, _ in corpus[split]} == numbers
    sizes = "--d-model 8 --d-ff 8 --heads 1 --layers 1 --no-plots --steps 2 --max-tokens 64"
    how = ["--data", "own.tsv", *sizes.split(), "--languages", "en", "fr", "--out", "run"]
    code, out, _ = call(translate.main, *how)
    size = len(numformer.load("run").text.source)
    assert code == 0 and out[0] == f"--vocabulary 4,000: the texts have {size:,} subwords" + (
        ", which are all used"
    )
    assert call(translate.main, "--resume", "--out", "run")[0] == 0
    Path("own.tsv").write_text("a dog\tun chien")
    assert_refused(call(translate.main, *how[:-2]), "holds pairs of sentences; received none")


def test_sources_that_are_trained_on_and_judged_by_are_told(capsys):
    for split, sources in {"train": "a b c", "val": "c d", "test": "a b e"}.items():
        for language in ("en", "de"):
            Path(f"{split}.{language}").write_text("\n".join(sources.split()))
    read_corpus(Path(), ("en", "de"))
    told = ["val: 1 of 2 sources are trained on, too", "test: 2 of 3 sources are trained on, too"]
    assert capsys.readouterr().out.splitlines() == told


@pytest.mark.parametrize("tokens", ["l&apos; oiseau", "l&amp;apos; oiseau"])
def test_no_escape_leaves(tokens):
    assert detokenized(tokens, "fr") == "l'oiseau"
