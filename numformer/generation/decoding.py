"""Generation: greedy and beam search on a key-value cache."""

import math

import numpy as np

from numformer.backend import array_module, to_host
from numformer.data.vocabulary import END, PADDING, START
from numformer.errors import InputError
from numformer.layer import inference
from numformer.models.encoder_decoder import Transformer


def log_probabilities(logits) -> np.ndarray:
    """logits (N, V) -> log softmax (N, V) in float64 on the host.

    Padding and start are no symbols of an output; they get minus infinity.
    """
    xp = array_module(logits)
    shifted = logits.astype(xp.float64)
    shifted -= shifted.max(axis=-1, keepdims=True)
    result = to_host(shifted - xp.log(xp.exp(shifted).sum(axis=-1, keepdims=True)))
    result[:, [PADDING, START]] = -np.inf
    return result


def greedy(model: Transformer, source: np.ndarray, max_length: int) -> list[list[int]]:
    """source ids (B, S) -> for each row the most probable id at every position, up to the end id.

    The results hold neither start nor end id and at most `max_length` ids.
    """
    _require_positive("max_length", max_length)
    batch = len(source)
    written = np.full((batch, max_length), END)
    finished = np.zeros(batch, dtype=bool)
    ids = np.full(batch, START)
    with inference():
        memory, source_mask = model.encode(source)
        cache = model.decoder.new_cache(batch, max_length, source.shape[1])
        for position in range(max_length):
            logits = model.decode_next(ids, memory, source_mask, cache)
            ids = log_probabilities(logits).argmax(axis=-1)
            written[:, position] = ids
            finished |= ids == END
            if finished.all():
                break
    return [_up_to_end(row) for row in written.tolist()]


def length_penalty(length: int, alpha: float) -> float:
    """((5 + length) / 6)^alpha (Wu et al. 2016), by which a beam's log probability is divided."""
    return ((5 + length) / 6) ** alpha


def beam_search(
    model: Transformer,
    source: np.ndarray,
    max_length: int,
    beam: int = 4,
    alpha: float = 0.6,
) -> list[list[int]]:
    """source ids (B, S) -> for each row the best sequence found with `beam` hypotheses.

    Best is the largest log probability / length_penalty (section 6.1: beam 4, alpha 0.6), the
    length counting the end id. A row is done when none of the open hypotheses can still win, or
    when `beam` have ended and none of the open ones is ahead of them. The results hold neither
    start nor end id and at most `max_length` ids.
    """
    _require_positive("max_length", max_length)
    _require_positive("beam", beam)
    if alpha < 0:
        raise InputError("alpha is at least 0", alpha, "The paper uses 0.6; 0 does not normalise.")
    batch = len(source)
    best: list[tuple[float, list[int]]] = [(-math.inf, [])] * batch
    ended = np.zeros(batch, int)

    def offer(sentence: int, log_probability: float, ids: list[int]) -> None:
        score = log_probability / length_penalty(len(ids), alpha)
        best[sentence] = max(best[sentence], (score, ids), key=lambda found: found[0])

    open_sentences = np.arange(batch)
    # A sentence's hypotheses start equal, so all but one are impossible until they differ.
    scores = np.full((batch, beam), -np.inf)
    scores[:, 0] = 0
    written = np.full((batch, beam, 1), START)
    with inference():
        memory, source_mask = (each.repeat(beam, axis=0) for each in model.encode(source))
        cache = model.decoder.new_cache(batch * beam, max_length, source.shape[1])
        for _ in range(max_length):
            logits = model.decode_next(written[:, :, -1].ravel(), memory, source_mask, cache)
            log_p = log_probabilities(logits).reshape(*scores.shape, -1)
            # A hypothesis has one way to end, so twice the beam leaves enough that go on.
            totals, parents, symbols = _largest(scores[:, :, None] + log_p, 2 * beam)
            ends = symbols == END
            for row, rank in np.argwhere(ends[:, :beam] & np.isfinite(totals[:, :beam])):
                ids = [*written[row, parents[row, rank], 1:].tolist(), END]
                offer(open_sentences[row], totals[row, rank], ids)
                ended[open_sentences[row]] += 1

            going_on = np.argsort(ends, kind="stable")[:, :beam]
            each_row = np.arange(len(scores))[:, None]
            scores, parents, symbols = (
                array[each_row, going_on] for array in (totals, parents, symbols)
            )
            written = np.concatenate([written[each_row, parents], symbols[:, :, None]], axis=-1)

            best_so_far = [best[sentence][0] for sentence in open_sentences]
            best_open = scores.max(axis=-1)
            # The best that an open hypothesis can reach: no further loss, the largest divisor.
            can_win = best_open / length_penalty(max_length, alpha) > best_so_far
            # A sure hypothesis sees many improbable ones end before it does.
            ahead = best_open / length_penalty(written.shape[-1] - 1, alpha) > best_so_far
            remain = can_win & (ahead | (ended[open_sentences] < beam))
            rows = (each_row * beam + parents)[remain].ravel()
            rows = array_module(memory).asarray(rows)
            cache.choose(rows)
            memory, source_mask = memory[rows], source_mask[rows]
            open_sentences, scores, written = (
                array[remain] for array in (open_sentences, scores, written)
            )
            if not remain.any():
                break
    for row, sentence in enumerate(open_sentences):
        for score, hypothesis in zip(scores[row], written[row, :, 1:].tolist(), strict=True):
            offer(sentence, score, hypothesis)
    return [_up_to_end(ids) for _, ids in best]


def _largest(candidates: np.ndarray, count: int):
    """candidates (N, beam, V) -> the `count` largest, best first, as values, beams and symbols."""
    flat = candidates.reshape(len(candidates), -1)
    chosen = np.argsort(-flat, kind="stable")[:, :count]
    beams, symbols = np.divmod(chosen, candidates.shape[-1])
    return flat[np.arange(len(flat))[:, None], chosen], beams, symbols


def _up_to_end(ids: list[int]) -> list[int]:
    return ids[: ids.index(END)] if END in ids else ids


def _require_positive(name: str, value: int) -> None:
    if value < 1:
        raise InputError(f"{name} is at least 1", value, f"Ask for a larger {name}.")
