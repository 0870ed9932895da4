"""Mutants that compute what the library computes, each with the proof: no test can notice them."""

EQUIVALENT: dict[str, str] = {
    "data/batching.py TokenBatches.__init__: other constant: 1 -> 2": (
        "How many pairs a batch has is not asked where it is filled by tokens."
    ),
    "data/batching.py TokenBatches._cut: other constant: 0 -> 1": (
        "The first pair's length takes its place before it is read."
    ),
    "training/loop.py Schedule.ends_early: other constant: 0 -> 1": (
        "Before the first evaluation neither 0 nor -1 of them comes to any patience."
    ),
    "generation/greedy.py most_probable: missing argument: "
    "xp.take_along_axis(shifted, symbols, axis=1) -> xp.take_along_axis(shifted, symbols)": (
        "Of two axes the last, which is meant without a word, is 1."
    ),
    "generation/greedy.py most_probable: wrong axis: axis=1 -> axis=-1": (
        "Of two axes the last is 1."
    ),
    "data/subwords.py Subwords.sampled: missing call: (rng.random(3 * len(text) + 3) < dropout)"
    ".tolist() -> rng.random(3 * len(text) + 3) < dropout": (
        "The same truths, which Python reads more slowly one by one."
    ),
    "data/subwords.py Subwords.sampled: other operator: rng.random(3 * len(text) + 3) < dropout -> "
    "rng.random(3 * len(text) + 3) <= dropout": (
        "Another truth only where a random number of 53 bits is the probability itself."
    ),
    "layers/divergence.py Divergence.forward: other constant: 0 -> 1": (
        "What both logits are where they do not count; logits that are the same are not apart."
    ),
    "data/subwords.py Subwords.learned: missing argument: "
    "library.SentencePieceTrainer.train("
    "sentence_iterator=iter(texts), model_writer=written, vocab_siz..."
    " -> library.SentencePieceTrainer.train("
    "sentence_iterator=iter(texts), model_writer=written, vocab_siz... (4)": (
        "How much sentencepiece tells of its work on standard error."
    ),
    "data/subwords.py Subwords.learned: other constant: 2 -> 3": (
        "How much sentencepiece tells of its work on standard error."
    ),
    "backend.py scatter_add: other constant: 1 -> 2": (
        "np.diff gets -2 instead of -1 before the smallest id. Ids are at least 0, so the first "
        "difference is above 0 either way, and whether it is 0 is all that counts."
    ),
    "backend.py splitmix64: missing call: np.uint64(11400714819323198485) -> "
    "11400714819323198485": (
        "A Python integer takes the dtype of the array that it multiplies, uint64 (NEP 50)."
    ),
    "backend.py splitmix64: missing call: np.uint64(factor) -> factor": (
        "A Python integer takes the dtype of the array that it multiplies, uint64 (NEP 50)."
    ),
    "backend.py DropoutStream.reseed: other constant: 1 -> 2": (
        "Two words of the seed's state instead of one, of which the first is taken: "
        "SeedSequence.generate_state makes word after word, so the first is the same."
    ),
    "backend.py _add_runs_on_device: other operator: reach < len(ids) -> reach <= len(ids)": (
        "With a reach of all ids nothing lies that far apart: the slices are empty."
    ),
    "backend.py normal: other constant: 7 -> 8": (
        "A polynomial of a higher degree, which has all digits of float32, too."
    ),
    "backend.py normal: other constant: 18 -> 19": (
        "A polynomial of a higher degree, which has all digits of float64, too."
    ),
    "backend.py normal: swapped gradients: flat, cdf, density = (x.reshape(-1), "
    "*xp.empty((2, x.size), x.dtype)) -> flat, density, cdf = (x.reshape(-1), "
    "*xp.empty((2, x.size), x.dtype))": "Both are empty, and every number of both is written.",
    "backend.py normal: other constant: 40 -> 41": (
        "Beyond 40 the exponential is 0 in every dtype, so both results are."
    ),
    "backend.py normal: other operator: value > 0 -> value >= 0": (
        "At 0 the tail is 1/2, and so is the difference from 1."
    ),
    "training/average.py average: other constant: 0 -> 1 (2)": (
        "The first state that differs from the first one and the first that differs from the "
        "second have the same difference; and where there is one state only, nothing differs."
    ),
    "backend.py _tail_polynomial: missing call: interpolated.convert(kind=np.polynomial."
    "Polynomial).coef[::-1].tolist() -> interpolated.convert(kind=np.polynomial.Polynomial)"
    ".coef[::-1]": (
        "The same numbers. As NumPy's own they make each sum in float64 before it is rounded, "
        "which takes longer."
    ),
    "generation/sampling.py Sampling.probabilities: missing argument: np.take_along_axis(p, "
    "order, axis=-1) -> np.take_along_axis(p, order)": (
        "The last axis is the default since NumPy 2.3; before, the argument must be there."
    ),
    "generation/infilling.py Infilling._log_probabilities: other constant: 256 -> 257 (2)": (
        "How many holes are asked for at once."
    ),
    "backend.py _tail_polynomial: other constant: 0.2 -> 0.4": (
        "Interpolated for a up to 4.5 alone; beyond, where exp(-a^2 / 2) is below 4e-5, the same "
        "polynomial is still right in all digits of 1 - tail."
    ),
    "layers/alibi.py alibi: swapped operands: queries[:, None] - keys -> "
    "keys - queries[:, None]": "Of the difference the size alone is taken.",
    "layers/recurrent.py Recurrent.forward: other branch: new if count == batch else "
    "xp.concatenate([new, state[count:]]) -> xp.concatenate([new, state[count:]])": (
        "Where all are at work, nothing is appended."
    ),
    "models/masked.py MaskedLanguageModel.forward: other branch: None if places.valid.all() else "
    "attention_mask(places, places).allowed -> attention_mask(places, places).allowed": (
        "A mask that allows everything."
    ),
    "models/recurrent.py RecurrentEncoderDecoder.forward: other branch: _lengths(target) if "
    "skip_padding else None -> None": (
        "What stands after a target is computed, too, and left out afterwards, with no gradient."
    ),
    "training/recipe.py cosine_rate: other operator: step <= warmup -> step < warmup": (
        "At the end of the warm-up both formulas give the peak."
    ),
    "training/recipe.py cosine_rate: swapped operands: step - warmup -> warmup - step": (
        "The cosine of a number and of its negative are the same."
    ),
    "training/recipe.py cosine_rate: swapped operands: steps + 1 - warmup -> warmup - "
    "(steps + 1)": "The cosine of a number and of its negative are the same.",
    "generation/beam.py n_best: other constant: 2 -> 3": (
        "Three times the beam of symbols instead of twice. The best `beam` of a row's ways on, and "
        "the best `beam` of those that do not end, have nothing beyond the beam + 1 most probable "
        "symbols of a hypothesis, one of which may be the end id."
    ),
    "layers/cross_entropy.py cross_entropy: missing argument: xp.exp(shifted, out=shifted) -> "
    "xp.exp(shifted)": (
        "The exponentials in new memory instead of that of `shifted`, which is not read again."
    ),
    "layers/cross_entropy.py CrossEntropy.forward: other constant: 0 -> 1": (
        "What stands for the logits of a target that does not count may be any number, since what "
        "comes of it is multiplied with the target's share, 0."
    ),
    "layers/cross_entropy.py cross_entropy: swapped operands: losses @ share -> share @ losses": (
        "The dot product of two vectors, whose products and their order are the same."
    ),
    "training/trainer.py Trainer.__init__: other constant: 0 -> 1 (2)": (
        "Asked for after an evaluation or after resume, which set it; where 1 is the last step, "
        "the loop evaluates it before it asks."
    ),
    "training/parts.py Parts._in_turn: other operator: len(jobs) > 1 -> len(jobs) >= 1": (
        "With one job the gradient is copied, no further job is added, and it is copied back."
    ),
    "layers/attention.py SelfAttention.backward: swapped gradients: dx, dmemory = "
    "super().backward(dy) -> dmemory, dx = super().backward(dy)": (
        "The two are added, into an array that belongs to nobody else either way."
    ),
    "layers/dropout.py Dropout.backward: other branch: dx.copy() if dx is dy else dx -> "
    "dx.copy()": "A copy of an array that is a new one already.",
}
