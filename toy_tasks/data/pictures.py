"""Read a picture as a published vision model expects it."""

from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from numformer.errors import InputError


def read_picture(file: Path, preprocessor: dict, config) -> np.ndarray:
    """A picture (height, width, C): upright, scaled and normalised as in preprocessor_config.json.

    Raises InputError if the file is not a picture, or the preprocessor has a step that is not
    implemented here.
    """
    supported = {"do_center_crop": False, "do_resize": True, "do_convert_rgb": True}
    for name, value in supported.items():
        if preprocessor.get(name) not in (None, value):
            rule, fix = f"pictures are prepared with {name} {value}", "Name another model."
            raise InputError(rule, repr(preprocessor[name]), fix)
    mode = "RGB" if config.channels == 3 else "L"
    resample = Image.Resampling(preprocessor.get("resample", Image.Resampling.BILINEAR))
    try:
        with Image.open(file) as image:
            if image.mode[0] in "IF":  # convert would clip values above 255
                raise ValueError(f"more than 8 bits for a colour: Pillow's mode {image.mode}")
            upright = ImageOps.exif_transpose(image)
            scaled = upright.convert(mode).resize((config.width, config.height), resample)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as problem:
        rule, fix = "--input names pictures, such as .png or .jpg", "Name another file."
        raise InputError(rule, f"{file} ({problem})", fix) from None
    values = np.asarray(scaled, np.float32).reshape(config.height, config.width, -1)
    if preprocessor.get("do_rescale", True):
        values = values * np.float32(preprocessor.get("rescale_factor", 1 / 255))
    if preprocessor.get("do_normalize", True):
        mean, deviation = (
            np.array(preprocessor.get(f"image_{name}", 0.5), np.float32) for name in ("mean", "std")
        )
        if not (deviation > 0).all():
            rule, fix = "image_std is above 0", "Download the model again."
            raise InputError(rule, preprocessor["image_std"], fix)
        values = (values - mean) / deviation
    return values
