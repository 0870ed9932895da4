# PYTHON_ARGCOMPLETE_OK
"""Learn to write like Shakespeare, character by character: a decoder-only language model.

The table shows how each choice changes the validation loss after 2,000 steps. Each row replaces
one choice of the first row; sizes are adjusted so that all models have about the same number of
parameters (seed 1, --parts 1).

| instead of                 |                         | loss   |
| -------------------------- | ----------------------- | ------ |
| (nothing)                  |                         | 1.636  |
| rotary positions           | ALiBi                   | 1.705  |
|                            | sinusoids, as in paper  | 1.721  |
|                            | learned                 | 1.836  |
|                            | none                    | 1.926  |
| SwiGLU, d_ff 344           | ReLU, d_ff 512          | 1.679  |
|                            | GELU, d_ff 512          | 1.681  |
| RMSNorm                    | LayerNorm               | 1.641  |
| AdamW, weight decay 0.1    | Adam                    | 1.645  |
| decay along a cosine       | along a line            | 1.629  |
| all of these, and pre-norm | as in the paper         | 1.768  |

With seeds 2 and 3 the first row has 1.646 and 1.647, so a difference of 0.01 may be chance. Rotary
positions and SwiGLU help most.
"""

import argparse
import math
import sys

from numformer.models.language_model import LanguageModel
from toy_tasks.command_line import build_parser, exit_code, parse_options
from toy_tasks.data.datasets import shakespeare
from toy_tasks.write import (
    WritingTask,
    add_flags,
    make_writing_task,
    require_lengths,
    train_and_write,
    use,
)

DESCRIPTION = """\
Learn to write like Shakespeare, character by character, and print the loss on the last tenth of his
plays, which is not trained on, in nats per character.

  python -m toy_tasks.shakespeare                      2 minutes; target: 1.75
  python -m toy_tasks.shakespeare --preset quarter     15 minutes; target: 1.60
  python -m toy_tasks.shakespeare --preset hour        40 minutes; target: 1.50
  python -m toy_tasks.shakespeare --run runs/shakespeare --input "ROMEO:"
"""


def factor_for(rate: float, d_model: int, warmup: int) -> float:
    """The `factor` that makes `rate` the highest learning rate of equation 3."""
    return rate * math.sqrt(d_model * warmup)


DEFAULTS = dict(
    steps=2000,
    batch_size=12,
    evaluate_every=500,
    context=64,
    d_model=128,
    d_ff=344,
    heads=4,
    layers=4,
    norm="pre",
    normalization="rms",
    positions="rotary",
    activation="swiglu",
    feed_forward_bias=False,
    p_drop=0.0,
    label_smoothing=0.0,
    optimizer="adamw",
    weight_decay=0.1,
    warmup=100,
    factor=factor_for(2e-3, 128, 100),
    decay="cosine",
    clip_norm=1.0,
    temperature=0.8,
)
LONGER = dict(batch_size=16, context=128, evaluate_every=1000, log_every=100, p_drop=0.1)
PRESETS = {
    "quarter": LONGER | dict(steps=6000),
    "hour": LONGER
    | dict(
        steps=12000,
        d_model=160,
        d_ff=432,
        heads=5,
        layers=5,
        p_drop=0.15,
        factor=factor_for(2e-3, 160, 100),
    ),
}
TARGETS = {None: 1.75, "quarter": 1.60, "hour": 1.50}


def read_options(arguments: list[str] | None = None) -> argparse.Namespace:
    """The options of this program. Raises InputError for lengths below 1."""
    name = "shakespeare"
    parser = build_parser(name, DESCRIPTION, LanguageModel, "--prompt", PRESETS, **DEFAULTS)
    add_flags(parser)
    options = parse_options(parser, lambda options: name, arguments)
    require_lengths(options.context, options.length)
    return options


def make_task(options: argparse.Namespace) -> WritingTask:
    """The task that the options describe."""
    return make_writing_task(options, shakespeare(options.data))


def main(arguments: list[str] | None = None) -> int:
    """Train a model, or with --run continue texts; returns the exit code."""
    options = read_options(arguments)
    if options.run:
        return use(options)
    return train_and_write(make_task(options), options, "validation loss", TARGETS[options.preset])


if __name__ == "__main__":
    sys.exit(exit_code(main))
