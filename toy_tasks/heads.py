# PYTHON_ARGCOMPLETE_OK
"""Which attention heads of a trained model matter, how many can be removed, and where they look."""

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
from numformer.plots import attention_maps
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
Print how important each attention head of a trained model is and what it looks at; then remove
heads, one after the other, until none is left.

The importance of a head is the mean of |dL/dg| over examples, where g is the head's gate (Michel,
Levy and Neubig 2019). The table also says by how much the loss grows without the head, and how
confident the head is: the mean of its largest weights (Voita et al. 2019). A head is described by
the places where it puts more weight than by chance (the same weights, shuffled over the places that
it sees): the source of what it writes (by IBM model 1), what came after the same symbol, the symbol
that is to come, the sign of the start or the end, or some places back or ahead.

Heads are removed in three orders: the least important first, with importance estimated again each
time; the least important first, as estimated once; and at random. Of many heads, several are
removed at a time, and the first group that costs too much is also removed head by head. Importance
is estimated on one half of the examples, and the loss is measured on the other. If the task turns
one text into another, its figure is measured by greedy decoding of its test set; otherwise (also
for parse) as in training.

  python -m toy_tasks.heads --run runs/reverse
  python -m toy_tasks.heads --run runs/translate --data DIR        if its data have moved
  python -m toy_tasks.heads --run gpt2 --data FILE.txt             a published model, any text
  python -m toy_tasks.heads --run opus-mt-en-de --data FILE.tsv    any TAB-separated pairs

--out gets table.md, removal.png, and for each kind of attention the maps of an example.
"""
MAX_STRIDES = 16
"""A curve removes all heads in at most this many steps, not counting those of a single head."""
ALLOWED_FALLS = {"BLEU": 0.5, "f1": 0.5, "word_error_rate": -0.5, "loss": -0.01}
"""By how much removing heads may lower a figure (raise it, if negative); 0.01 if not listed."""
PUBLISHED = """\
published: 38 of 48 encoder heads for 0.15 BLEU, with trained gates and fine-tuning (Voita et al.
2019); 20 % of a large translator's heads without either (Michel et al. 2019)"""
BY_REESTIMATED_IMPORTANCE = "by importance, estimated anew"
BY_FIRST_IMPORTANCE = "by importance, estimated once"
RANDOM = "at random"
MAX_DRAWN = 24
"""The most symbols in the drawing of an example."""
Point = tuple[int, dict[str, float]]
"""The number of heads left, and the figures of the model with these heads, by name."""


@dataclass(frozen=True)
class Finding:
    """Results for a head: rank 1 is the most important; `loss_increase` is what removal costs."""

    head: Head
    importance: float
    rank: int
    loss_increase: float
    confidence: float
    scores: list[Score]

    def words(self) -> str:
        """The head's role in words, with its attention weight there, and the weight by chance."""
        if not (score := head_role(self.scores)):
            return "none of these"
        return f"{score.description()} ({score.weight:.2f}; shuffled {score.chance:.2f})"


def study_heads(model: Model, heads: Sequence[Head], own: HeldOut, halves) -> list[Finding]:
    """Return a Finding for each head; `halves` are examples for ranking heads and for measuring."""
    choosing, measuring = halves
    has_cross = any("cross" in head.kind for head in heads)
    observer = AttentionObserver(model, heads, Lexicon(own.pairs()) if has_cross else None)
    importance = importances(model, heads, single_examples(choosing), observer)
    ranks = (-importance).argsort().argsort() + 1
    full_loss, findings = mean_loss(model, measuring), []
    for head, value, rank in zip(heads, importance, ranks, strict=True):
        with without_heads([head]):
            loss_increase = mean_loss(model, measuring) - full_loss
        findings.append(
            Finding(
                head,
                importance=float(value),
                rank=int(rank),
                loss_increase=loss_increase,
                confidence=observer.confidence(head),
                scores=observer.scores(head),
            )
        )
    return findings


def curve(
    heads: Sequence[Head],
    order: Callable[[list[Head]], Sequence[Head]],
    measure: Callable[[], dict[str, float]],
    stride: int,
    name: str = "",
) -> list[Point]:
    """Repeatedly remove the first `stride` of the remaining heads in `order`; measure each time.

    With the `name` of a figure, the group that worsens it too much is also removed head by head.
    """
    removed: list[Head] = []
    points = []
    while True:
        with without_heads(removed):
            points.append((len(heads) - len(removed), measure()))
            left = [head for head in heads if head not in removed]
            if not left:
                break
            removed = removed + list(order(left)[:stride])
    allowed = removable_heads(points, name)[0] if name else len(heads)
    for count in range(allowed + 1, min(allowed + stride, len(heads))):
        with without_heads(removed[:count]):
            points.append((len(heads) - count, measure()))
    return sorted(points, key=lambda point: -point[0])


def curves(
    model: Model, findings: Sequence[Finding], own: HeldOut, halves, options: argparse.Namespace
) -> dict[str, list[list[Point]]]:
    """The curves by the order of removal; several for random orders, one for any other."""
    heads = [finding.head for finding in findings]
    examples, importance = single_examples(halves[0]), {f.head: f.importance for f in findings}
    rng = np.random.default_rng(options.seed)

    def by_reestimated_importance(left: list[Head]) -> list[Head]:
        return [left[n] for n in importances(model, left, examples).argsort()]

    def by_first_importance(left: list[Head]) -> list[Head]:
        return sorted(left, key=importance.__getitem__)

    def random_order() -> Callable[[list[Head]], list[Head]]:
        positions = dict(zip(heads, rng.permutation(len(heads)), strict=True))
        return lambda left: sorted(left, key=positions.__getitem__)

    def measure() -> dict[str, float]:
        bar.update()
        figures = {"loss": mean_loss(model, halves[1])}
        if own.figure:
            with inference():
                figures[own.name] = own.figure(model)
        return figures

    orders = {
        BY_REESTIMATED_IMPORTANCE: [by_reestimated_importance],
        BY_FIRST_IMPORTANCE: [by_first_importance],
        RANDOM: [random_order() for _ in range(options.orders)],
    }
    stride = -(-len(heads) // (3 if options.quick else MAX_STRIDES))
    refined = {BY_REESTIMATED_IMPORTANCE: own.name or "loss"}
    total = sum(map(len, orders.values())) * (1 + -(-len(heads) // stride)) + stride - 1
    with tqdm(desc="taking heads away", total=total, disable=None) as bar:
        return {
            name: [
                curve(heads, order, measure, stride, refined.get(name, ""))
                for order in curves_of_order
            ]
            for name, curves_of_order in orders.items()
            if curves_of_order
        }


def findings_table(findings: Sequence[Finding]) -> list[list[str]]:
    """The cells of a table: the column titles, then a row for each head."""
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
        figures = (
            f"{finding.importance:.2g}",
            f"{finding.loss_increase:+.4f}",
            f"{finding.confidence:.2f}",
        )
        rows.append([str(finding.head), finding.words(), str(finding.rank), *figures, *cells])
    return rows


def removal_table(orders: dict[str, list[list[Point]]]) -> list[list[str]]:
    """A row for each number of heads left, with "-" for orders not measured at that number."""
    points = orders[BY_REESTIMATED_IMPORTANCE][0]
    names = [*points[0][1]]
    columns = [f"{name.replace('_', ' ')} {order}" for name in names for order in orders]
    rows = [["heads left", *columns]]
    for left, _ in points:
        row = [str(left)]
        for name in names:
            form = ".2f" if name in ("BLEU", "f1") else ".3f"
            values_by_order = [
                [f[name] for p in o for n, f in p if n == left] for o in orders.values()
            ]
            row += [mean_and_range(values, form) if values else "-" for values in values_by_order]
        rows.append(row)
    return rows


def removable_heads(points: list[Point], name: str) -> tuple[int, float]:
    """How many heads can be removed before a figure worsens too much, and by how much it may."""
    allowed, (count, figures) = ALLOWED_FALLS.get(name, 0.01), points[0]
    falls = [(left, np.sign(allowed) * (figures[name] - f[name])) for left, f in points]
    return count - min(left for left, fall in falls if fall <= abs(allowed) + 1e-9), abs(allowed)


def draw(
    folder: Path, trained: Trained, findings: Sequence[Finding], orders, examples: Sequence[Batch]
) -> None:
    """Draw an example's attention maps, each titled with the head's role, and the curves."""
    text: Any = trained.text
    closing = trained.model.config.special.closing
    lengths = [example.inputs[0].shape[1] for example in examples]
    fitting = [n for n, length in enumerate(lengths) if length <= MAX_DRAWN - 10]
    longest = max(fitting, key=lengths.__getitem__) if fitting else int(np.argmin(lengths))
    ids = [[i for i in row[0].tolist() if i not in closing] for row in examples[longest].inputs]
    if isinstance(examples[longest], PairBatch):
        symbols = text.source.decode(ids[0])[:MAX_DRAWN], text.target.decode(ids[2])[:MAX_DRAWN]
    else:
        symbols = (text.input_vocabulary.decode(ids[0])[:MAX_DRAWN],)
    *_, maps = text.maps(trained.model, *symbols)
    titles: dict[str, dict[str, list[str]]] = {}
    for finding in findings:
        score = head_role(finding.scores)
        name = f"{finding.head.layer}.{finding.head.number}"
        layer_titles = titles.setdefault(finding.head.kind, {}).setdefault(finding.head.name, [])
        layer_titles.append(f"{name}: {score.description(short=True)}" if score else name)
    for kind_maps in maps:
        kind = kind_maps.kind.replace("_", "-")
        role_maps = replace(kind_maps, titles=[*titles[kind_maps.kind].values()])
        path = folder / f"{kind.replace(' ', '-')}.png"
        attention_maps(path, [role_maps], f"{folder.name}: {kind}, layer.head and what it does")
    panels: charts.Panels = {}
    for name in orders[BY_REESTIMATED_IMPORTANCE][0][0][1]:
        panel = panels[name.replace("_", " ")] = {}
        for order, curves_of_order in orders.items():
            panel[order] = [([n for n, _ in p], [f[name] for _, f in p]) for p in curves_of_order]
    title, axis = f"{folder.name}: heads taken away", {"xlim": (len(findings), 0)}
    charts.draw_chart(folder / "removal.png", title, panels, "heads left", "", **axis)


def build_parser() -> Parser:
    """The parser of the program's flags."""
    parser = Parser(
        "python -m toy_tasks.heads",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--run", type=any_path, required=True, metavar="DIR", help="a run, or a published model")
    add(
        "--data",
        type=any_path,
        metavar="DIR|FILE",
        help="the folder of the run's own data, if they have moved; or a file of other data: "
        "TAB-separated pairs, or a text",
    )
    add(
        "--examples",
        type=integer,
        default=128,
        metavar="N",
        help="examples to rank heads on, and as many to measure on (default 128)",
    )
    add("--orders", type=integer, default=3, metavar="N", help="random orders (default 3)")
    add("--seed", type=integer, default=1, help="seed of the random orders (default 1)")
    add("--out", type=any_path, metavar="DIR", help="default: the next free runs/heads-NAME")
    add("--no-plots", action="store_true", help="draw no pictures")
    add("--quick", action="store_true", help="a few examples, to see that everything runs")
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Study the heads of a run; returns the exit code."""
    options = build_parser().parse_args(arguments)
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
    heads, mixers_without_maps = observable_heads(model, examples[0])
    if not heads:
        rule, fix = "a model to study saves attention maps", "Name a run with attention."
        raise InputError(rule, f"{options.run}, a {type(model).__name__} without any", fix)
    folder = run_folders.new_folder(f"heads-{run.resolve().name}", options.out)
    for layer in mixers_without_maps:
        print(f"left out, because it keeps no maps: {layer}")
    counts = f"{len(examples)} and {len(single_examples(halves[1]))} examples"
    print(f"{options.run}: {len(heads)} heads, {counts} {own.origin}", flush=True)
    findings = study_heads(model, heads, own, halves)
    findings_text = markdown_table(findings_table(findings))
    print(findings_text, flush=True)
    orders = curves(model, findings, own, halves, options)
    removal_text = markdown_table(removal_table(orders))
    print(f"\n{removal_text}")
    write_atomically(folder / "table.md", f"{findings_text}\n\n{removal_text}\n".encode())
    if not options.no_plots:
        draw(folder, trained, findings, orders, examples)
    print(f"files in {folder}: {', '.join(sorted(path.name for path in folder.iterdir()))}")
    (first, *_), *_ = orders[BY_REESTIMATED_IMPORTANCE]
    (*_, name) = first[1]
    count, allowed = removable_heads(orders[BY_REESTIMATED_IMPORTANCE][0], name)
    beside = f" ({' '.join(PUBLISHED.split())})" if name == "BLEU" else ""
    worse = f"at most {allowed:g} in {name.replace('_', ' ')}"
    print(f"{count} of {len(heads)} heads can be removed at a cost of {worse}{beside}")
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(main))
