"""Translations of one's own: a file of pairs that is split, what is told, and no escapes."""

import zlib
from itertools import chain
from pathlib import Path

import pytest

import numformer
from toy_tasks import translate
from toy_tasks.kit.corpus import read_corpus

pytest.importorskip("sacremoses")


TINY = "--d-model 8 --d-ff 8 --heads 1 --layers 1 --no-plots --steps 2 --max-tokens 64"
RUN = f"{TINY} --languages en fr --out run"


def test_a_file_of_pairs_is_split_by_its_sources(capsys, call, refuse):
    lines = [f"The Dog {number}!\tL'Oiseau {number}." for number in range(60)]
    Path("own.tsv").write_text("\n".join(lines))
    corpus = read_corpus(Path("own.tsv"), ("en", "fr"))
    assert ("the dog 7 !", "l&apos; oiseau 7 .") in {*chain(*corpus.values())}
    assert sum(map(len, corpus.values())) == 60 and capsys.readouterr().out == ""
    for split, numbers in {"test": {0}, "val": {1}, "train": {*range(2, 10)}}.items():
        assert {zlib.crc32(source.encode()) % 10 for source, _ in corpus[split]} == numbers
    code, out, _ = call(translate.main, f"{RUN} --data own.tsv")
    size = len(numformer.load("run").text.source)
    said = f"--vocabulary 4,000: the texts have {size:,} subwords, which are all used"
    assert (code, out[0]) == (0, said)
    assert call(translate.main, "--resume --out run")[0] == 0
    Path("own.tsv").write_text("a dog\tun chien")
    few = "holds pairs of sentences; received none"
    refuse(translate.main, f"{RUN} --data own.tsv --out new", few)


def test_sources_that_are_trained_on_and_judged_by_are_told(capsys):
    for split, sources in {"train": "a b c", "val": "c d", "test": "a b e"}.items():
        for language in ("en", "de"):
            Path(f"{split}.{language}").write_text("\n".join(sources.split()))
    read_corpus(Path(), ("en", "de"))
    told = ["val: 1 of 2 sources are trained on, too", "test: 2 of 3 sources are trained on, too"]
    assert capsys.readouterr().out.splitlines() == told


def test_cased_sentences_are_learned_and_written_as_they_are(call, refuse, monkeypatch):
    """With capitals, curly quotes and what looks like an escape; BLEU tells capitals apart."""
    lines = [f"The  Dog’s “hat” &amp; {number}!\tL'Oiseau {number}, là." for number in range(60)]
    Path("own.tsv").write_text("\n".join(lines))
    corpus = read_corpus(Path("own.tsv"), ("en", "fr"), True)
    pair = "The Dog’s “hat” &amp; 7!", "L'Oiseau 7, là."
    assert pair in {*chain(*corpus.values())}
    refuse(translate.main, f"{RUN} --cased", "--cased is for sentences with capitals")
    asked = []

    def answer(text, model, sources):
        asked.extend(map(text.source.join, sources))
        return [text.target.split(pair[1]) for _ in sources]

    monkeypatch.setattr(numformer.Translation, "write", answer)
    code, out, _ = call(translate.main, f"{RUN} --cased --data own.tsv --bpe-dropout 0.1")
    assert code == 0 and asked == [source for source, _ in corpus["test"]]
    assert "".join(out).count("case:mixed") == 2 and "tokens: " not in "".join(out)
    assert call(translate.main, "--run run --text", f" {pair[0]} ")[1] == [pair[1]]
    Path("new.en").write_text(lines[7].partition("\t")[0])
    asked.clear()
    for reference, bleu in {
        pair[1]: "100.00",
        pair[1].lower(): "66.87",  # (4/5 3/4 2/3 1/2)^(1/4)
    }.items():
        Path("new.fr").write_text(reference)
        code, out, _ = call(translate.main, "--run run --source new.en --reference new.fr")
        assert (code, out[-1]) == (0, f"BLEU {bleu}") and len(out) == 3
    assert call(translate.main, "--run run --source new.en")[1] == [pair[1]]
    assert {*asked} == {pair[0]}
    call(translate.main, f"{TINY} --data own.tsv --start run --out next")
    assert numformer.load("next").text.from_ == ""
