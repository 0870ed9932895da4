# PYTHON_ARGCOMPLETE_OK
"""Write down what is said in .wav files, with a published Whisper, and draw where it listened."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from numformer.data.sound import HOP, RATE, read_wav
from numformer.errors import InputError
from numformer.generation.listening import Listening
from numformer.plots import new_figure
from numformer.trained import Trained, load
from toy_tasks.command_line import Parser, any_path, exit_code
from toy_tasks.command_line.parser import count, picture_path

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DESCRIPTION = """\
Write down what is said in .wav files of any length, with a Whisper in Hugging Face's layout
(Radford et al. 2023).

  python -m toy_tasks.listen --run whisper-base --input speech.wav
  python -m toy_tasks.listen --run whisper-base --input speech.wav --attention speech.png

The picture shows the sound as the model reads it, the power in each band of frequencies, and below
it where the decoder listened as it wrote each symbol: the mean over the heads of the upper half of
its layers, with 1 for the largest weight of a symbol.
"""


def build_parser() -> Parser:
    parser = Parser(
        prog="python -m toy_tasks.listen",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--run", type=any_path, required=True, metavar="FOLDER", help="a published Whisper")
    add("--input", type=any_path, required=True, nargs="+", metavar="FILE.wav", help="sounds")
    add("--language", metavar="CODE", help="such as en; default: the model hears it")
    add("--translate", action="store_true", help="write in English, whatever the language")
    add("--timestamps", action="store_true", help="with the seconds where each piece begins")
    add("--beam", type=count, help="size of the beam; default: as published")
    add(
        "--attention",
        type=picture_path,
        metavar="FILE.png",
        help="draw the first sound, if it is short",
    )
    return parser


def draw_listening(path: Path | None, trained: Trained, sound: Path, **settings) -> "Figure":
    """Draw a sound as the model reads it, and where it listened as it wrote each symbol."""
    attention = trained.attention(str(sound), **settings)
    (maps,) = attention.maps
    seconds = len(read_wav(sound)) / RATE
    frames = int(seconds * RATE / HOP)
    features = np.stack(trained.text.symbols(str(sound)))[:frames]
    layers = maps.weights[len(maps.weights) // 2 :, :, :, : (frames + 1) // 2]
    listened = layers.mean(axis=(0, 1))
    listened /= listened.max(axis=1, keepdims=True)
    figure = new_figure(9, 3.2 + 0.2 * len(listened), layout="constrained")
    figure.suptitle(f"{sound.name}: where the decoder listened", parse_math=False)
    upper, lower = figure.subplots(2, sharex=True, height_ratios=[2, 0.4 + 0.2 * len(listened)])
    style: dict = dict(aspect="auto", interpolation="nearest")
    upper.imshow(features.T, origin="lower", extent=(0, seconds, 0, 8), cmap="magma", **style)
    upper.set(ylabel="mel bands,\n0 to 8 kHz", yticks=[])
    extent = 0, seconds, len(listened) - 0.5, -0.5
    lower.imshow(listened, extent=extent, cmap="Blues", vmin=0, vmax=1, **style)
    lower.set(xlabel="seconds")
    lower.set_yticks(range(len(listened)), maps.query_labels, fontsize=8, parse_math=False)
    return figure.save(path)


def main(arguments: list[str] | None = None) -> int:
    """Print what is said in each sound; returns the exit code."""
    options = build_parser().parse_args(arguments)
    trained = load(options.run)
    if not isinstance(trained.text, Listening):
        received = f"{options.run}, a {type(trained.model).__name__}"
        raise InputError("--run names a model that listens", received, "Name a Whisper's folder.")
    settings = dict(language=options.language, beam=options.beam)
    settings["task"] = "translate" if options.translate else "transcribe"
    sounds = [str(path) for path in options.input]
    for written in trained.write(sounds, timestamps=options.timestamps, **settings):
        print(written)
    if options.attention:
        draw_listening(options.attention, trained, options.input[0], **settings)
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(main))
