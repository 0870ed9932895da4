"""Loss scaling, which keeps small gradients from becoming 0 in half precision."""

import math
from typing import Any

import numpy as np

from numformer.backend import array_module, has_kernel, to_host


class LossScale:
    """A factor that multiplies the loss before backward, and divides the gradient afterwards.

    Gradients below about 6e-8 become 0 in float16 (Micikevicius et al. 2018, section 3.2). So the
    scale is kept as large as possible: if a gradient is infinite or NaN, the step is skipped and
    the scale halved; after GROWTH_INTERVAL steps without a skip, it is doubled, up to MAX. The
    scale is a power of two, so multiplying and dividing by it are exact.

    `scale` and `finite_steps`, the number of steps since the last skip or doubling, are scalars ()
    on the gradients' device, so that the host never waits for a GPU.
    """

    GROWTH_INTERVAL = 2000
    FIRST, MAX = 2.0**16, 2.0**32

    def __init__(self, xp: Any = np) -> None:
        self.load(xp.asarray(np.array([self.FIRST, 0], np.float32)))

    def load(self, state: Any) -> None:
        """Continue from a saved `state` (2,)."""
        self.scale, self.finite_steps = state

    def state(self) -> Any:
        """Return `scale` and `finite_steps` as an array (2,) on the host."""
        return to_host(array_module(self.scale).stack([self.scale, self.finite_steps]))

    @classmethod
    def is_valid(cls, state: np.ndarray) -> bool:
        """Return whether `state` is one that a run can have saved."""
        if state.shape != (2,):
            return False
        scale, finite_steps = state
        return (
            1 <= scale <= cls.MAX
            and finite_steps in range(cls.GROWTH_INTERVAL)
            and math.frexp(scale)[0] == 0.5
        )

    def skips(self, loss: Any, norm: Any) -> Any:
        """Return whether to skip a step with this loss and gradient norm, each a scalar ().

        Also sets the scale of the next step. If the scale is 1 or the loss is not finite, no step
        is skipped, because the scale did not cause the infinite or NaN gradient.
        """
        skipped, self.scale, self.finite_steps = next_scale(
            loss, norm, self.scale, self.finite_steps, self.GROWTH_INTERVAL, self.MAX
        )
        return skipped


@has_kernel
def next_scale(loss, norm, scale, finite_steps, growth_interval: int, largest: float):
    """Return whether to skip the step, the next `scale` and `finite_steps`, all scalars ()."""
    xp = array_module(norm)
    skipped = xp.isfinite(loss) & ~xp.isfinite(norm) & (scale > 1)
    finite_steps = finite_steps + 1
    grows = finite_steps == growth_interval
    grown_scale = xp.where(grows, xp.minimum(2 * scale, largest), scale)
    scale = xp.where(skipped, scale / 2, grown_scale)
    return skipped, scale, xp.where(skipped | grows, xp.zeros_like(finite_steps), finite_steps)
