"""Convert published models into runs and back: python -m numformer.convert."""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from numformer.errors import InputError
from numformer.exit_codes import exit_code
from numformer.generation.descriptions import pipeline_from
from numformer.generation.text_pipeline import TextPipeline
from numformer.generation.transduction import Transduction
from numformer.generation.translation import Translation
from numformer.published.loading import PUBLISHED_METADATA, TOKENIZER_FILES
from numformer.published.saving import save_published
from numformer.runs.checkpoints import save_model
from numformer.trained import model_of_run

DESCRIPTION = """\
Convert a model in Hugging Face's layout (config.json, *.safetensors, its tokenizer) into a run of
numformer, or a run into such a folder.

  python -m numformer.convert FOLDER --out runs/marian
  python -m numformer.convert runs/reverse --to-huggingface --out FOLDER"""


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m numformer.convert",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="a published model, or a run")
    parser.add_argument("--out", type=Path, required=True, help="the folder to write")
    parser.add_argument(
        "--to-huggingface", action="store_true", help="write a folder that transformers can load"
    )
    options = parser.parse_args(arguments)
    if options.out.exists() and (not options.out.is_dir() or any(options.out.iterdir())):
        rule = "--out is a new folder"
        raise InputError(rule, f"{options.out}, which exists", "Choose another one.")
    model, metadata = model_of_run(options.folder)
    if options.to_huggingface:
        text = pipeline_from(metadata.get("text"), model.config)
        kind = save_published(options.out, model, metadata, text)
        note = ""
        if text and not any((options.out / name).exists() for name in TOKENIZER_FILES):
            note = ", without a tokenizer: transformers has none for these symbols"
        print(f"{options.out} holds a {kind} for transformers{note}")
        print(*differences(text), sep="", end="")
    else:
        options.out.mkdir(parents=True, exist_ok=True)
        names = [name for name in ("text", *PUBLISHED_METADATA) if name in metadata]
        further = {name: metadata[name] for name in names}
        file = options.out / "best.safetensors"
        save_model(file, model, **further)
        has_text = pipeline_from(metadata.get("text"), model.config)
        use = f"load({str(options.out)!r})" if has_text else f"load_model({str(file)!r})"
        print(f"{options.out} is a run: numformer.{use}")
    return 0


def differences(text: TextPipeline | None) -> Iterator[str]:
    """Yield a line for each difference in how transformers and the run handle texts."""
    if isinstance(text, Translation):
        moses = "numformer.data.moses"
        if text.from_:
            yield f"give it tokens in lower case: {moses}.tokenize(TEXT, {text.from_!r})\n"
        if text.to:
            yield f"it writes tokens, which {moses}.detokenize(TOKENS, {text.to!r}) joins\n"
    if isinstance(text, Transduction) and text.beam > 1 and text.length_penalty:
        if text.penalty == "paper":
            yield "its beam search divides by length^alpha, the run's by ((5 + length) / 6)^alpha\n"


if __name__ == "__main__":
    sys.exit(exit_code(main))
