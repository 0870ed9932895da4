"""Pictures from files, as a published model of images takes them."""

from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from numformer.errors import InputError


def picture(file: Path, said: dict, config) -> np.ndarray:
    """A picture (height, width, C) as preprocessor_config.json says: scaled, and by its mean.

    Raises InputError for a file that is no picture, and for what is not done here to pictures.
    """
    other = {"do_center_crop": False, "do_resize": True, "do_convert_rgb": True}
    for name, usual in other.items():
        if said.get(name) not in (None, usual):
            rule, fix = f"pictures are prepared with {name} {usual}", "Name another model."
            raise InputError(rule, repr(said[name]), fix)
    try:
        with Image.open(file) as opened:
            mode = "RGB" if config.channels == 3 else "L"
            how = Image.Resampling(said.get("resample", Image.Resampling.BILINEAR))
            scaled = opened.convert(mode).resize((config.width, config.height), how)
    except (OSError, UnidentifiedImageError, Image.DecompressionBombError) as problem:
        rule, fix = "--input names pictures, such as .png or .jpg", "Name another file."
        raise InputError(rule, f"{file} ({problem})", fix) from None
    values = np.asarray(scaled, np.float32).reshape(config.height, config.width, -1)
    if said.get("do_rescale", True):
        values = values * np.float32(said.get("rescale_factor", 1 / 255))
    if said.get("do_normalize", True):
        mean, deviation = (
            np.array(said.get(f"image_{name}", 0.5), np.float32) for name in ("mean", "std")
        )
        if not (deviation > 0).all():
            rule, fix = "image_std is above 0", "Download the model again."
            raise InputError(rule, said["image_std"], fix)
        values = (values - mean) / deviation
    return values
