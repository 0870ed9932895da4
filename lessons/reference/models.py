"""Examples of the kinds of models."""

import numpy as np

rng = np.random.default_rng(0)
source, target = np.array([[4, 5, 6, 2]]), np.array([[1, 6, 5, 4]])  # ids (B, S), (B, T)
sizes = dict(d_model=8, heads=2, d_ff=16, layers=2)

# %% TowerConfig
config = TowerConfig(**sizes, norm="pre", normalization="rms", activation="swiglu")
print(type(config.encoder(rng)).__name__, type(config.new_norm(8)).__name__)

# %% Model
model = LanguageModel(LanguageModel.Config(vocabulary=10, **sizes))
print(isinstance(model, Model), model.parameter_counts())

# %% Objective
model = Transformer(Config.base(10, **sizes))
objective = model.objective(label_smoothing=0.1)
batch = PairBatch.of([([4, 5, 6], [6, 5, 4])])
loss = objective.forward(*batch.inputs)
objective.backward()
print(isinstance(objective, Objective), round(float(loss), 4))

# %% Config
print(Config.base(37_000).d_model, Config.big(37_000).d_model)

# %% Transformer
model = Transformer(Transformer.Config.base(10, **sizes), seed=0)
logits = model.forward(source, target)
model.backward(np.ones_like(logits))
print(logits.shape, f"{model.parameter_counts()['total']:,} parameters")

# %% LanguageModel
model = LanguageModel(LanguageModel.Config(vocabulary=10, **sizes))
print(model.forward(source).shape)

# %% RecurrentEncoderDecoder
config = RecurrentEncoderDecoder.Config(source_vocabulary=10, target_vocabulary=10, d_model=8)
print(RecurrentEncoderDecoder(config).forward(source, target).shape)

# %% MaskedLanguageModel
model = MaskedLanguageModel(MaskedLanguageModel.Config(vocabulary=10, **sizes))
with inference():
    print(model.forward(source, places=np.array([1, 2])).shape)

# %% VisionTransformer
config = VisionTransformer.Config(height=8, width=8, channels=1, classes=10, **sizes)
print(VisionTransformer(config).forward(np.zeros((1, 8, 8, 1), np.float32)).shape)

# %% SpeechTransformer
config = SpeechTransformer.Config(vocabulary=10, bands=80, frames=100, **sizes)
sounds = np.zeros((len(target), 100, 80), np.float32)
print(SpeechTransformer(config).forward(sounds, target).shape)

# %% DualEncoder
images = VisionTransformer.Config(height=8, width=8, channels=3, **sizes)
texts = LanguageModel.Config(vocabulary=10, head=False, **sizes)
model = DualEncoder(DualEncoder.Config(texts=texts, images=images, width=6))
print(model.forward(np.zeros((3, 8, 8, 3), np.float32), source).shape)

# %% MODELS
print(*MODELS)
