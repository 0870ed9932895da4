"""Read a picture as a published vision model expects it."""

from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from numformer.errors import InputError

LONGEST_SIDE = 10_000
"""The longest side of a picture in memory, in pixels."""


def read_picture(file: Path, preprocessor: dict, config) -> np.ndarray:
    """A picture (height, width, C): upright, scaled, cropped and normalised for a model.

    `preprocessor` is the content of preprocessor_config.json. Raises InputError if the file is not
    a picture, or the preprocessor has a step that is not implemented here.
    """
    supported = {"do_resize": True, "do_convert_rgb": True}
    for name, value in supported.items():
        if preprocessor.get(name) not in (None, value):
            rule, fix = f"pictures are prepared with {name} {value}", "Name another model."
            raise InputError(rule, repr(preprocessor[name]), fix)
    mode = "RGB" if config.channels == 3 else "L"
    try:
        with Image.open(file) as image:
            if image.mode[0] in "IF":  # convert would clip values above 255
                raise ValueError(f"more than 8 bits for a colour: Pillow's mode {image.mode}")
            upright = ImageOps.exif_transpose(image).convert(mode)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as problem:
        rule, fix = "--input names pictures, such as .png or .jpg", "Name another file."
        raise InputError(rule, f"{file} ({problem})", fix) from None
    scaled = _scaled(upright, preprocessor, (config.width, config.height))
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


def _scaled(image: Image.Image, preprocessor: dict, size: tuple[int, int]) -> Image.Image:
    """The image in a size (width, height); with do_center_crop, scaled larger, then cropped."""
    resample = Image.Resampling(preprocessor.get("resample", Image.Resampling.BILINEAR))
    if not preprocessor.get("do_center_crop"):
        return image.resize(size, resample)
    larger = preprocessor["size"]
    if isinstance(larger, int):  # in early files: a DeiT's square, or the shortest edge
        is_square = preprocessor.get("feature_extractor_type") == "DeiTFeatureExtractor"
        larger = dict.fromkeys(["width", "height"] if is_square else ["shortest_edge"], larger)
    if edge := larger.get("shortest_edge"):
        sides = [int(edge * side / min(image.size)) for side in image.size]
    else:
        sides = [larger["width"], larger["height"]]
    if max(sides) > LONGEST_SIDE:
        raise ValueError(f"{sides[0]} x {sides[1]} pixels, which is too many")
    left, top = ((side - middle) // 2 for side, middle in zip(sides, size, strict=True))
    box = left, top, left + size[0], top + size[1]
    return image.resize((sides[0], sides[1]), resample).crop(box)
