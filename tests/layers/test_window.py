"""The ring of the latest keys and values."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from numformer.later.attention.rolling_cache import RollingKeysAndValues
from numformer.paper.memory import Memory

B, H = 2, 4


@pytest.mark.parametrize("lasting", [0, 1, 4])
@pytest.mark.parametrize("lengths", [(5, 1, 1, 2, 1, 1, 1), (1,) * 12, (2, 1, 3, 1, 5)])
def test_a_ring_holds_what_later_positions_can_see(lasting, lengths, rng, xp):
    """Positions come several at once or one by one, and rows are chosen in between."""
    memory = Memory(99)
    ring, keys = RollingKeysAndValues(memory, 3, lasting), rng.standard_normal((B, H, 12, 2))
    values = rng.standard_normal((B, H, 12, 5))
    chosen = np.arange(B)
    for length in lengths:
        first = memory.length
        further = slice(first, first + length)
        key, value, positions = ring.append(*(xp.asarray(a[:, :, further]) for a in (keys, values)))
        near = range(max(0, first - 2), first + length)
        assert sorted(positions) == sorted({*range(min(lasting, first)), *near})
        for array, whole in ((key, keys), (value, values)):
            host = array if xp is np else array.get()
            assert_array_equal(host, whole[:, :, positions])
        memory.advance(length)
        chosen = np.array([1, 1])
        ring.choose(chosen)
        keys[:], values[:] = keys[chosen], values[chosen]
