"""Labelled images, of handwritten digits or from an .npz file, and how to move and turn them."""

import functools
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile, is_zipfile

import numpy as np

from numformer.errors import InputError

FIX = "Save them with numpy.savez(FILE, images=images, labels=labels)."


@dataclass(frozen=True, eq=False)
class LabelledImages:
    """images (N, height, width[, C]) from 0 to 1; labels (N,), which are indices of `classes`.

    The images were divided by `highest`, their largest number.
    """

    images: np.ndarray
    labels: np.ndarray
    classes: Sequence[int | str]
    highest: float


@functools.cache
def digits() -> LabelledImages:
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
    return with_labels(dataset.images, dataset.target)


def read_images(path: Path) -> LabelledImages:
    """The labelled images of an .npz file. Raises InputError if it holds none."""
    arrays = read_arrays(path, "images", "labels")
    return with_labels(arrays["images"], arrays["labels"], str(path))


def read_arrays(path: Path, *names: str) -> dict[str, np.ndarray]:
    """The arrays with these names in an .npz file. Raises InputError if it lacks one."""
    try:
        if not path.is_file() or not is_zipfile(path):  # reading a pipe might block
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
        message = (getattr(problem, "strerror", None) or str(problem)).rstrip(".")
        rule = f"{path} is an .npz file with the arrays {' and '.join(names)}"
        raise InputError(rule, message, FIX) from None


def require_images(images: np.ndarray, origin: str) -> None:
    """Raise InputError unless images are (N, height, width[, C]), finite and not negative."""
    fits = images.ndim in (3, 4) and images.dtype.kind in "uifb" and images.size
    if not fits or not 0 <= images.min() <= images.max() < np.inf:
        received = f"shape {images.shape} of {images.dtype}"
        if fits:
            received = f"the number {images[~((images >= 0) & (images < np.inf))][0]}"
        raise InputError(
            f"images of {origin} are (N, height, width) or (N, height, width, channels), of finite "
            "numbers that are not negative",
            received,
            FIX,
        )


def require_labels(images: np.ndarray, labels: np.ndarray, origin: str) -> None:
    """Raise InputError unless there are images, and one label for each."""
    require_images(images, origin)
    if labels.shape != images.shape[:1] or labels.dtype.kind not in "uiU":
        raise InputError(
            f"labels of {origin} are integers or strings, one for each image",
            f"shape {labels.shape} of {labels.dtype} for {len(images)} images",
            FIX,
        )


def with_labels(
    images: np.ndarray, labels: np.ndarray, origin: str = "scikit-learn"
) -> LabelledImages:
    """Images with their labels. Raises InputError if the labels do not fit or are too few."""
    require_labels(images, labels, origin)
    classes, numbers = np.unique(labels, return_inverse=True)
    if len(classes) < 2 or len(images) < 10:
        raise InputError(
            "there are at least 10 images and 2 different labels",
            f"{len(images)} images with {len(classes)} different labels in {origin}",
            "Give more images.",
        )
    highest = float(images.max()) or 1.0
    return LabelledImages((images / highest).astype(np.float32), numbers, classes.tolist(), highest)


def move_images(images: np.ndarray, down, right, angle) -> np.ndarray:
    """images (B, height, width[, C]), each moved (in pixels) and turned about its centre.

    `down`, `right` and `angle` (radians) are numbers or (B, 1, 1). Pixels that come in from outside
    are 0; between pixels the image is interpolated linearly.
    """
    count, height, width = images.shape[:3]
    y, x = np.mgrid[:height, :width] - np.array([height - 1, width - 1])[:, None, None] / 2
    # The position that each pixel comes from, in the image with a border of 2 zero pixels.
    cos, sin = np.cos(angle), np.sin(angle)
    y, x = cos * y - sin * x - down, sin * y + cos * x - right
    y = np.clip(y + (height - 1) / 2 + 2, 0, height + 2.999)
    x = np.clip(x + (width - 1) / 2 + 2, 0, width + 2.999)
    bordered = np.pad(images, [(0, 0), (2, 2), (2, 2), (0, 0)][: images.ndim])
    row, column, image = y.astype(int), x.astype(int), np.arange(count)[:, None, None]
    result = 0
    for below, row_share in ((0, 1 - (y - row)), (1, y - row)):
        for beside, column_share in ((0, 1 - (x - column)), (1, x - column)):
            share = (row_share * column_share).astype(images.dtype)
            share = share[..., None] if images.ndim == 4 else share
            result = result + share * bordered[image, row + below, column + beside]
    return result
