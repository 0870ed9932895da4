"""The gradient check of slices of runs; slices of published models are tested in published/."""

import re

import numpy as np
import pytest

import numformer as nf
from numformer.gradient_check import __main__ as command
from numformer.models import Config, RecurrentEncoderDecoder, Transformer
from numformer.runs.checkpoints import save_model


@pytest.fixture
def folder(request, tmp_path):
    """A run's folder."""
    (tmp_path / "model").mkdir()
    sizes = dict(source_vocabulary=90, target_vocabulary=70, d_model=12)
    mixed = dict(d_ff=16, heads=2, layers=3, mixers="window,attention", tying="none")
    models = {
        "paper": lambda: Transformer(Config(**sizes, **mixed), 1),
        "recurrent": lambda: RecurrentEncoderDecoder(RecurrentEncoderDecoder.Config(**sizes), 1),
    }
    save_model(tmp_path / "model" / "best.safetensors", models[request.param]())
    return tmp_path / "model"


KINDS = ["paper", "recurrent"]


@pytest.mark.parametrize("folder", KINDS, indirect=True)
def test_a_slice_of_every_kind_passes(folder, capsys):
    assert command.main(["--run", str(folder)]) == 0
    assert re.search(r"0 of \d\d failed", capsys.readouterr().out)


@pytest.mark.parametrize("folder", ["paper"], indirect=True)
def test_the_slice_has_the_weights_and_fewer_of_everything(folder):
    whole, _ = nf.load_model(folder / "best.safetensors")
    model, _ = command.slice_of(folder)
    state, of_whole = model.state_dict(), whole.state_dict()
    assert model.config.layers == 2 and "encoder.layers.2.self_attention.norm.gamma" not in state
    assert state["source.embedding.weight"].shape == (64, 12)
    for name, array in state.items():
        assert np.array_equal(array, of_whole[name][: len(array)]), name


def test_what_is_no_run_is_refused(tmp_path, capsys):
    assert command.main(["--run", str(tmp_path / "nothing")]) == 2
    assert command.main(["mine:case", "--run", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("error:") == 2
