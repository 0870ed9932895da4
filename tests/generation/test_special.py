"""A model with other special ids reads and writes the same symbols as ours."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import numformer as nf

V = 11
TOWER = dict(d_model=8, d_ff=12, heads=2, layers=2, p_drop=0.0, output_bias=True)
PAIRS = [([4, 5, 6], [7, 8]), ([8], []), ([9, 10, 4, 4], [5, 5, 6, 10])]
CLOSE = dict(rtol=1e-10, atol=1e-12)
LETTERS = nf.Vocabulary("abcdefg")  # V symbols
# What our ids 0 to 10 are called. The end and the symbols keep their order, in which samples are
# drawn. Where the start is padding, too, our padding has a name that nothing says.
NAMES = {
    "others": np.array([9, 10, 1, 0, 2, 3, 4, 5, 6, 7, 8]),
    "start is padding": np.array([10, 9, 1, 0, 2, 3, 4, 5, 6, 7, 8]),
}
IDS = dict(padding_id=9, end_id=1, unwritten=(0, 9, 10))


class Renamed(nf.Vocabulary):
    """The same symbols with other ids."""

    def __init__(self, names):
        super().__init__(LETTERS.symbols)
        self.names = names

    def encode(self, symbols):
        return self.names[super().encode(symbols)].tolist()

    def decode(self, ids):
        return super().decode(np.argsort(self.names)[ids])


def both(kind, names, seed: int = 0, **sizes):
    """A model with our ids, and the same model with other ids."""
    start = dict(start_id=int(names[nf.START]))
    ours = kind(kind.Config(**TOWER, **sizes), seed)
    theirs = kind(replace(ours.config, **IDS, **start))
    nf.pack(theirs, np.float64)
    flat = nf.pack(ours, np.float64)
    flat.data += 0.5 * np.random.default_rng(seed).standard_normal(flat.data.shape)
    ours.output.bias.data[[nf.PADDING, nf.START, nf.UNKNOWN]] += 2  # often the most probable
    for name, parameter in theirs.named_parameters().items():
        rows = names if len(parameter.data) == V else slice(None)
        parameter.data[rows] = ours.named_parameters()[name].data
    return ours, theirs


def called(ids, names):
    """The other ids of our ids, including padding."""
    return np.where(ids == nf.PADDING, 9, names[ids])


every_naming = pytest.mark.parametrize("names", NAMES.values(), ids=NAMES)


@every_naming
def test_a_batch_is_the_same_with_other_ids(names, complaint):
    ours, theirs = both(nf.Transformer, names, source_vocabulary=V, target_vocabulary=V)
    special = theirs.config.special
    assert special == nf.SpecialIds(9, names[nf.START], 1, (0, 9, 10))
    assert ours.config.special == nf.SpecialIds() == nf.SpecialIds(0, 1, 2, (0, 1, 3), ())
    batch = nf.PairBatch.of(PAIRS)
    pairs = [[names[np.array(ids, int)] for ids in pair] for pair in PAIRS]
    other = nf.PairBatch.of(pairs, special)
    wider = (np.pad(ids, ((0, 0), (0, 2)), constant_values=9) for ids in other.inputs)
    batches = [(batch, other), (batch, other.with_arrays(*wider).trim())]
    batches += zip(batch.split(2), other.split(2), strict=True)
    for mine, renamed in batches:
        assert renamed.special == special and renamed.weight == mine.weight
        for ids, expected in zip(renamed.inputs, mine.inputs, strict=True):
            assert_array_equal(ids, called(expected, names))

    logits, targets = ours.predictions(*batch.inputs)
    other_logits, other_targets = theirs.predictions(*other.inputs)
    assert_allclose(other_logits[:, names], logits, **CLOSE)
    assert_array_equal(other_targets, names[targets])
    whole = theirs.forward(other.source, other.target_in)
    assert_allclose(whole[batch.target_in != nf.PADDING], other_logits, **CLOSE)

    swapped = other.target_out[::-1]
    assert "Remove id 9" in complaint(nf.PairBatch, *other.inputs[:2], swapped, special)
    assert "with the end id 1; received row 0" in complaint(theirs.start, other.source + 1, 3)
    nothing = other.source, *[np.full((3, 2), 9)] * 2
    if special.start != special.padding:
        assert "received only id 9" in complaint(theirs.predictions, *nothing)
    else:
        assert len(theirs.predictions(*nothing)[0]) == 3


@every_naming
def test_the_same_symbols_are_written_with_other_ids(names):
    """Unwritten ids are never written, however probable; the end id ends a text."""
    source, lengths = nf.data.pad_sources([source for source, _ in PAIRS]), set()

    def renamed(ids):
        return names[np.array(ids, int)].tolist()

    text, other = (
        nf.Transduction(known, known, max_length=6) for known in (LETTERS, Renamed(names))
    )
    for seed in range(6):
        ours, theirs = both(nf.Transformer, names, seed, source_vocabulary=V, target_vocabulary=V)
        sources = source, called(source, names)
        for search in nf.greedy, nf.beam_search, nf.sample:
            written = search(ours, sources[0], 7)
            assert search(theirs, sources[1], 7) == [*map(renamed, written)]
            lengths |= {*map(len, written)}
        best = [nf.n_best(*asked, 7, 3) for asked in zip((ours, theirs), sources, strict=True)]
        for mine, others in zip(*best, strict=True):
            assert_allclose([h.score for h in others], [h.score for h in mine])
            assert [h.ids for h in others] == [renamed(h.ids) for h in mine]
        asked = [[*"abc"], ["e"]]
        assert text.write(ours, asked) == other.write(theirs, asked)
        maps = text.maps(ours, asked[0], [*"de"])[2], other.maps(theirs, asked[0], [*"de"])[2]
        for mine, others in zip(*maps, strict=True):
            assert_allclose(others.weights, mine.weights, **CLOSE)
    assert {0, 7} < lengths


def test_a_model_without_end_and_unwritten_ids_writes_any_probable_id():
    sizes = TOWER | dict(vocabulary=V, start_id=None, end_id=None, padding_id=None)
    ids, seen = np.array([[4, 5], [0, 2], [7, 1]]), set()
    for unwritten in ((), (7,), (2, 7, 0)):
        model = nf.LanguageModel(nf.LanguageModel.Config(**sizes, unwritten=unwritten), 4)
        flat = nf.pack(model, np.float64)
        flat.data += 0.5 * np.random.default_rng(2).standard_normal(flat.data.shape)
        written = nf.greedy(model, ids, 9)
        whole = np.concatenate([ids, written], axis=1)
        logits = model.forward(whole)[:, 1:-1]
        logits[..., [*model.config.special.unwritten]] = -np.inf
        assert_array_equal(logits.argmax(axis=-1), written)
        seen |= {*np.ravel(written)}
        for texts in (written, nf.sample(model, ids, 9), nf.beam_search(model, ids, 9, 3)):
            assert np.shape(texts) == (3, 9)
            assert not np.isin(texts, model.config.special.unwritten).any()
    assert seen & {0, 1, 2, 3}


@pytest.mark.parametrize("ids", [dict(start_id=None), dict(end_id=None), dict(end_id=0)])
def test_a_translation_has_a_start_and_an_end(ids, complaint):
    refusal = complaint(nf.Transformer.Config.base, V, **ids)
    assert "has a start id, and an end id other than the padding id; received start_id" in refusal


@pytest.mark.parametrize("padding", [9, None])
def test_a_masked_model_has_its_own_padding_id_or_none(padding):
    ids = np.array([[4, 5, 6], [7, 8, 0]])
    sizes = TOWER | dict(vocabulary=V, tied=False, embedding_scale=False)
    ours, theirs = (
        nf.MaskedLanguageModel(nf.MaskedLanguageModel.Config(**sizes, padding_id=n), 3)
        for n in (0, padding)
    )
    for model in ours, theirs:
        nf.pack(model, np.float64)
    its = np.where(ids, ids, 9)
    same = np.allclose(theirs.forward(its)[1, :2], ours.forward(ids)[1, :2])
    assert same == (padding == 9)
    targets = np.array([[5, 0, 9], [9, 9, 9]])
    _, asked = theirs.predictions(its, targets)
    assert asked.tolist() == ([5, 0] if padding == 9 else targets.ravel().tolist())
