"""Mixed precision: products in half, and a scale of the loss that grows until gradients overflow."""

import numpy as np
import pytest
from cupy_stand_in import synchronisations
from numpy.testing import assert_allclose, assert_array_equal
from tiny_runs import Copying, Own, interrupt, recipe, run, tiny

from numformer.backend import half_products, to_host
from numformer.errors import BrokenNumbers
from numformer.layer import pack
from numformer.layers import CrossEntropy
from numformer.randomness import dropout_stream
from numformer.training.checkpoints import save_checkpoint
from numformer.training.loss_scale import LossScale
from numformer.training.optimizers import Adam, clip_global_norm
from numformer.training.trainer import Trainer
from tests.equal_runs import assert_same_run, assert_same_weights, last, logged

HIGH = 2.0**30  # with this scale the gradients of a tiny model overflow


@pytest.fixture
def begin(monkeypatch, tmp_path):
    """`begin(scale, parts)`: a Trainer in mixed precision that begins with a scale."""
    made = []

    def build(scale=LossScale.FIRST, parts=1, model=None, good=LossScale.GOOD, xp=np, **changes):
        monkeypatch.setattr(LossScale, "FIRST", scale)
        monkeypatch.setattr(LossScale, "GOOD", good)
        how = recipe(precision="mixed", **changes), 3, xp, parts
        made.append(Trainer(model or tiny(), Copying(), tmp_path, 99, *how))
        return made[-1]

    yield build
    for trainer in made:
        trainer.parts.close()


def vectors(trainer: Trainer) -> list:
    parameters = [trainer.parameters.data, *trainer.optimizer.state.values()]
    return [to_host(vector).copy() for vector in parameters]


@pytest.mark.parametrize("scale", [LossScale.FIRST, HIGH])
def test_steps_are_those_of_a_plain_loop_that_scales_and_skips(begin, scale):
    """The gradient is divided by the scale before it is clipped; Adam counts every step."""
    trainer, model, batches, losses, norms, scales = begin(scale, clip_norm=0.4), tiny(), *[[]] * 4
    norms, losses, scales, batches = [], [], [], Copying()
    flat, loss = pack(model), CrossEntropy(0.1)
    optimizer = Adam(flat)
    for step in range(1, 25):
        batch = batches.batch(step)
        dropout_stream.reseed(3, step)
        model.zero_grad()
        with half_products(), np.errstate(invalid="ignore"):
            logits = model.forward(batch.source, batch.target_in, skip_padding=True)
            losses.append(loss.forward(logits, batch.target_out[batch.target_in != 0]))
            model.backward(loss.backward(scale))
            flat.grad /= np.float32(scale)
            norm = clip_global_norm(flat.grad, 0.4)
        scales.append(scale)
        norms.append(norm if np.isfinite(norm) else 0)
        if norms[-1]:
            optimizer.step(trainer.rate(step))
        else:
            scale /= 2
            optimizer.steps += 1
    lines = []
    with np.errstate(invalid="ignore"):
        for _ in scales:
            trainer.advance()
            lines.append(trainer.latest())
    assert_array_equal(trainer.parameters.data, flat.data)
    assert [line["loss"] for line in lines] == losses
    assert [line["gradient_norm"] for line in lines] == norms
    assert [line["loss_scale"] for line in lines] == scales
    assert min(norms) == 0 and norms[-1] > 0.4
