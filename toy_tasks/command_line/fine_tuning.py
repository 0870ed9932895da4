"""Fine-tuning with --start: a run begins with the weights and the vocabularies of another run."""

import argparse
from collections.abc import Iterable
from pathlib import Path

from numformer.data import Vocabulary
from numformer.errors import InputError
from numformer.generation.descriptions import pipeline_from
from numformer.generation.text_pipeline import TextPipeline
from numformer.models import Model
from numformer.models.fields import saved_values
from numformer.published.loading import PUBLISHED_METADATA
from numformer.trained import load, model_of_run


def start_vocabularies(
    options: argparse.Namespace, **texts: Iterable[str]
) -> tuple[Vocabulary, ...]:
    """The vocabularies of --start's run that the keywords `texts` name; () without --start.

    Prints which symbols of the sources are unknown; raises InputError for other unknown symbols,
    which the model could never write. A resumed run reads its own vocabularies.
    """
    if not options.start:
        return ()
    own = options.resume and options.out / "best.safetensors"
    run = own if own and own.is_file() else options.start
    vocabularies = load(run).text.vocabularies
    if lacking := [name for name in texts if name not in vocabularies]:
        raise InputError(
            "--start takes a run that reads and writes the same kinds of text",
            f"{run}, a run without a vocabulary {lacking[0]!r}",
            "Name a run of this task.",
        )
    for name, lines in texts.items() if run == options.start else ():
        vocabulary = vocabularies[name]
        symbols = sorted({symbol for line in lines for symbol in vocabulary.split(line)})
        unknown = [s for s in symbols if vocabulary.encode([s]) == [vocabulary.unknown]]
        if symbols and unknown == symbols:
            raise InputError(
                "--start takes a run that has some symbols of this data",
                f"{run}, which has none of the {name} symbols",
                "Name a run on similar texts, or train without --start.",
            )
        if unknown:
            listing = " ".join(map(repr, unknown[:20])) + " ..." * (len(unknown) > 20)
            lack = f"the {name} symbols {listing}"
            if name != "source":
                rule = "--start takes a run whose model can write every symbol of this data"
                fix = "Leave out the texts that contain them, or train without --start."
                raise InputError(rule, f"{run} without {lack}", fix)
            fate = "each becomes the unknown symbol, which the model never writes"
            print(f"{run} lacks the symbols {listing}; {fate}")
    return tuple(vocabularies[name] for name in texts)


def load_start_weights(model: Model, pipeline: TextPipeline | None, run: Path) -> dict:
    """Load a run's weights; return the metadata of a published model, for the new files to keep.

    Raises InputError if the symbols or the shapes of parameters differ.
    """
    start, metadata = model_of_run(run, type(model))
    other = pipeline_from(metadata.get("text"), start.config)
    if pipeline and other and not other.has_same_vocabularies(pipeline):
        raise InputError(
            "--start takes a run that has the symbols of this task",
            f"{run}, which has others",
            "Name a run of this task.",
        )
    start_shapes, shapes = _shapes(start), _shapes(model)
    if different := [
        name for name in shapes | start_shapes if shapes.get(name) != start_shapes.get(name)
    ]:
        name, others = different[0], f", and {len(different) - 1} others" * (len(different) > 1)
        shape, start_shape = (table.get(name, "none") for table in (shapes, start_shapes))
        raise InputError(
            "--start takes the weights of a run whose model has the same parameters",
            f"{name}, here {shape}, in {run} {start_shape}{others}",
            "Leave out the flags that set sizes, to take the run's sizes, or name another run.",
        )
    values = saved_values(model.config)
    for name, value in saved_values(start.config).items():
        if (new := values[name]) != value:
            print(f"{name} is {new}; in {run} it was {value}")
    model.load_state_dict(start.state_dict())
    return {name: metadata[name] for name in PUBLISHED_METADATA if name in metadata}


def _shapes(model: Model) -> dict[str, tuple]:
    return {name: parameter.shape for name, parameter in model.named_parameters().items()}
