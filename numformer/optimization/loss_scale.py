"""Loss scaling, with which training in half precision keeps its small gradients."""

import math
from typing import Any

import numpy as np

from numformer.backend import array_module, to_host


class LossScale:
    """What the loss is multiplied with before backward, and its gradient divided by afterwards.

    Of a gradient below 6e-8 float16 would keep nothing (Micikevicius et al. 2018, section 3.2). So
    the scale is as large as gradients allow: where one is infinite or NaN, the step is skipped and
    the scale halved; after GOOD steps in turn that were not, it is doubled, up to MOST. It is a
    power of two, so that multiplying and dividing change no bit.

    `scale` and `good`, the steps since it changed, are arrays () where the gradients are: a GPU
    need not be waited for.
    """

    GOOD = 2000
    FIRST, MOST = 2.0**16, 2.0**32

    def __init__(self, xp: Any = np) -> None:
        self.load(xp.asarray(np.array([self.FIRST, 0], np.float32)))

    def load(self, state: Any) -> None:
        """Go on from what `state` gave, (2,)."""
        self.scale, self.good = state

    def state(self) -> Any:
        """All that resuming needs, (2,) on the host."""
        return to_host(array_module(self.scale).stack([self.scale, self.good]))

    @classmethod
    def can_be(cls, state: np.ndarray) -> bool:
        """Whether a run can have come to this state."""
        if state.shape != (2,):
            return False
        scale, good = state
        return 1 <= scale <= cls.MOST and good in range(cls.GOOD) and math.frexp(scale)[0] == 0.5

    def skips(self, loss: Any, norm: Any) -> Any:
        """Whether a step of this loss and this gradient's norm is to be skipped, ().

        The scale becomes that of the next step. At a scale of 1 nothing is skipped, nor where the
        loss is not finite: there the numbers broke, and not for the scale.
        """
        xp = array_module(norm)
        skipped = xp.isfinite(loss) & ~xp.isfinite(norm) & (self.scale > 1)
        good = self.good + 1
        grown = xp.where(good == self.GOOD, xp.minimum(2 * self.scale, self.MOST), self.scale)
        self.scale = xp.where(skipped, self.scale / 2, grown)
        self.good = xp.where(skipped | (good == self.GOOD), xp.zeros_like(good), good)
        return skipped
