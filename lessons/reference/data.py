"""Examples of vocabularies and batches."""

import wave

import numpy as np

rng = np.random.default_rng(0)
pairs = [([4, 5, 6], [6, 5, 4]), ([7, 8], [8, 7]), ([9], [9])]  # (source, target) ids

# %% PADDING
print(PADDING, START, END, UNKNOWN)

# %% SpecialIds
special = SpecialIds(padding=0, start=1, end=2)
print(special.before_end([7, 8, 2, 0]), special.real(np.array([[7, 2, 0]])))

# %% Vocabulary
letters = Vocabulary("abc")
ids = letters.encode("cab?")
print(len(letters), ids, letters.decode(ids))

# %% Subwords
subwords = Subwords.train(20 * ["low lower lowest", "new newer newest"], 24)
print(subwords.split("lowest newer"))

# %% read_wav
with wave.open("tone.wav", "wb") as file:
    file.setparams((1, 2, 8000, 0, "NONE", ""))
    file.writeframes((9000 * np.sin(np.arange(4000))).astype("<i2").tobytes())
print(read_wav("tone.wav").shape)  # 8,000 samples a second become 16,000

# %% mel_filters
filters = mel_filters(80)
print(filters.shape, filters.sum(axis=0)[-3:] * 40)  # 40 Hz from one frequency to the next

# %% log_mel
features = log_mel(rng.standard_normal(16_000), bands=80)
print(features.shape, round(features.max() - features.min(), 2))

# %% pad
print(pad([[4, 5, 6], [7]]))

# %% pad_sources
print(pad_sources([[4, 5, 6], [7]]))

# %% Batch
batch = PairBatch.of(pairs)
print(isinstance(batch, Batch), [part.weight for part in batch.split(2)])

# %% PairBatch
batch = PairBatch.of(pairs[:2])
print(batch.source, batch.target_in, batch.target_out, sep="\n\n")

# %% EpochBatches
batches = EpochBatches(pairs, batch_size=2, seed=0)
print(batches.count(), "batches in an epoch")
print(batches(1).source)

# %% TokenBatches
batches = TokenBatches(pairs, max_tokens=6, seed=0)
print([batches(step).source.shape for step in (1, 2)])
