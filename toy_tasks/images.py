# PYTHON_ARGCOMPLETE_OK
"""Learn to recognise images: a vision Transformer, cross-validated."""

import argparse
import itertools
import sys
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from numformer.backend import to_host
from numformer.data import Batch
from numformer.devices import find_backend
from numformer.errors import InputError
from numformer.generation.evaluation import Evaluation, Prediction
from numformer.generation.measures import Measure
from numformer.layer import inference, pack
from numformer.models.vision import VisionTransformer
from numformer.paper import Softmax
from numformer.progress import advance, progress
from numformer.randomness import seed_sequence
from numformer.runs.checkpoints import load_model
from numformer.trained import model_of_run
from toy_tasks.command_line import (
    Parser,
    add_evaluation_flag,
    any_path,
    exit_code,
    note,
    run_folders,
    settings_from,
)
from toy_tasks.command_line.answers import task_of
from toy_tasks.command_line.evaluation import report, require_predictions_path
from toy_tasks.command_line.study import Results, Study
from toy_tasks.command_line.study import main as study_main
from toy_tasks.data.images import (
    LabelledImages,
    digits,
    move_images,
    read_arrays,
    read_images,
    require_images,
    require_labels,
)
from toy_tasks.data.pictures import read_picture
from toy_tasks.measures.loss import mean_loss
from toy_tasks.reports.patch_attention import draw_patch_attention

DESCRIPTION = """\
Learn to recognise the handwritten digits of scikit-learn, 8 x 8 pixels each, or the images of a
file. Five models are trained, each on four fifths of the images, and tested on the other fifth,
which plays no part in choosing the checkpoint. The last line is the share of all images that are
classified correctly. A sixth model, the one to use, is trained on all images.

  python -m toy_tasks.images
  python -m toy_tasks.images --data FILE.npz
  python -m toy_tasks.images --run runs/images/all-images-1 --input FILE.npz
  python -m toy_tasks.images --run runs/images/all-images-1 --data TEST.npz --predictions OUT.tsv

FILE.npz holds the arrays images (N, height, width) or (N, height, width, channels), of numbers that
are not negative, and labels (N,), integers or strings. With --input, it needs no labels.
"""

DEFAULTS = dict(
    steps=4000,
    batch_size=64,
    seeds=[1],
    evaluate_every=2000,
    d_model=32,
    d_ff=64,
    heads=4,
    layers=2,
    norm="pre",
    p_drop=0.0,
    label_smoothing=0.1,
    warmup=100,
    factor=1.0,
    decay="linear",
    clip_norm=1.0,
)
FOLDS, ALL_IMAGES = 5, "all images"
REQUIRED = 0.985
"""The accuracy to reach."""


@dataclass(frozen=True)
class ImageBatch(Batch):
    """images (B, height, width[, C]) and labels (B,)."""

    images: np.ndarray
    labels: np.ndarray


class ImagesTask:
    """Batches of the images outside of one fold, for `numformer.training.train`.

    The task evaluates on its training images, so the checkpoint does not depend on test images.
    If `fold` is FOLDS, the task trains and tests on all images.
    """

    metric, higher_is_better, longest = "loss_of_images_trained_on", False, 1

    def __init__(
        self,
        data: LabelledImages,
        fold: int,
        batch_size: int,
        seed: int,
        shift: float,
        turn: float,
    ):
        order = np.random.default_rng(0).permutation(len(data.images))
        parts = np.array_split(order, FOLDS)
        self.data, self.test = data, order if fold == FOLDS else parts.pop(fold)
        self.training = np.concatenate(parts)
        self.fold, self.batch_size, self.seed = fold, batch_size, seed
        self.shift, self.turn = shift, turn

    def select(self, indices: np.ndarray) -> ImageBatch:
        """The images and labels with these indices."""
        return ImageBatch(self.data.images[indices], self.data.labels[indices])

    def batch(self, step: int) -> ImageBatch:
        rng = np.random.default_rng(seed_sequence(self.seed, "data", step))
        batch = self.select(rng.choice(self.training, self.batch_size))
        down, right = rng.uniform(-self.shift, self.shift, (2, self.batch_size, 1, 1))
        angle = np.deg2rad(rng.uniform(-self.turn, self.turn, (self.batch_size, 1, 1)))
        return ImageBatch(move_images(batch.images, down, right, angle), batch.labels)

    def evaluate(self, model: VisionTransformer) -> dict[str, float]:
        parts = np.split(self.training, range(256, len(self.training), 256))
        return {self.metric: mean_loss(model, [*map(self.select, parts)])}

    def description(self) -> dict:
        checksum = zlib.crc32(self.data.labels.tobytes(), zlib.crc32(self.data.images.tobytes()))
        content = {"data": checksum, "classes": self.data.classes, "highest": self.data.highest}
        return {"name": "images", "fold": self.fold} | content


def class_probabilities(model: VisionTransformer, images: np.ndarray) -> np.ndarray:
    """The probabilities (N, classes) of each image's classes: the mean of nine predictions.

    Before each, the image is moved by half a pixel up or down, left or right, both, or not at all.
    """
    p, softmax = [], Softmax()
    with inference():
        for part in np.split(images, range(256, len(images), 256)):
            probabilities = (
                softmax.forward(model.forward(move_images(part, down, right, 0.0)))
                for down, right in itertools.product((-0.5, 0.0, 0.5), repeat=2)
            )
            p.append(to_host(sum(probabilities) / 9))
            advance(len(part))
    return np.concatenate(p)


def classify(model: VisionTransformer, images: np.ndarray) -> np.ndarray:
    """The most probable class (N,) of each image."""
    return class_probabilities(model, images).argmax(axis=-1)


def read_data(options: argparse.Namespace) -> LabelledImages:
    return read_images(Path(options.data)) if options.data else digits()


def make_task_and_config(options: argparse.Namespace):
    """The task of a fold, the kind of model and its config."""
    if not all(0 <= limit <= 360 for limit in (options.shift, options.turn)):
        raise InputError(
            "--shift and --turn are from 0 to 360",
            f"{options.shift}, {options.turn}",
            "Change them.",
        )
    data = read_data(options)
    settings = options.batch_size, options.seed, options.shift, options.turn
    task = ImagesTask(data, options.fold, *settings)
    height, width, channels = (*data.images.shape[1:], 1)[:3]
    sizes = dict(height=height, width=width, channels=channels, classes=len(data.classes))
    return task, VisionTransformer, settings_from(options, VisionTransformer.Config, **sizes)


def measure(model: VisionTransformer, task: ImagesTask, folder: Path) -> dict:
    """The number of the fold's images, how many were classified correctly, and the accuracy."""
    test = task.select(task.test)
    right = int((classify(model, test.images) == test.labels).sum())
    return {"tested": len(task.test), "right": right, "accuracy": right / len(task.test)}


def table(results: Results) -> list[list[str]]:
    """A row for each fold."""
    rows = [["tested on", "images", "right", "accuracy", "seconds"]]
    for fold, runs in results.items():
        if fold == ALL_IMAGES:
            continue
        images, right, seconds = (
            sum(run[name] for run in runs) for name in ("tested", "right", "seconds")
        )
        rows.append([fold, f"{images}", f"{right}", f"{right / images:.4f}", f"{seconds:.0f}"])
    return rows


def draw(results: Results, folder: Path) -> None:
    """Draw the class token's attention to some test images of the first fold."""
    options = argparse.Namespace(**run_folders.read_config(folder)["options"])
    model, _ = load_model(results["fold 1"][0]["folder"] / "best.safetensors")
    data = read_data(options)
    task = ImagesTask(data, 0, 1, 1, 0, 0)
    labels = data.labels[task.test]
    examples = task.test[[np.flatnonzero(labels == label)[0] for label in np.unique(labels)[:6]]]
    path, title = folder / "attention.png", f"{folder.name}, fold 1"
    draw_patch_attention(path, model, data.images[examples], title)


def verdict(results: Results):
    """The accuracy on the images of all folds."""
    runs = [run for fold in results if fold != ALL_IMAGES for run in results[fold]]
    total, right = (sum(run[name] for run in runs) for name in ("tested", "right"))
    options = run_folders.read_config(runs[0]["folder"].parent)["options"]
    images = total // len(results["fold 1"])
    accuracy = right / total
    target = None if options["data"] else (f"accuracy {REQUIRED}", accuracy >= REQUIRED)
    test_set = f"{images:,} images, each classified by a model that never saw it"
    return test_set, {"accuracy": f"{accuracy:.4f}"}, target


def use(options: argparse.Namespace) -> int:
    """Print the class of each image in the files of --input; returns the exit code."""
    model, metadata = model_of_run(options.run)
    task = task_of(metadata)
    if "published" in metadata and not task:
        return name_pictures(options, model, metadata)
    classes, highest = task.get("classes"), task.get("highest")
    known = isinstance(model, VisionTransformer) and task.get("name") == "images"
    known = known and isinstance(classes, list) and len(classes) == model.config.classes
    if not known or type(highest) is not float or not highest > 0:
        raise InputError(
            "--run names a run of this task",
            f"{options.run}, a run of {task.get('name')}",
            "Name the folder of a model, such as runs/images/all-images-1.",
        )
    if not options.input and not options.data:
        rule, fix = "--input or --data names files of images", "Add --input FILE.npz"
        raise InputError(rule, "neither", fix)
    pack(model, xp=find_backend(options.backend))
    if options.data:
        require_predictions_path(options)
        report(options, evaluate(options, model, classes, highest))
    for file in options.input or []:
        images = scaled(read_arrays(Path(file), "images")["images"], file, model, highest)
        for label in classify(model, images):
            print(classes[label])
        if options.attention:
            draw_patch_attention(options.attention, model, images[:6], Path(file).name)
    return 0


def scaled(images: np.ndarray, file, model: VisionTransformer, highest: float) -> np.ndarray:
    """The images of a file, scaled as in training. Raises InputError for other sizes."""
    sizes = model.config
    require_images(images, file)
    height, width, channels = (*images.shape[1:], 1)[:3]
    if (height, width, channels) != (sizes.height, sizes.width, sizes.channels):
        raise InputError(
            f"this model classifies images of {sizes.height} x {sizes.width} pixels, with "
            f"{sizes.channels} numbers for each pixel",
            f"{file} with {height} x {width} pixels of {channels} numbers",
            "Cut or scale them.",
        )
    if not highest / 2 <= images.max() <= highest:
        note(
            f"the largest number in {file} is {images.max():g}; in training it was "
            f"{highest:g}, and both should mean the same brightness"
        )
    return (images / highest).astype(np.float32)


def evaluate(
    options: argparse.Namespace, model: VisionTransformer, classes: list, highest: float
) -> Evaluation:
    """Compare the model's classes for the images in the file of --data with its labels."""
    arrays = read_arrays(options.data, "images", "labels")
    images, labels = arrays["images"], arrays["labels"].tolist()
    require_labels(images, arrays["labels"], str(options.data))
    if unknown := [label for label in labels if label not in classes]:
        fix = "Leave out its images, or train on all the labels."
        raise InputError(f"labels are among {classes!r:.80}", repr(unknown[0]), fix)
    images = scaled(images, options.data, model, highest)
    with progress(len(images), "evaluation"):
        p = class_probabilities(model, images)
    answers = [classes[number] for number in p.argmax(axis=-1)]
    log_p = np.log([row[classes.index(label)] for row, label in zip(p, labels, strict=True)])
    ones = np.ones(len(labels))
    right = [answer == label for answer, label in zip(answers, labels, strict=True)]
    columns = labels, answers, log_p.tolist()
    predictions = [
        Prediction(f"image {number}", str(label), str(answer), value)
        for number, (label, answer, value) in enumerate(zip(*columns, strict=True))
    ]
    measures = {"accuracy": Measure.ratio(right, ones), "loss": Measure.ratio(-log_p, ones)}
    return Evaluation(measures, predictions)


def name_pictures(options: argparse.Namespace, model, metadata: dict) -> int:
    """Print a published model's class for each picture of --input; returns the exit code."""
    config, preprocessor = metadata["published"], metadata.get("pictures", {})
    names = config.get("id2label")
    classes = getattr(model.config, "classes", None)  # none without a head
    if not classes or not isinstance(names, dict):
        rule, fix = "--run names a model that classifies images", "Name the folder of a ViT."
        raise InputError(rule, f"{options.run}, a {config.get('model_type')}", fix)
    if options.data:
        rule, fix = (
            "--data evaluates a run of this task",
            "Name a run, such as runs/images/all-images-1.",
        )
        raise InputError(rule, f"{options.run}, a published model", fix)
    if not options.input:
        raise InputError("--input names pictures", "none", "Add --input FILE.png")
    pack(model, xp=find_backend(options.backend))
    files = map(Path, options.input)
    try:
        images = np.stack([read_picture(file, preprocessor, model.config) for file in files])
    except InputError:
        raise
    except (AttributeError, TypeError, ValueError, LookupError) as problem:
        rule, fix = "preprocessor_config.json says how to prepare pictures", "Download it again."
        raise InputError(rule, problem, fix) from None
    with inference():
        labels = to_host(model.forward(images).argmax(axis=-1))
    for label in labels.tolist():
        print(names[str(label)])
    if options.attention:
        visible = (images - images.min()) / (np.ptp(images) or 1)
        draw_patch_attention(options.attention, model, images, options.run.name, visible)
    return 0


def add_flags(parser: Parser) -> None:
    add = parser.add_argument
    data = "images and labels (default: scikit-learn's digits); with --run, those to evaluate on"
    add("--data", type=any_path, metavar="FILE.npz", help=data)
    add_evaluation_flag(parser)
    add("--shift", type=float, default=0.7, help="shift training images by up to this many pixels")
    add("--turn", type=float, default=10.0, help="turn training images by up to this many degrees")


STUDY = Study(
    name="images",
    description=DESCRIPTION,
    model=VisionTransformer,
    defaults=DEFAULTS,
    rows={ALL_IMAGES: dict(fold=FOLDS)}
    | {f"fold {number + 1}": dict(fold=number) for number in range(FOLDS)},
    make_task_and_config=make_task_and_config,
    measure=measure,
    figure="accuracy",
    table=table,
    draw=draw,
    verdict=verdict,
    example="FILE.npz",
    flags=add_flags,
    use=use,
)


def main(arguments: list[str] | None = None) -> int:
    """Train on all folds, or with --run classify images; returns the exit code."""
    return study_main(STUDY, arguments)


if __name__ == "__main__":
    sys.exit(exit_code(main))
