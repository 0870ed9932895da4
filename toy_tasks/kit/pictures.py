"""Pictures from files, as a published model of images takes them."""

from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from numformer.errors import InputError
from numformer.published.files import read_json


def picture(file: Path, run: Path, config) -> np.ndarray:
    """A picture as a published model takes it (height, width, C): scaled, and with its mean."""
    path = run / "preprocessor_config.json"
    told = read_json(path) if path.is_file() else {}
    mean, deviation = (told.get(f"image_{name}", 0.5) for name in ("mean", "std"))
    try:
        with Image.open(file) as opened:
            mode = "RGB" if config.channels == 3 else "L"
            scaled = opened.convert(mode).resize((config.width, config.height), Image.BILINEAR)
    except (OSError, UnidentifiedImageError, Image.DecompressionBombError) as problem:
        rule, fix = "--input names pictures, such as .png or .jpg", "Name another file."
        raise InputError(rule, f"{file} ({problem})", fix) from None
    values = np.asarray(scaled, np.float32).reshape(config.height, config.width, -1) / 255
    return ((values - np.array(mean)) / np.array(deviation)).astype(np.float32)
