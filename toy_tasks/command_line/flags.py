"""The flags that all tasks have: for training, and for using a trained model."""

import inspect
from collections.abc import Mapping

from numformer.devices import BACKENDS, default_backend
from numformer.execution.mpi import KINDS
from numformer.generation import Continuation, Infilling, Transduction
from numformer.generation.beam import PENALTIES
from numformer.generation.text_pipeline import TextPipeline
from numformer.models import (
    LanguageModel,
    MaskedLanguageModel,
    Model,
    RecurrentEncoderDecoder,
    Transformer,
)
from numformer.runs.metrics_writers import METRICS_WRITERS
from toy_tasks.command_line.parser import (
    HelpFormatter,
    Parser,
    any_path,
    count,
    integer,
    length_exponent,
    picture_path,
)
from toy_tasks.command_line.settings_flags import add_settings_flags, flags_of_models

PIPELINES: dict[type[Model], type[TextPipeline]] = {
    Transformer: Transduction,
    RecurrentEncoderDecoder: Transduction,
    LanguageModel: Continuation,
    MaskedLanguageModel: Infilling,
}
"""The text pipeline of each kind of model."""


def build_parser(
    name: str,
    description: str,
    model: type[Model],
    input_flag: str = "--input",
    presets: Mapping[str, dict] | None = None,
    is_study: bool = False,
    by_tokens: bool = False,
    has_epochs: bool = False,
    **defaults,
) -> Parser:
    """The parser of a task's flags: general flags, and flags for its kind of model and the recipe.

    `input_flag` is a second name for --input. `defaults` replace the flags' defaults, and so does
    the entry of `presets` that --preset names. A script of a study (`is_study`, see study.py) has
    --seeds and --jobs in place of --seed and --parts. With `by_tokens`, --max-tokens sets
    `options.batch_size`. With `has_epochs`, the task has a set of pairs, and --epochs sets the
    steps.
    """
    parser = Parser(
        prog=f"python -m toy_tasks.{name}",
        usage="%(prog)s [flags]",
        description=description,
        formatter_class=HelpFormatter,
        allow_abbrev=False,  # or a script without --length would read it as --length-penalty
        epilog="exit codes: 0 reached the target, 1 missed it, 2 wrong usage or input, "
        "3 a number became NaN or infinite, 130 stopped by Ctrl-C or SIGTERM after saving",
    )
    parser.model, parser.presets = model, presets or {}
    if presets:
        about = "other defaults of the flags below; flags on the command line override them"
        parser.add_argument("--preset", choices=presets, help=about)
    _add_training_flags(parser, is_study, by_tokens, has_epochs)
    pipelines = (pipeline for kind, pipeline in PIPELINES.items() if issubclass(model, kind))
    _add_answer_flags(parser, next(pipelines, None), input_flag)
    add_settings_flags(parser, model)
    parser.set_defaults(**defaults)
    return parser


def _add_training_flags(parser: Parser, is_study: bool, by_tokens: bool, has_epochs: bool) -> None:
    add = parser.add_argument
    add("--steps", type=integer, default=1000, help="training steps")
    if has_epochs:
        about = "passes over the training data, in place of --steps"
        add("--epochs", type=integer, metavar="E", help=about)
    if by_tokens:
        size = dict(type=integer, dest="batch_size", default=1024, metavar="MAX_TOKENS")
        add("--max-tokens", **size, help="the most tokens in a batch, on each side, with padding")
    else:
        add("--batch-size", type=integer, default=64, help="sequences in a batch")
    if is_study:
        keywords = dict(type=integer, nargs="+", default=[1, 2, 3], metavar="SEED")
        about = "seeds of initial weights, data order and dropout; each trains every row once"
        add("--seeds", "--seed", **keywords, help=about)
        about = "runs side by side, each in its own process (default: one per core; with cupy one)"
        add("--jobs", type=integer, help=about)
    else:
        about = "seed of initial weights, data order and dropout"
        add("--seed", type=integer, default=1, help=about)
        about = """parts of a batch, each computed by its own process if there are several cores
(default: 2 with numpy on Linux, otherwise 1; one per rank under mpiexec)"""
        add("--parts", type=integer, help=about)
        about = """what computes the parts: forked processes of this machine, or the ranks that
mpiexec started (default: the ranks, if there are any)"""
        add("--parallel", choices=KINDS, help=about)
        about = "seconds that a rank waits for another; must be longer than a step takes"
        add("--timeout", type=float, default=120.0, metavar="S", help=about)
    add("--log-every", type=integer, default=50, help="steps between two lines of metrics.jsonl")
    about = (
        "also write the metrics to metrics.csv, or to a folder for TensorBoard or wandb (offline)"
    )
    add("--log-to", nargs="+", choices=METRICS_WRITERS, help=about)
    add("--evaluate-every", type=integer, default=250, help="steps between two evaluations")
    about = "evaluate, save and end after M minutes, including those before --resume"
    add("--minutes", type=float, metavar="M", help=about)
    about = """end after N evaluations in a row that are no better than the best before them; of
equal ones, that with the lower held-out loss is better (but the latest one is kept)"""
    add("--patience", type=integer, metavar="N", help=about)
    add("--backend", choices=BACKENDS, default=default_backend(), help="where to compute")
    about = "run folder (default: the next free one under runs/)"
    add("--out", type=any_path, help=about)
    about = "begin with the weights, sizes and vocabularies of another run (fine-tuning)"
    add("--start", type=any_path, metavar="RUN", help=about)
    about = """take flags from a file, or a run's flags from its config.json; flags on the command
line override them"""
    add("--config", type=any_path, metavar="FILE.toml", help=about)
    about = "write this command's settings to a new file that --config reads, and do nothing else"
    add("--save-settings", type=any_path, metavar="FILE.toml", help=about)
    for switch, about in {
        "--resume": "continue the run in --out, or the latest run of this task",
        "--quick": "take 20 steps, or --steps, to see that everything works; no target is checked",
        "--no-plots": "draw no pictures",
        "--quiet": "show no progress, only the result",
    }.items():
        add(switch, action="store_true", help=about)


def _add_answer_flags(parser: Parser, pipeline: type[TextPipeline] | None, input_flag: str) -> None:
    """Add the flags for using a trained model, and for the settings that its pipeline has."""
    title = "using a trained model instead of training one"
    group = parser.answer_flags = parser.add_argument_group(title)
    group.add_argument("--run", type=any_path, metavar="DIR", help="the folder of a finished run")
    inputs = group.add_mutually_exclusive_group()
    names = dict.fromkeys(("--input", input_flag))
    about = "texts for the model (default: the lines of standard input)"
    inputs.add_argument(*names, dest="input", nargs="+", metavar="TEXT", help=about)
    if pipeline in (Continuation, Infilling):
        about = "one text of several lines: a file, or - for all of standard input"
        inputs.add_argument("--input-file", type=any_path, metavar="FILE", help=about)
    about = "draw where each layer and head looks as the model answers --input"
    group.add_argument("--attention", type=picture_path, metavar="FILE.png", help=about)
    known = inspect.signature(pipeline.write).parameters if pipeline else ()
    parser.other_flags = flags_of_models() | {"--greedy", "--predictions"}
    parser.answer_settings = {*known}
    sampling = group.add_mutually_exclusive_group()

    def add(setting: str, flag: str, about: str, to=group, **keywords) -> None:
        """Add a flag if the pipeline has the setting that it needs."""
        if setting in parser.answer_settings:
            to.add_argument(flag, help=about, **keywords)
        else:
            parser.other_flags |= {flag}

    about = """number of hypotheses kept (1 is greedy); with --run this and the next two flags
default to the run's settings"""
    add("beam", "--beam", about, type=count, metavar="N")
    about = "the exponent alpha of --penalty; a larger one favours long answers"
    add("length_penalty", "--length-penalty", about, type=length_exponent, metavar="ALPHA")
    about = "divide log p by ((5 + length) / 6)^alpha (paper) or by length^alpha (length)"
    add("penalty", "--penalty", about, choices=PENALTIES)
    about = """the N best answers to each text, with their scores; the search goes on for longer, so
the first may be better than the single answer given without this flag"""
    add("beam", "--n-best", about, type=count, metavar="N")
    add("length", "--length", "symbols to write", type=integer, default=200)
    about = """sample symbols: 1 keeps the probabilities, less is more cautious, more is more
random; the same --seed gives the same answers"""
    add("temperature", "--temperature", about, sampling, type=float, metavar="T")
    add("top_k", "--top-k", "sample from the K most probable symbols", type=integer, metavar="K")
    about = "sample from the fewest symbols that together have this probability"
    add("top_p", "--top-p", about, type=float, metavar="P")
    add("temperature", "--count", "sample N answers to each text", type=count, metavar="N")
    if pipeline is Continuation:
        about = "write the most probable symbol each time, as --temperature 0 does"
        keywords = dict(dest="temperature", action="store_const", const=0.0)
        sampling.add_argument("--greedy", help=about, **keywords)
