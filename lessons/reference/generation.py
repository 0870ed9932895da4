"""Examples of generation; the models are not trained."""

import numpy as np

letters = Vocabulary("abcde_")
sizes = dict(d_model=8, heads=2, d_ff=16, layers=1)
model = Transformer(Transformer.Config.base(len(letters), **sizes), seed=3)
source = pad_sources([letters.encode("abc"), letters.encode("de")])

# %% log_probabilities
print(np.exp(log_probabilities(np.zeros((1, 6)))))  # padding, start and unknown are not written

# %% sample
print([letters.decode(ids) for ids in sample(model, source, max_length=5, top_k=3, seed=1)])

# %% Sampling
log_p = np.log(np.array([[0.5, 0.3, 0.15, 0.05]]))
print(Sampling(top_k=2).probabilities(log_p), Sampling(temperature=0.5).probabilities(log_p))

# %% by_length
print(by_length(10, alpha=1.0), round(by_length(10, alpha=0.6), 3))

# %% greedy
print([letters.decode(ids) for ids in greedy(model, source, max_length=5)])

# %% beam_search
print([letters.decode(ids) for ids in beam_search(model, source, max_length=5)])

# %% n_best
(best, *_), _ = n_best(model, source, max_length=5, count=2)
print(letters.decode(best.ids), round(best.score, 3))

# %% Ensemble
other = Transformer(model.config, seed=1)
print(beam_search(Ensemble([model, other]), source, max_length=5))

# %% TextPipeline
pipeline = Transduction(letters, letters, max_length=5)
print(isinstance(pipeline, TextPipeline), pipeline.symbols("abc"))

# %% Transduction
pipeline = Transduction(letters, letters, max_length=5, beam=4)
print(pipeline.write(model, [["a", "b"]]))

# %% Translation
words = Vocabulary(["the", "cat", "die", "Katze"], separator=" ")
pipeline = Translation(words, words, max_length=5)
print(pipeline.symbols("the cat"), pipeline.join(["die", "Katze"]))

# %% Parsing
trees = Vocabulary(["(S", ")S", "(NP", ")NP", "XX"], separator=" ")
pipeline = Parsing(Vocabulary(["the", "dog"], separator=" "), trees, max_length=9)
print(pipeline.join(pipeline.answer_symbols("(S (NP the dog))")))
print(pipeline.encode(["(NP", "the", "dog", ")NP"]))

# %% Continuation
config = LanguageModel.Config(vocabulary=len(letters), **sizes)
pipeline = Continuation(letters, context=16)
print(pipeline.write(LanguageModel(config), [["a", "b"]], length=4, temperature=1.0))

# %% Infilling
config = MaskedLanguageModel.Config(vocabulary=len(letters), **sizes)
pipeline = Infilling(letters, hole="_", context=16)
print(pipeline.write(MaskedLanguageModel(config), [["a", "_", "c"]]))

# %% Labelling
classifier = MaskedLanguageModel(
    MaskedLanguageModel.Config(vocabulary=len(letters), relations=2, **sizes)
)
pipeline = Labelling(letters, context=16, labels=["word", "name"])
print(pipeline.write(classifier, [["a", "b"]]))

# %% Reading
config = MaskedLanguageModel.Config(vocabulary=len(letters), **sizes)
trained = Trained(MaskedLanguageModel(config), Reading(letters, context=16), {})
print(trained.embed(["abc", "cab"], normalized=True).shape)  # a vector for each text

# %% Listening
marks = "startoftranscript en translate transcribe notimestamps".split()
marked = Vocabulary([*letters.symbols[4:], *(f"<|{mark}|>" for mark in marks)])
pipeline = Listening(marked, bands=80, frames=3000, max_length=20, multilingual=True)
symbols = ["a", "<|1.20|>"]
print(pipeline.encode(symbols), pipeline.join(symbols))
