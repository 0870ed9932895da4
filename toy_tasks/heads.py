"""Which attention heads of a trained model matter, how many can be removed, where they look."""

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from numformer.data import Batch, PairBatch
from numformer.errors import InputError
from numformer.layer import inference, pack
from numformer.models import Model
from numformer.runs.files import write_atomically
from numformer.trained import Trained, load
from toy_tasks.analysis.attention_patterns import PATTERNS, Lexicon, Score, head_role
from toy_tasks.analysis.gates import (
    AttentionObserver,
    Head,
    importances,
    observable_heads,
    single_examples,
    without_heads,
)
from toy_tasks.analysis.held_out import HeldOut, held_out
from toy_tasks.command_line import Parser, any_path, exit_code, integer, run_folders
from toy_tasks.measures.loss import mean_loss
from toy_tasks.reports import charts
from toy_tasks.reports.tables import markdown_table, mean_and_range

DESCRIPTION = """\
Say of each head of attention of a trained model how much it counts and what it looks at, and take
heads away, one after the other, until none is left.

A head counts as much as its gate: the mean over examples of |dL/dg| (Michel, Levy and Neubig 2019).
Beside it stand the loss without the head, and its confidence, the mean of its largest weights
(Voita et al. 2019). It is called by where its weight lies, if more lies there than by chance, which
is the same weights at other places that it sees: at the source of what it writes (by IBM model 1),
at what came after the same symbol, at the symbol that is to come, at the sign of the start or the
end, or some places back or ahead.

Heads are taken away by importance, estimated again each time; by importance as first estimated; and
at random. Where there are many, several go at a time, and once more singly from where the next ones
would cost too much. Importance is estimated on one half of the examples, the loss measured on the
other. What a task is judged by is measured on its test, greedily, where it turns one text into
another; otherwise (parse, too) as training measures it to choose the checkpoint.

  python -m toy_tasks.heads --run runs/reverse
  python -m toy_tasks.heads --run runs/translate --data DIR        where its data lie now
  python -m toy_tasks.heads --run gpt2 --data FILE.txt             a published model, any text
  python -m toy_tasks.heads --run opus-mt-en-de --data FILE.tsv    any pairs, a TAB between

The folder gets table.md, removal.png, and for each kind of attention the maps of an example.
"""
POINTS = 16
"""The most steps in which a curve removes all heads, apart from the steps of a single head."""
ALLOWED = {"BLEU": 0.5, "f1": 0.5, "word_error_rate": -0.5, "loss": -0.01}
"""How far a figure may fall (rise, if negative) without needless heads; 0.01 if not listed."""
PUBLISHED = """\
published: 38 of 48 encoder heads for 0.15 BLEU, with gates that are trained and fine-tuning (Voita
et al. 2019); 20 % of a large translator's heads without (Michel et al. 2019)"""
AGAIN, ONCE = "by importance, estimated anew", "by importance, estimated once"
RANDOM = "at random"
SHOWN = 24
"""The most symbols in the drawing of an example."""
Point = tuple[int, dict[str, float]]
"""The number of heads left, and the figures of the model with these heads, by name."""


@dataclass(frozen=True)
class Finding:
    """Results for a head; `rank` 1 is the most important, `alone` the rise of loss without it."""

    head: Head
    importance: float
    rank: int
    alone: float
    confidence: float
    scores: list[Score]

    def words(self) -> str:
        """The head's role in words, with its weight and the weight by chance."""
        if not (score := head_role(self.scores)):
            return "nothing of these"
        return f"{score.description()} ({score.weight:.2f}; shuffled {score.chance:.2f})"


def studied(model: Model, heads: Sequence[Head], own: HeldOut, halves) -> list[Finding]:
    """Return a Finding for each head; `halves` are the examples to choose by, and to measure on."""
    choosing, measuring = halves
    crossed = any("cross" in head.kind for head in heads)
    look = AttentionObserver(model, heads, Lexicon(own.pairs()) if crossed else None)
    importance = importances(model, heads, single_examples(choosing), look)
    ranks = (-importance).argsort().argsort() + 1
    whole, findings = mean_loss(model, measuring), []
    for head, counts, rank in zip(heads, importance, ranks, strict=True):
        with without_heads([head]):
            more = mean_loss(model, measuring) - whole
        of_head = look.confidence(head), look.scores(head)
        findings.append(Finding(head, float(counts), int(rank), more, *of_head))
    return findings


def curve(
    heads: Sequence[Head],
    order: Callable[[list[Head]], Sequence[Head]],
    measure: Callable[[], dict[str, float]],
    stride: int,
    name: str = "",
) -> list[Point]:
    """Remove heads, the first `stride` in the `order` of the heads left, and measure each time.

    With the `name` of a figure, the stride after the last one it allows is also taken singly.
    """
    gone: list[Head] = []
    points = []
    while True:
        with without_heads(gone):
            points.append((len(heads) - len(gone), measure()))
            left = [head for head in heads if head not in gone]
            if not left:
                break
            gone = gone + list(order(left)[:stride])
    allowed = needless(points, name)[0] if name else len(heads)
    for count in range(allowed + 1, min(allowed + stride, len(heads))):
        with without_heads(gone[:count]):
            points.append((len(heads) - count, measure()))
    return sorted(points, key=lambda point: -point[0])


def curves(
    model: Model, findings: Sequence[Finding], own: HeldOut, halves, options: argparse.Namespace
) -> dict[str, list[list[Point]]]:
    """The curves by the order of removal; several for random orders, one for any other."""
    heads = [finding.head for finding in findings]
    examples, importance = single_examples(halves[0]), {f.head: f.importance for f in findings}
    rng = np.random.default_rng(options.seed)

    def again(left: list[Head]) -> list[Head]:
        return [left[n] for n in importances(model, left, examples).argsort()]

    def once(left: list[Head]) -> list[Head]:
        return sorted(left, key=importance.__getitem__)

    def by_lot() -> Callable[[list[Head]], list[Head]]:
        lots = dict(zip(heads, rng.permutation(len(heads)), strict=True))
        return lambda left: sorted(left, key=lots.__getitem__)

    def measure() -> dict[str, float]:
        bar.update()
        figures = {"loss": mean_loss(model, halves[1])}
        if own.figure:
            with inference():
                figures[own.name] = own.figure(model)
        return figures

    orders = {AGAIN: [again], ONCE: [once], RANDOM: [by_lot() for _ in range(options.orders)]}
    stride, singly = -(-len(heads) // (3 if options.quick else POINTS)), {AGAIN: own.name or "loss"}
    total = sum(map(len, orders.values())) * (1 + -(-len(heads) // stride)) + stride - 1
    with tqdm(desc="taking heads away", total=total, disable=None) as bar:
        return {
            name: [curve(heads, order, measure, stride, singly.get(name, "")) for order in several]
            for name, several in orders.items()
            if several
        }


def table(findings: Sequence[Finding]) -> list[list[str]]:
    """Rows of cells: the column titles, then a row for each head."""
    patterns = [
        name for name in PATTERNS if any(name == s.pattern for f in findings for s in f.scores)
    ]
    head = ["head", "what it does", f"rank of {len(findings)}", "importance", "loss without it"]
    rows = [[*head, "confidence", *patterns]]
    for finding in findings:
        scores = {score.pattern: score for score in finding.scores}
        cells = [
            f"{scores[name].weight:.2f} / {scores[name].chance:.2f}" if name in scores else "-"
            for name in patterns
        ]
        figures = f"{finding.importance:.2g}", f"{finding.alone:+.4f}", f"{finding.confidence:.2f}"
        rows.append([str(finding.head), finding.words(), str(finding.rank), *figures, *cells])
    return rows


def table_of_removal(orders: dict[str, list[list[Point]]]) -> list[list[str]]:
    """A row for each number of heads left, with "-" for orders not measured at that number."""
    points = orders[AGAIN][0]
    names = [*points[0][1]]
    columns = [f"{name.replace('_', ' ')} {order}" for name in names for order in orders]
    rows = [["heads left", *columns]]
    for left, _ in points:
        row = [str(left)]
        for name in names:
            form = ".2f" if name in ("BLEU", "f1") else ".3f"
            of_order = ([f[name] for p in o for n, f in p if n == left] for o in orders.values())
            row += [mean_and_range(values, form) if values else "-" for values in of_order]
        rows.append(row)
    return rows


def needless(points: list[Point], name: str) -> tuple[int, float]:
    """How many heads can be removed before a figure falls too far, and how far it may fall."""
    allowed, (count, figures) = ALLOWED.get(name, 0.01), points[0]
    falls = [(left, np.sign(allowed) * (figures[name] - f[name])) for left, f in points]
    return count - min(left for left, fall in falls if fall <= abs(allowed) + 1e-9), abs(allowed)


def draw(
    folder: Path, trained: Trained, findings: Sequence[Finding], orders, examples: Sequence[Batch]
) -> None:
    """Draw an example's attention maps, each titled with the head's role, and the curves."""
    text: Any = trained.text
    closing = trained.model.config.special.closing
    lengths = [example.inputs[0].shape[1] for example in examples]
    fitting = [n for n, length in enumerate(lengths) if length <= SHOWN - 10]
    chosen = max(fitting, key=lengths.__getitem__) if fitting else int(np.argmin(lengths))
    ids = [[i for i in row[0].tolist() if i not in closing] for row in examples[chosen].inputs]
    if isinstance(examples[chosen], PairBatch):
        shown = text.source.decode(ids[0])[:SHOWN], text.target.decode(ids[2])[:SHOWN]
    else:
        shown = (text.input_vocabulary.decode(ids[0])[:SHOWN],)
    *_, maps = text.maps(trained.model, *shown)
    titles: dict[str, dict[str, list[str]]] = {}
    for finding in findings:
        score = head_role(finding.scores)
        name = f"{finding.head.layer}.{finding.head.number}"
        of_layer = titles.setdefault(finding.head.kind, {}).setdefault(finding.head.name, [])
        of_layer.append(f"{name}: {score.description(short=True)}" if score else name)
    for of_kind in maps:
        kind = of_kind.kind.replace("_", "-")
        named = replace(of_kind, titles=[*titles[of_kind.kind].values()])
        path = folder / f"{kind.replace(' ', '-')}.png"
        charts.draw_attention(path, [named], f"{folder.name}: {kind}, layer.head and what it does")
    panels: charts.Panels = {}
    for name in orders[AGAIN][0][0][1]:
        panel = panels[name.replace("_", " ")] = {}
        for order, several in orders.items():
            panel[order] = [([n for n, _ in p], [f[name] for _, f in p]) for p in several]
    title, axis = f"{folder.name}: heads taken away", {"xlim": (len(findings), 0)}
    charts.draw_chart(folder / "removal.png", title, panels, "heads left", "", **axis)


def flags() -> Parser:
    """The parser of the program's flags."""
    how = dict(formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    made = Parser("python -m toy_tasks.heads", description=DESCRIPTION, **how)
    add = made.add_argument
    add("--run", type=any_path, required=True, metavar="DIR", help="a run, or a published model")
    add(
        "--data",
        type=any_path,
        metavar="DIR|FILE",
        help="the folder of the run's own data, where they have moved; or a file of other data: "
        "pairs with a TAB between, or a text",
    )
    add("--examples", type=integer, default=128, metavar="N", help="in each half (default 128)")
    add("--orders", type=integer, default=3, metavar="N", help="random orders (default 3)")
    add("--seed", type=integer, default=1, help="of the random orders (default 1)")
    add("--out", type=any_path, metavar="DIR", help="default: the next free runs/heads-NAME")
    add("--no-plots", action="store_true", help="draw no pictures")
    add("--quick", action="store_true", help="a few examples, to see that everything runs")
    return made


def main(arguments: list[str] | None = None) -> int:
    """Study the heads of a run; returns the exit code."""
    options = flags().parse_args(arguments)
    limits = {"examples": (1, 10_000), "orders": (0, 100), "seed": (0, 2**32)}
    for name, (least, most) in limits.items():
        if not least <= (value := getattr(options, name)) <= most:
            raise InputError(f"--{name} is from {least} to {most:,}", value, f"Change --{name}.")
    if options.quick:
        options.examples, options.orders = min(options.examples, 4), min(options.orders, 1)
    trained = load(options.run)
    model = trained.model
    pack(model)
    run = options.run.parent if options.run.is_file() else options.run
    own = held_out(trained, run, options.data, 8 if options.quick else 1000)
    halves = own.halves(options.examples)
    examples = single_examples(halves[0])
    heads, blind = observable_heads(model, examples[0])
    if not heads:
        rule, fix = "a head is one of attention, which has maps", "Name a run with attention."
        raise InputError(rule, f"{options.run}, a {type(model).__name__} without", fix)
    for layer in blind:
        print(f"left out, because it keeps no maps: {layer}")
    counts = f"{len(examples)} and {len(single_examples(halves[1]))} examples"
    print(f"{options.run}: {len(heads)} heads, {counts} {own.told}", flush=True)
    findings = studied(model, heads, own, halves)
    told = markdown_table(table(findings))
    print(told, flush=True)
    orders = curves(model, findings, own, halves, options)
    folder = run_folders.new_folder(f"heads-{run.resolve().name}", options.out)
    of_removal = markdown_table(table_of_removal(orders))
    print(f"\n{of_removal}")
    write_atomically(folder / "table.md", f"{told}\n\n{of_removal}\n".encode())
    if not options.no_plots:
        draw(folder, trained, findings, orders, examples)
    print(f"files in {folder}: {', '.join(sorted(path.name for path in folder.iterdir()))}")
    (first, *_), *_ = orders[AGAIN]
    (*_, name) = first[1]
    count, allowed = needless(orders[AGAIN][0], name)
    beside = f" ({' '.join(PUBLISHED.split())})" if name == "BLEU" else ""
    worse = f"at most {allowed:g} of {name.replace('_', ' ')}"
    print(f"{count} of {len(heads)} heads can go for {worse}{beside}")
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(main))
