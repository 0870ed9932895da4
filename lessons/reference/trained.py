"""Examples of loading a model; it was saved without training."""

from pathlib import Path

digits = Vocabulary("0123456789", separator=" ")
config = Transformer.Config.base(len(digits), d_model=8, heads=2, d_ff=16, layers=1)
model, pipeline = Transformer(config), Transduction(digits, digits, max_length=4)
save_model("model.safetensors", model, text=pipeline.description())

# %% Attention
attention = load("model.safetensors").attention("1 2 3")
print(isinstance(attention, Attention), attention.kinds)
print(attention["encoder self_attention"].shape)  # (layers, heads, read, read)

# %% Trained
trained = load("model.safetensors")
(log_p,) = trained.score([("1 2 3", "3 2 1")])
print(isinstance(trained, Trained), round(log_p, 3))

# %% load
reverse = load("model.safetensors")
print(reverse(["1 2 3", "4 5"]))  # a list of texts gives a list of answers

# %% is_published
save_published(Path("export"), model, {})
print(is_published(Path("export")), is_published(Path(".")))

# %% load_published
save_published(Path("export"), model, {})
loaded, metadata = load_published(Path("export"))
print(type(loaded).__name__, metadata["published"]["model_type"])

# %% save_published
print(save_published(Path("export"), model, {}))
print(sorted(path.name for path in Path("export").iterdir()))

# %% loss_curve
lines = [dict(step=step, loss=1 / step, rate=1e-3, gradient_norm=1.0) for step in range(1, 9)]
loss_curve(Path("loss.png"), lines, "exact_match", title="A run")
print(Path("loss.png").exists())
