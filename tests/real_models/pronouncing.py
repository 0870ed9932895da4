"""g2p_en: a recurrent encoder-decoder that turns the letters of a word into sounds (ARPAbet)."""

import importlib
import sys
from unittest import mock

import numpy as np

import numformer as nf
from numformer.recurrence import GRUCell
from tests.real_models.measuring import RealModel, some

LETTERS = ["<pad>", "<unk>", "</s>", *"abcdefghijklmnopqrstuvwxyz"]
START, END, LONGEST = 2, 3, 20
WORDS = "activationist transformer softmax gradient numpy perplexity tokenizer zyzzyva"


class Pronouncer(nf.Layer):
    """One GRU reads the letters; its last state is the first one of another, which writes."""

    def __init__(self, letters: int, sounds: int, size: int):
        rng = np.random.default_rng(0)
        self.source, self.target = nf.Embedding(letters, size, rng), nf.Embedding(sounds, size, rng)
        cells = [GRUCell(size, rng, inner_bias=True) for _ in range(2)]
        self.encoder, self.decoder = (nf.Recurrent(cell, size, rng) for cell in cells)
        self.output = nf.Linear(size, sounds, rng)


class G2P(RealModel):
    packages = (("g2p-en", "g2p_en"),)
    kind = "GRU encoder-decoder"
    compared = "states; the sounds of eight words"

    def __init__(self, packages, folder):
        arrays = np.load(packages[0] / "checkpoint20.npz")
        self.model = Pronouncer(*(len(arrays[f"{side}_emb"]) for side in ("enc", "dec")), 256)
        theirs = {"output.weight": "fc_w", "output.bias": "fc_b"}
        for ours, name in (("source", "enc"), ("target", "dec")):
            theirs[f"{ours}.weight"] = f"{name}_emb"
        for ours, name in (("encoder", "enc"), ("decoder", "dec")):
            for part, suffix in (("input", "ih"), ("cell", "hh")):
                theirs[f"{ours}.{part}.weight"] = f"{name}_w_{suffix}"
                theirs[f"{ours}.{part}.bias"] = f"{name}_b_{suffix}"
        for name, parameter in self.model.named_parameters().items():
            array = arrays[theirs[name]]  # they compute x W^T, and multiply no embedding by 16
            parameter.data[...] = array / 16 if "_emb" in theirs[name] else array.T

    def ours(self):
        model, states, written = self.model, [], []
        with nf.inference():
            for word in WORDS.split():
                ids = [LETTERS.index(letter) for letter in word] + [LETTERS.index("</s>")]
                h = model.encoder.forward(model.source.forward(np.array([ids])))
                state, (ids, last) = h[:, -1], ([], START)
                states.append(some(h))
                while len(ids) < LONGEST:
                    x = model.target.forward(np.array([[last]]))
                    state = model.decoder.forward(x, start=state)[:, 0]
                    last = int(model.output.forward(state).argmax())
                    if last == END:
                        break
                    ids.append(last)
                written.append(" ".join(map(str, ids)))
        return [*states, *written]

    def theirs(self):
        """Their program imports nltk for words that it knows, which is left out here."""
        parts = "nltk", "nltk.corpus", "nltk.tokenize", "inflect"
        with mock.patch.dict(sys.modules, {name: mock.MagicMock() for name in parts}):
            g2p = importlib.import_module("g2p_en.g2p").G2p()
        weights = [getattr(g2p, f"enc_{name}") for name in ("w_ih", "w_hh", "b_ih", "b_hh")]
        words = WORDS.split()
        states = [g2p.gru(g2p.encode(word), len(word) + 1, *weights) for word in words]
        ids = [[g2p.p2idx[sound] for sound in g2p.predict(word)] for word in words]
        return [*map(some, states), *(" ".join(map(str, row)) for row in ids)]
