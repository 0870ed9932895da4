"""Images drawn with the attention of a vision Transformer to their patches."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from numformer.models.vision import VisionTransformer
from numformer.plots import attention_weights, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_patch_attention(
    path: Path | None,
    model: VisionTransformer,
    images: np.ndarray,
    title: str,
    visible: np.ndarray | None = None,
) -> "Figure":
    """Draw images, one in each row, and the class token's attention to them by layer and head.

    `visible` are the images to show, if the model's inputs `images` are normalised.
    """
    config = model.config
    token = config.registers or 0  # the position of the class token
    first = token + 1 + config.distilled  # the position of the first patch
    layers = [weights[:, :, token, first:] for weights in attention_weights(model, images).values()]
    maps = [
        (f"layer {i + 1}\nhead {j + 1}", layer[:, j])
        for i, layer in enumerate(layers[:4])
        for j in range(min(layer.shape[1], 4))
    ]
    figure = new_figure(1 + len(maps), 1.1 * len(images) + 1, layout="constrained")
    figure.suptitle(f"{title}: where the class token looks", parse_math=False)
    grid = config.height // config.patch, config.width // config.patch
    images = images if visible is None else visible
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
    return figure.save(path)
