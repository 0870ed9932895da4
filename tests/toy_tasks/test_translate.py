"""The translator: files in every shape, a run that is whole by itself, figures of any test set."""

import argparse
import functools
import itertools
import shlex
import shutil
import zlib
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import sacrebleu
import sacremoses
from sacrebleu import corpus_bleu, corpus_chrf

from numformer.data import END, START, PairBatch, Subwords, moses
from numformer.data.moses import detokenize, tokenize
from numformer.generation import Translation, log_probabilities
from numformer.models import Config, Transformer
from numformer.trained import load
from tests import equal_runs
from toy_tasks.command_line import run_folders
from toy_tasks.data import parallel_corpus as corpus
from toy_tasks.data.parallel_corpus import read_corpus, read_parallel
from toy_tasks.measures.bleu import bleu_measure, print_scores, tokenizer_for
from toy_tasks.text_to_text import translation
from toy_tasks.text_to_text.translation import TranslationTask
from toy_tasks.translate import main

WORDS = "a:ein dog:hund man:mann runs:läuft sits:sitzt and:und fast:schnell ,:, here:hier"
WORDS = dict(pair.split(":") for pair in WORDS.split())
TINY = "--d-model 8 --d-ff 8 --heads 2 --layers 1 --max-tokens 60 --steps 6 --parts 1 --data data"
TINY += " --vocabulary 50 --evaluate-every 3 --log-every 1 --no-plots --beam 2"
OWN = "--d-model 8 --d-ff 8 --heads 1 --layers 1 --no-plots --steps 2 --max-tokens 64"
OWN += " --languages en fr --out run"
GOES_ON = f"{TINY} --bpe-dropout 0.2 --decay inverse_sqrt"


def sentences(count: int, seed: int = 0) -> tuple[list[str], list[str]]:
    rng = np.random.default_rng(seed)
    english = [[*rng.choice([*WORDS], rng.integers(3, 9)), "."] for _ in range(count)]
    return [" ".join(words) for words in english], [
        " ".join(WORDS.get(word, word) for word in words) for words in english
    ]


def write(name: str, lines: list[str], end: str = "\n", encoding: str = "utf-8") -> Path:
    path = Path(name)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes("".join(line + end for line in lines).encode(encoding))
    return path


@pytest.fixture(autouse=True)
def data() -> Path:
    for number, (split, count) in enumerate({"train": 40, "val": 6, "test": 5}.items()):
        for language, lines in zip(("en", "de"), sentences(count, number), strict=True):
            write(f"data/{split}.tok.{language}", lines)
    return Path("data")


def test_a_run_is_whole_by_itself_and_goes_on_bit_for_bit(data, succeed, refuse, call):
    """In the middle of an epoch, with other cuts each time and several batches in an update."""
    flags = f"{GOES_ON} --accumulate 2 --out"
    out = succeed(main, f"{flags} whole")
    assert out[-1].startswith("BLEU ")
    assert "40 pairs, " in out[0] and "% of their positions are padding" in out[0]
    succeed(main, f"{flags} part --steps 4")
    Path("part/subwords.model").unlink()  # as where it was killed early
    assert succeed(main, "--resume --out part --steps 6")[-1] == out[-1]
    straight, resumed = (equal_runs.files(Path(name)) for name in ("whole", "part"))
    for name in ("subwords.model", "best.safetensors"):
        assert straight[name] == resumed[name]
    losses = [equal_runs.logged(Path(name), "loss") for name in ("whole", "part")]
    assert losses[0] == losses[1] and len(losses[0]) == 6
    refuse(main, "--resume --out part --max-tokens 9", "Leave out --max-tokens")

    for path in data.iterdir():
        path.unlink()
    code, out, err = call(main, "--run whole --text", "A dog, and a MAN.", "a ☃")
    assert code == 0 and len(out) == 2 and "never saw" in err[0] and "☃" in err[0]
    english, german = sentences(5, 9)
    write("raw.en", [*english, ""], "\r\n", "utf-8-sig")
    write("raw.de", [*german, "nichts"])
    out = call(main, "--run whole --source raw.en --reference raw.de")[1]
    assert out[0] == "BLEU and chrF include 1 line with an empty side"
    assert "BLEU, tokens" in out[1] and "tok:none" in out[1] and "BLEU, sentences" in out[3]
    assert out[-1].startswith("BLEU ")
    write("strange.en", ["a ☃ dog", "", "a " * 99], "\r\n")
    code, out, err = call(main, "--run whole --source strange.en")
    assert code == 0 and len(out) == 3 and out[1] == "" and all(out[::2])
    assert "1 of 3 sentences have symbols that training never saw: '☃'" in err[0] and len(err) == 2
    assert "1 of 3 sentences are longer than all of training" in err[1]
    lines = call(main, "--run whole --source strange.en --n-best 2")[1]
    assert [lines[place].partition("\t")[2] for place in (0, 2, 3)] == out
    assert len(lines) == 5 and lines[2] == ""
    gaps = call(main, "--run whole --n-best 2 --text", "", english[0])[1]
    out = call(main, "--run whole --n-best 2 --text", english[0])[1]
    assert gaps == ["", *out]
    values, texts = zip(*(line.split("\t") for line in out), strict=True)
    assert float(values[0]) >= float(values[1]) and len({*texts}) == 2


def task_of(pairs: dict, **others) -> TranslationTask:
    settings = dict(batch_size=60, accumulate=2, bpe_dropout=0.0, cased=False, seed=1)
    settings |= dict(languages=["en", "de"], beam=2, length_penalty=1.0, penalty="paper")
    subwords = Subwords.train((line for pair in pairs["train"] for line in pair), 50)
    return TranslationTask(pairs, 2 * (subwords,), argparse.Namespace(**(settings | others)))


def test_what_is_trained_on_are_the_sentences_of_the_files(data, monkeypatch):
    pairs = read_corpus(data, ("en", "de"))
    assert pairs["train"] == list(zip(*sentences(40), strict=True))
    task, seen = task_of(pairs), []
    subwords = task.text.source
    for step in range(1, task.batches.count() // 2 + 1):
        for batch in task.batch(step):
            for source, target in zip(batch.source, batch.target_out, strict=True):
                sides = [subwords.decode(ids[: list(ids).index(END)]) for ids in (source, target)]
                seen.append(tuple(map(subwords.join, sides)))
            assert (batch.target_in[:, 0] == START).all()
    assert {*seen} <= {*pairs["train"]} and len(seen) > 30
    sizes = dict.fromkeys(("source_vocabulary", "target_vocabulary"), len(subwords))
    model = Transformer(Config(**sizes, d_model=8, d_ff=8, heads=2, layers=1, p_drop=0.0), 1)
    log_p = 0.0
    for pair in task.encode(pairs["val"]):
        source, _, target = PairBatch.of([pair]).inputs
        start = np.full((1, 1), START)
        logits = model.forward(source, np.concatenate([start, target[:, :-1]], axis=1))[0]
        log_p += log_probabilities(logits)[range(target.size), target[0]].sum()
    lengths = [len(subwords.split(target)) + 1 for _, target in pairs["val"]]
    monkeypatch.setattr(translation, "HELD_OUT_BATCH", 4)  # batches of unlike weights
    measured, loss = task.evaluate(model), -log_p / sum(lengths)
    assert measured["held_out_loss"] == pytest.approx(loss, rel=1e-5)
    assert measured["perplexity"] == pytest.approx(np.exp(loss), rel=1e-5)
    longest = max(len(subwords.split(target)) for _, target in pairs["train"])
    assert task.text.max_length == 2 * longest  # what is unlike training may be longer
    monkeypatch.setattr(translation, "MAX_SUBWORDS", 8)
    shorter = task_of(pairs)
    assert 0 < len(shorter.pairs) < 40 and len(shorter.batches.pairs) == len(shorter.pairs)
    assert max(len(subwords.split(line)) for pair in shorter.pairs for line in pair) < 8


def test_bpe_dropout_cuts_each_sentence_side_and_epoch_by_random_numbers_of_its_own(data):
    pairs = read_corpus(data, ("en", "de"))
    task = task_of(pairs, bpe_dropout=0.5)
    join, decode = task.text.source.join, task.text.source.decode
    cut = [tuple(join(decode(ids)) for ids in pair) for pair in task.sample_pairs(3)]
    assert cut == pairs["train"] and task.sample_pairs(3) == task.sample_pairs(
        3
    ) != task.sample_pairs(4)
    assert task_of(pairs, bpe_dropout=0.5, seed=2).sample_pairs(3) != task.sample_pairs(3)
    assert task.batches.epoch_pairs(1) == task.sample_pairs(1)
    task.pairs = [("a dog and a man", "a dog and a man")] * 9
    sources, targets = ([str(pair[side]) for pair in task.sample_pairs(1)] for side in (0, 1))
    assert len({*sources}) > 3 and sources != targets


def test_a_run_goes_on_with_the_data_that_it_was_begun_with(data, succeed, refuse):
    succeed(main, f"{TINY} --out run")
    for path in sorted(data.iterdir()):
        right = path.read_text()
        path.write_text("".join(reversed(right.splitlines(keepends=True))))
        refuse(main, "--resume --out run", "data that it was started with", tells=True)
        path.write_text(right)


def test_a_run_that_goes_on_cuts_no_epoch_but_its_own(succeed, monkeypatch):
    """A file says where the others end; without it they are counted again."""
    flags = f"{GOES_ON} --max-tokens 120 --out"
    succeed(main, f"{flags} run --steps 4")
    sampled, cut = TranslationTask.sample_pairs, []
    note = lambda task, epoch: cut.append(epoch) or sampled(task, epoch)  # noqa: E731
    monkeypatch.setattr(TranslationTask, "sample_pairs", note)
    for steps, epochs in ((22, [0, 1, 2]), (23, [2]), (24, [0, 1, 2])):
        cut.clear()
        if steps == 24:
            Path("run/epochs.json").write_text("{}")
        succeed(main, f"--resume --out run --steps {steps}")
        assert [*dict.fromkeys(cut)] == epochs
    succeed(main, f"{flags} straight --steps 24")
    run, straight = (equal_runs.last(Path(name))[0] for name in ("run", "straight"))
    equal_runs.assert_same_weights(run, straight)


def test_ends_of_epochs_are_those_of_the_same_cuts(data):
    """Another seed cuts other epochs; another number of batches in an update is another task."""
    pairs = read_corpus(data, ("en", "de"))
    tasks = [task_of(pairs, bpe_dropout=0.5, seed=seed) for seed in (1, 2)]
    saved = {"of": tasks[0]._epoch_settings(), "ends": [0, 7]}
    run_folders.write_config(Path(), saved, "epochs.json")
    for task, ends in zip(tasks, ([0, 7], [0]), strict=True):
        task.begin(Path())
        assert task.batches.ends == ends
    assert task_of(pairs, accumulate=1).description() != task_of(pairs).description()


def test_each_language_has_its_own_rules_for_tokens(succeed, monkeypatch):
    """French apostrophes belong to the word before them, English ones to what follows."""
    sides = "L'homme n'est pas là.", "The man's hat isn't here."
    tokens = "l' homme n' est pas là .", "the man 's hat isn 't here ."
    tokens = tuple(line.replace("'", "&apos;") for line in tokens)
    for split, language in itertools.product(corpus.SPLITS, (0, 1)):
        write(f"data/{split}.{['fr', 'en'][language]}", [sides[language]] * 3)
    assert read_corpus(Path("data"), ("fr", "en"))["test"] == [tokens] * 3
    path = write("data/a.tok.fr", [" 1\xa000  \u2028 "])
    assert read_parallel(path, path, ("fr", "fr")) == [("1\xa000 \u2028",) * 2]
    asked = []

    def answer(text, model, texts):
        asked.extend(text.source.join(symbols) for symbols in texts)
        return [text.target.split(tokens[1]) for _ in texts]

    monkeypatch.setattr(Translation, "write", answer)
    out = succeed(main, f"{TINY} --languages fr en --out run --vocabulary 40")
    assert run_folders.read_config(Path("run"), "result.json") == {"BLEU": pytest.approx(100)}
    assert out[-1] == "BLEU 100.00" and shlex.join([sides[0].lower()]) in "\n".join(out)
    for how in (["--text", sides[0]], ["--source", "data/test.fr"]):
        assert {*succeed(main, "--run run", *how)} == {sides[1].lower()}
    assert {*asked} == {tokens[0]}


def test_the_flags_of_decoding_and_of_words_are_kept_and_used(data, succeed):
    flags = f"{TINY} --subwords unigram --vocabulary 30 --languages de en --beam 3 --penalty paper"
    for seed in "12":
        succeed(main, f"{flags} --length-penalty 0.5 --seed {seed} --out seed{seed}")
    text = load(Path("seed1")).text
    assert (text.beam, text.length_penalty, text.penalty) == (3, 0.5, "paper")
    assert (text.from_, text.to) == ("de", "en")
    lines = [line for pair in read_corpus(data, ("de", "en"))["train"] for line in pair]
    assert text.source.model == Subwords.train(lines, 30, "unigram").model
    runs = "seed1", "seed2", "seed1 --ensemble seed2", "seed2 --ensemble seed1"
    asked = "--n-best 2 --text 'ein hund läuft'"
    *alone, both, turned = (tuple(succeed(main, f"--run {run} {asked}")) for run in runs)
    assert len({*alone, both}) == 3 and turned == both


def test_figures_are_sacrebleu_s_of_what_was_written_against_the_right_ones(capsys):
    written = ["ein hund läuft hier .", "der mann &apos;s hut , und der Hund ."]
    right = ["ein hund läuft schnell , ein mann .", "der mann &apos;s hut , und der hund ."]

    def figures(*sides) -> list[float]:
        written, right = ([detokenize(line, "de") for line in side] for side in sides)
        return [
            corpus_bleu(sides[0], [sides[1]], tokenize="none", force=True).score,
            corpus_chrf(sides[0], [sides[1]]).score,
            corpus_bleu(written, [right], lowercase=True).score,
            sacrebleu.CHRF(lowercase=True).corpus_score(written, [right]).score,
        ]

    expected, turned = figures(written, right), figures(right, written)
    assert print_scores(written, right, "de") == round(expected[0], 2) != round(turned[0], 2)
    lines = capsys.readouterr().out.splitlines()
    printed = [float(line.split(": ")[1].split()[0]) for line in lines]
    assert printed == pytest.approx(expected, abs=0.006) and len({*printed}) == 4


@pytest.mark.parametrize(
    ("language", "right", "tokenizers"),
    [
        ("zh", ["我喜欢在北京吃饭。", "他用 Python 编程 , 很好。"], "zh zh zh"),
        ("ja", ["私は東京で寿司を食べます。"], "char char char"),
        ("th", ["ฉันชอบกินข้าว ที่กรุงเทพ"], "char char char"),
        ("km", ["ខ្ញុំចូលចិត្តញ៉ាំបាយ"], "char char char"),
        ("my", ["ကျွန်တော်ထမင်းစားချင်တယ်"], "char char char"),
        ("ko", ["나는 서울에서 밥을 먹는 것을 좋아합니다."], "none 13a 13a"),
        ("de", ["北京 ist eine große Stadt."], "none 13a 13a"),
    ],
)
def test_a_perfect_translation_has_a_bleu_of_100_in_any_script(
    language, right, tokenizers, capsys, monkeypatch
):
    """Moses compiles all letters of a script, which is slow; here only the sentences' letters."""
    monkeypatch.setattr(sacremoses.tokenize.perluniprops, "chars", lambda script: "".join(right))
    monkeypatch.setattr(moses, "_moses", functools.cache(moses._moses.__wrapped__))
    for rules in (language, ""):
        references = [tokenize(line, rules) for line in right]
        assert print_scores(references, references, rules) == 100
        worse = [line[:-4] + line[-3:] for line in references]
        assert 0 < bleu_measure(worse, references, bool(rules)).value < 100
    lines = [line for line in capsys.readouterr().out.splitlines() if "BLEU" in line]
    assert [line.split("tok:")[1].split("|")[0] for line in lines] == tokenizers.split()
    assert tokenizer_for(["我 喜欢 在 北京 吃饭 。"], "none") == "none"  # split into words already


@pytest.mark.parametrize("right", [["yes .", "no , no"], ["no"]])
def test_a_bleu_that_even_the_right_translations_miss_is_warned_of(right):
    with pytest.warns(UserWarning, match="BLEU means nothing here: even the right .* score 0"):
        assert print_scores(right, right, "en") == bleu_measure(right, right, True).value == 0


def test_a_task_measures_its_test_as_it_is_published(data, capsys):
    """Greedily written tokens, and their BLEU."""
    pairs = read_corpus(data, ("en", "de"))
    task = task_of(pairs)
    sizes = dict.fromkeys(("source_vocabulary", "target_vocabulary"), len(task.text.source))
    model = Transformer(Config(d_model=8, d_ff=8, heads=2, layers=1, **sizes))
    sources, references = zip(*pairs["test"], strict=True)
    expected = translation.translate(task.text, model, sources, beam=1)
    assert task.write(model, sources, beam=1) == expected
    written = [line.replace("ein", "der") for line in references]
    measured = task.measure(written, task.test)["BLEU"]
    assert measured == pytest.approx(corpus_bleu(written, [references], tokenize="none").score)
    assert 0 < measured < 100 and round(measured, 2) == print_scores(written, references, "de")


def test_files_in_every_shape_are_read(capsys):
    for split in corpus.SPLITS:
        write(f"raw/{split}.en", ["A dog, here.", "", "Two."], "\r\n", "utf-8-sig")
        write(f"raw/{split}.de", ["Ein Hund, hier.", "Leer.", "Zwei."])
        write(f"raw/{split}-1.en", ["Of another text."])  # before the others by the alphabet
        write(f"raw/{split}-2.de", ["Von noch einem."])
    pairs = read_corpus(Path("raw"), ("en", "de"))
    assert pairs["train"] == [("a dog , here .", "ein hund , hier ."), ("two .", "zwei .")]
    assert len(pairs["test"]) == 3, "lines of a test stay where they are"
    assert "train: 1 line left out, because a side is empty" in capsys.readouterr().out


def test_what_cannot_be_is_refused_in_a_line(data, refuse, complaint):
    for flags, message in {
        "--languages en fr": "train*.fr",
        "--data none": "which is no folder",
        "--vocabulary 9": "--vocabulary 9: subwords are at least 25: ",
        "--max-tokens 5": "a batch of 5 tokens",
        "--accumulate 0": "--accumulate is from 1 to",
        "--bpe-dropout 1.5": "a share",
        "--bpe-dropout 0.1 --subwords unigram": "is for --subwords bpe",
        "--languages ** de": "a language is the end of a file's name",
        "--n-best 2": "--n-best is for a trained model; received no --run",
        "--ensemble x": "no --run",
        "--run x --reference y": "no --source",
        "--run x --source y --text a": "--source cannot be combined with --text",
        "--run x --n-best 2 --text a --attention a.png": "--n-best cannot be combined with --atten",
        "--run x --n-best 2 --source y --reference z": "cannot be combined with --n-best",
    }.items():
        refuse(main, flags if "--run" in flags else f"{TINY} {flags}", message)
    for name, lines, message in (
        ("test.tok.en", ["dog " * 60, *"abcd"], "= 60; received a task that needs 241"),
        ("test.tok.en", ["dog " * 5000, *"abcd"], "4096 subwords; received 20,000 in line 1"),
        ("val.tok.de", ["hund " * 300] * 6, "val holds pairs of fewer than 256 subwords"),
        ("val.tok.de", ["ein"] * 5, "6 and 5 lines"),
        ("test.tok.en", [""] * 5, "have at least one sentence with its translation; received none"),
    ):
        right = (data / name).read_text()
        write(f"data/{name}", lines)
        refuse(main, f"{TINY} --positions learned --max-length 60", message, tells=True)
        (data / name).write_text(right)
    write("data/val.tok.de", ["läuft"] * 6, encoding="latin-1")
    refuse(main, TINY, "must be UTF-8")
    other = write("other.de", ["a", "b"]), write("other.en", ["a"])
    assert "2 and 1 lines" in complaint(read_parallel, *other, ("de", "en"))


def test_a_translator_begins_with_the_weights_and_subwords_of_another(data, succeed, refuse):
    succeed(main, f"{TINY.replace('--no-plots', '')} --out a")
    assert Path("a/attention.png").exists()
    for path in data.glob("train*"):
        path.write_text(path.read_text().replace("e", "o"))
    flags = "--data data --start a --steps 6 --max-tokens 60 --no-plots --out b"
    assert "begins with the weights of a" in succeed(main, flags)
    assert Path("a/subwords.model").read_bytes() == Path("b/subwords.model").read_bytes()
    refuse(main, f"{flags} --vocabulary 60", "here with --vocabulary 50; received --vocabulary 60")


def test_a_file_of_pairs_is_split_by_its_sources(capsys, call, refuse):
    lines = [f"The Dog {number}!\tL'Oiseau {number}." for number in range(60)]
    Path("own.tsv").write_text("\n".join(lines))
    corpus = read_corpus(Path("own.tsv"), ("en", "fr"))
    assert ("the dog 7 !", "l&apos; oiseau 7 .") in {*chain(*corpus.values())}
    assert sum(map(len, corpus.values())) == 60 and capsys.readouterr().out == ""
    for split, numbers in {"test": {0}, "val": {1}, "train": {*range(2, 10)}}.items():
        assert {zlib.crc32(source.encode()) % 10 for source, _ in corpus[split]} == numbers
    code, out, _ = call(main, f"{OWN} --data own.tsv")
    size = len(load("run").text.source)
    message = f"--vocabulary 4,000: the texts have only {size:,} subwords; all are used"
    assert (code, out[0]) == (0, message)
    assert call(main, "--resume --out run")[0] == 0
    Path("own.tsv").write_text("a dog\tun chien")
    few = "holds pairs of sentences; received none"
    refuse(main, f"{OWN} --data own.tsv --out new", few)


def test_sources_that_are_trained_on_and_judged_by_are_reported(data, capsys, succeed):
    for split, sources in {"train": "a b c", "val": "c d", "test": "a b e"}.items():
        for language in ("en", "de"):
            Path(f"{split}.{language}").write_text("\n".join(sources.split()))
    read_corpus(Path(), ("en", "de"))
    notes = ["val: 1 of 2 sources are trained on, too", "test: 2 of 3 sources are trained on, too"]
    assert capsys.readouterr().out.splitlines() == notes
    for language in ("en", "de"):
        shutil.copy(data / f"train.tok.{language}", data / f"test.tok.{language}")
    note = "40 sentences of the test set, 40 of which are trained on, too"
    assert note in succeed(main, TINY)


def test_cased_sentences_are_learned_and_written_as_they_are(call, refuse, monkeypatch):
    """With capitals, curly quotes and what looks like an escape; BLEU tells capitals apart."""
    lines = [f"The  Dog’s “hat” &amp; {number}!\tL'Oiseau {number}, là." for number in range(60)]
    Path("own.tsv").write_text("\n".join(lines))
    corpus = read_corpus(Path("own.tsv"), ("en", "fr"), True)
    pair = "The Dog’s “hat” &amp; 7!", "L'Oiseau 7, là."
    assert pair in {*chain(*corpus.values())}
    refuse(main, f"{OWN} --cased", "--cased is for sentences with capitals")
    asked = []

    def answer(text, model, sources):
        asked.extend(map(text.source.join, sources))
        return [text.target.split(pair[1]) for _ in sources]

    monkeypatch.setattr(Translation, "write", answer)
    code, out, _ = call(main, f"{OWN} --cased --data own.tsv --bpe-dropout 0.1")
    assert code == 0 and asked == [source for source, _ in corpus["test"]]
    assert "".join(out).count("case:mixed") == 2 and "tokens: " not in "".join(out)
    assert call(main, "--run run --text", f" {pair[0]} ")[1] == [pair[1]]
    Path("new.en").write_text(lines[7].partition("\t")[0])
    asked.clear()
    for reference, bleu in {
        pair[1]: "100.00",
        pair[1].lower(): "66.87",  # (4/5 3/4 2/3 1/2)^(1/4)
    }.items():
        Path("new.fr").write_text(reference)
        code, out, _ = call(main, "--run run --source new.en --reference new.fr")
        assert (code, out[-1]) == (0, f"BLEU {bleu}") and len(out) == 3
    assert call(main, "--run run --source new.en")[1] == [pair[1]]
    assert {*asked} == {pair[0]}
    call(main, "--data own.tsv --start run --steps 1 --max-tokens 64 --no-plots --out next")
    assert load("next").text.from_ == ""
