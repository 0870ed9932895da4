"""Learn to name images: a vision Transformer, tested by cross-validation on every image once."""

import argparse
import functools
import itertools
import sys
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile, is_zipfile

import numpy as np

from numformer.backend import to_host
from numformer.data import Batch
from numformer.devices import find_backend
from numformer.errors import InputError
from numformer.layer import inference, pack
from numformer.models.vision import VisionTransformer
from numformer.paper import Softmax
from numformer.plots import attention_weights, new_figure
from numformer.randomness import seed_sequence
from numformer.runs.checkpoints import load_model
from numformer.trained import model_of_run
from toy_tasks.command_line import any_path, exit_code, note, run_folders, settings_from
from toy_tasks.command_line.answers import task_of
from toy_tasks.command_line.study import Results, Study
from toy_tasks.command_line.study import main as study_main
from toy_tasks.data.pictures import picture

DESCRIPTION = """\
Learn to tell the 8 x 8 digits of scikit-learn apart, or the images of a file. Each fifth of them is
the test of a model that is trained on the others; the test chooses no checkpoint. The last line is
the share of all images that are named rightly.

  python -m toy_tasks.images
  python -m toy_tasks.images --data FILE.npz
  python -m toy_tasks.images --run runs/images/fold-1-1 --input FILE.npz

FILE.npz holds the arrays images (N, height, width) or (N, height, width, channels), of numbers that
are not negative, and labels (N,), of integers or strings; to name images, images alone.
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
FOLDS = 5
TARGET = 0.985
FIX = "Save them with numpy.savez(FILE, images=images, labels=labels)."


@dataclass(frozen=True, eq=False)
class Images:
    """images (N, height, width[, C]) from 0 to 1, labels (N,) among the names of the classes.

    They were divided by `highest`, the largest number in them.
    """

    images: np.ndarray
    labels: np.ndarray
    classes: Sequence[int | str]
    highest: float


@dataclass(frozen=True)
class Labelled(Batch):
    """images (B, height, width[, C]) and labels (B,)."""

    images: np.ndarray
    labels: np.ndarray


@functools.cache
def digits() -> Images:
    """The 1,797 handwritten digits that come with scikit-learn (Alpaydin and Kaynak 1998)."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise InputError(
            "the digits come with scikit-learn",
            "an environment without it",
            "Run: pip install 'numformer[images]', or name a file: --data FILE.npz",
        ) from None
    dataset = load_digits()
    return labelled(dataset.images, dataset.target)


def read(path: Path) -> Images:
    """The labelled images of a file. Raises InputError for what is none."""
    arrays = arrays_of(path, "images", "labels")
    return labelled(arrays["images"], arrays["labels"], str(path))


def arrays_of(path: Path, *names: str) -> dict[str, np.ndarray]:
    """The arrays of these names in an .npz file; InputError where they are not there."""
    try:
        if not path.is_file() or not is_zipfile(path):  # a pipe would keep its reader waiting
            raise OSError(None, "no such file" if not path.exists() else "another kind of file")
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in names}
    except (
        OSError,
        ValueError,
        KeyError,
        EOFError,
        BadZipFile,
        NotImplementedError,
        RuntimeError,
        zlib.error,
    ) as problem:
        said = (getattr(problem, "strerror", None) or str(problem)).rstrip(".")
        rule = f"{path} is an .npz file with the arrays {' and '.join(names)}"
        raise InputError(rule, said, FIX) from None


def require_images(images: np.ndarray, where: str) -> None:
    """Raise InputError unless they are (N, height, width[, C]), finite and not negative."""
    fits = images.ndim in (3, 4) and images.dtype.kind in "uifb" and images.size
    if not fits or not 0 <= images.min() <= images.max() < np.inf:
        raise InputError(
            f"images of {where} are (N, height, width) or (N, height, width, channels), of finite "
            "numbers that are not negative",
            f"shape {images.shape} of {images.dtype}" if not fits else "other numbers",
            FIX,
        )


def labelled(images: np.ndarray, labels: np.ndarray, where: str = "scikit-learn") -> Images:
    """Images with their labels. Raises InputError for those that do not fit together."""
    require_images(images, where)
    if labels.shape != images.shape[:1] or labels.dtype.kind not in "uiU":
        raise InputError(
            f"labels of {where} are integers or strings, one for each image",
            f"shape {labels.shape} of {labels.dtype} for {len(images)} images",
            FIX,
        )
    classes, numbers = np.unique(labels, return_inverse=True)
    if len(classes) < 2 or len(images) < 2 * FOLDS:
        raise InputError(
            f"there are at least {2 * FOLDS} images, and labels that differ",
            f"{len(images)} images with {len(classes)} different labels in {where}",
            "Give it more.",
        )
    highest = float(images.max()) or 1.0
    return Images((images / highest).astype(np.float32), numbers, classes.tolist(), highest)


def moved(images: np.ndarray, down, right, angle) -> np.ndarray:
    """images (B, height, width[, C]), each moved by pixels and turned about its middle.

    `down`, `right` and `angle` (radians) are numbers or (B, 1, 1). What comes in from outside is 0;
    between pixels the image is interpolated linearly.
    """
    count, height, width = images.shape[:3]
    y, x = np.mgrid[:height, :width] - np.array([height - 1, width - 1])[:, None, None] / 2
    # Where each pixel comes from, in the image with a border of 0 that is 2 pixels wide.
    cos, sin = np.cos(angle), np.sin(angle)
    y, x = cos * y - sin * x - down, sin * y + cos * x - right
    y = np.clip(y + (height - 1) / 2 + 2, 0, height + 2.999)
    x = np.clip(x + (width - 1) / 2 + 2, 0, width + 2.999)
    bordered = np.pad(images, [(0, 0), (2, 2), (2, 2), (0, 0)][: images.ndim])
    row, column, image = y.astype(int), x.astype(int), np.arange(count)[:, None, None]
    result = 0
    for below, of_row in ((0, 1 - (y - row)), (1, y - row)):
        for beside, of_column in ((0, 1 - (x - column)), (1, x - column)):
            share = (of_row * of_column).astype(images.dtype)
            share = share[..., None] if images.ndim == 4 else share
            result = result + share * bordered[image, row + below, column + beside]
    return result


class ImagesTask:
    """Batches of the images that are not tested, for `numformer.training.train`.

    It evaluates on the images that it trains on, as they are: what is tested chooses nothing.
    """

    metric, higher_is_better, longest = "loss_of_images_trained_on", False, 1

    def __init__(
        self, data: Images, fold: int, batch_size: int, seed: int, shift: float, turn: float
    ):
        order = np.random.default_rng(0).permutation(len(data.images))
        parts = np.array_split(order, FOLDS)
        self.data, self.tested = data, parts.pop(fold)
        self.trained = np.concatenate(parts)
        self.fold, self.batch_size, self.seed = fold, batch_size, seed
        self.shift, self.turn = shift, turn

    def of(self, which: np.ndarray) -> Labelled:
        return Labelled(self.data.images[which], self.data.labels[which])

    def batch(self, step: int) -> Labelled:
        rng = np.random.default_rng(seed_sequence(self.seed, "data", step))
        drawn = self.of(rng.choice(self.trained, self.batch_size))
        down, right = rng.uniform(-self.shift, self.shift, (2, self.batch_size, 1, 1))
        angle = np.deg2rad(rng.uniform(-self.turn, self.turn, (self.batch_size, 1, 1)))
        return Labelled(moved(drawn.images, down, right, angle), drawn.labels)

    def evaluate(self, model: VisionTransformer) -> dict[str, float]:
        parts = np.split(self.trained, range(256, len(self.trained), 256))
        losses = [float(model.objective().prediction_loss(*self.of(part).inputs)) for part in parts]
        return {self.metric: float(np.average(losses, weights=[*map(len, parts)]))}

    def description(self) -> dict:
        checksum = zlib.crc32(self.data.labels.tobytes(), zlib.crc32(self.data.images.tobytes()))
        content = {"data": checksum, "classes": self.data.classes, "highest": self.data.highest}
        return {"name": "images", "fold": self.fold} | content


def named(model: VisionTransformer, images: np.ndarray) -> np.ndarray:
    """The class (N,) of each image that is the most probable one in the mean of nine looks at it.

    In each of them the image stands half a pixel further up, down, left or right, or where it was.
    """
    numbers, probabilities = [], Softmax()
    with inference():
        for part in np.split(images, range(256, len(images), 256)):
            looks = (
                probabilities.forward(model.forward(moved(part, down, right, 0.0)))
                for down, right in itertools.product((-0.5, 0.0, 0.5), repeat=2)
            )
            numbers.append(to_host(sum(looks).argmax(axis=-1)))
    return np.concatenate(numbers)


def data_of(options: argparse.Namespace) -> Images:
    return read(Path(options.data)) if options.data else digits()


def make(options: argparse.Namespace):
    """The task of a fold, the kind of model and its config."""
    if not all(0 <= most <= 360 for most in (options.shift, options.turn)):
        raise InputError(
            "--shift and --turn are from 0 to 360",
            f"{options.shift}, {options.turn}",
            "Change them.",
        )
    data = data_of(options)
    how = options.batch_size, options.seed, options.shift, options.turn
    task = ImagesTask(data, options.fold, *how)
    height, width, channels = (*data.images.shape[1:], 1)[:3]
    sizes = dict(height=height, width=width, channels=channels, classes=len(data.classes))
    return task, VisionTransformer, settings_from(options, VisionTransformer.Config, **sizes)


def measure(model: VisionTransformer, task: ImagesTask, folder: Path) -> dict:
    tested = task.of(task.tested)
    right = int((named(model, tested.images) == tested.labels).sum())
    return {"tested": len(task.tested), "right": right, "accuracy": right / len(task.tested)}


def table(results: Results) -> list[list[str]]:
    rows = [["tested on", "images", "right", "accuracy", "seconds"]]
    for fold, runs in results.items():
        tested, right, seconds = (
            sum(run[name] for run in runs) for name in ("tested", "right", "seconds")
        )
        rows.append([fold, f"{tested}", f"{right}", f"{right / tested:.4f}", f"{seconds:.0f}"])
    return rows


def draw(results: Results, folder: Path) -> None:
    """Draw where the class token looks in some of the images that the first fold tests."""
    options = argparse.Namespace(**run_folders.read_config(folder)["options"])
    first = results["fold 1"][0]
    model, _ = load_model(first["folder"] / "best.safetensors")
    data = data_of(options)
    task = ImagesTask(data, 0, 1, 1, 0, 0)
    labels = data.labels[task.tested]
    some = task.tested[[np.flatnonzero(labels == label)[0] for label in np.unique(labels)[:6]]]
    draw_looks(folder / "attention.png", model, data.images[some], f"{folder.name}, fold 1")


def draw_looks(
    path: Path,
    model: VisionTransformer,
    images: np.ndarray,
    title: str,
    shown: np.ndarray | None = None,
) -> None:
    """Draw each image (row) and the class token's attention to its patches, by layer and head.

    `shown` are the images as people see them.
    """
    config = model.config
    looks = [weights[:, :, 0, 1:] for weights in attention_weights(model, images).values()]
    maps = [
        (f"layer {i + 1}\nhead {j + 1}", layer[:, j])
        for i, layer in enumerate(looks[:4])
        for j in range(min(layer.shape[1], 4))
    ]
    figure = new_figure(1 + len(maps), 1.1 * len(images) + 1, layout="constrained")
    figure.suptitle(f"{title}: where the class token looks", parse_math=False)
    grid = config.height // config.patch, config.width // config.patch
    images = images if shown is None else shown
    if images.ndim == 4 and images.shape[-1] != 3:
        images = images.mean(axis=-1)
    for row, axes in enumerate(figure.subplots(len(images), 1 + len(maps), squeeze=False)):
        for axis in axes:
            axis.set(xticks=[], yticks=[])
            axis.imshow(images[row].clip(0, 1), cmap="gray")
        for axis, (name, weights) in zip(axes[1:], maps, strict=True):
            pixels = np.kron(weights[row].reshape(grid), np.ones((config.patch, config.patch)))
            axis.imshow(pixels, cmap="inferno", vmin=0, alpha=0.7)
            if row == 0:
                axis.set_title(name, fontsize=8)
    figure.savefig(path, dpi=110)


def verdict(results: Results):
    runs = [run for of_fold in results.values() for run in of_fold]
    tested, right = (sum(run[name] for run in runs) for name in ("tested", "right"))
    options = run_folders.read_config(runs[0]["folder"].parent)["options"]
    what = f"{tested // len(results['fold 1']):,} images, each named by a model that never saw it"
    target = None if options["data"] else (f"accuracy {TARGET}", right / tested >= TARGET)
    return what, {"accuracy": f"{right / tested:.4f}"}, target


def use(options: argparse.Namespace) -> int:
    """Print the name of each image in the files of --input, a line each; the exit code."""
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
            "Name the folder of a fold, such as runs/images/fold-1-1.",
        )
    if not options.input:
        raise InputError("--input names files of images", "none", "Give it --input FILE.npz")
    pack(model, xp=find_backend(options.backend))
    for file in options.input:
        images, sizes = arrays_of(Path(file), "images")["images"], model.config
        require_images(images, file)
        height, width, channels = (*images.shape[1:], 1)[:3]
        if (height, width, channels) != (sizes.height, sizes.width, sizes.channels):
            raise InputError(
                f"this model names images of {sizes.height} x {sizes.width} pixels, each of "
                f"{sizes.channels} numbers",
                f"{file} with {height} x {width} of {channels}",
                "Cut or scale them.",
            )
        if not highest / 2 <= images.max() <= highest:
            note(
                f"the largest number in {file} is {images.max():g}, in training it was "
                f"{highest:g}; both should mean the same brightness"
            )
        images = (images / highest).astype(np.float32)
        for label in named(model, images):
            print(classes[label])
        if options.attention:
            draw_looks(options.attention, model, images[:6], Path(file).name)
    return 0


def name_pictures(options: argparse.Namespace, model, metadata: dict) -> int:
    """Print what a published model takes each picture of --input for; the exit code."""
    said, prepared = metadata["published"], metadata.get("pictures", {})
    names = said.get("id2label")
    if not isinstance(model, VisionTransformer) or not isinstance(names, dict):
        rule, fix = "--run names a model of images", "Name the folder of a ViT."
        raise InputError(rule, f"{options.run}, a {said.get('model_type')}", fix)
    if not options.input:
        raise InputError("--input names pictures", "none", "Give it --input FILE.png")
    pack(model, xp=find_backend(options.backend))
    files = map(Path, options.input)
    try:
        images = np.stack([picture(file, prepared, model.config) for file in files])
    except InputError:
        raise
    except (AttributeError, TypeError, ValueError) as problem:
        rule, fix = "preprocessor_config.json says how pictures are prepared", "Download it again."
        raise InputError(rule, problem, fix) from None
    with inference():
        labels = to_host(model.forward(images).argmax(axis=-1))
    for label in labels.tolist():
        print(names[str(label)])
    if options.attention:
        seen = (images - images.min()) / (np.ptp(images) or 1)
        draw_looks(options.attention, model, images, options.run.name, seen)
    return 0


def flags(made: argparse.ArgumentParser) -> None:
    add = made.add_argument
    add("--data", type=any_path, metavar="FILE.npz", help="images and labels; without, digits")
    add(
        "--shift",
        type=float,
        default=0.7,
        help="images are trained on shifted by up to so many pixels",
    )
    add("--turn", type=float, default=10.0, help="and turned by up to so many degrees")


STUDY = Study(
    name="images",
    description=DESCRIPTION,
    model=VisionTransformer,
    defaults=DEFAULTS,
    rows={f"fold {number + 1}": dict(fold=number) for number in range(FOLDS)},
    make=make,
    measure=measure,
    figure="accuracy",
    table=table,
    draw=draw,
    verdict=verdict,
    example="FILE.npz",
    flags=flags,
    use=use,
)


def main(arguments: list[str] | None = None) -> int:
    """Train on all folds, or with --run name images; returns the exit code."""
    return study_main(STUDY, arguments)


if __name__ == "__main__":
    sys.exit(exit_code(main))
