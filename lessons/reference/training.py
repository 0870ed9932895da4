"""Examples of recipes, optimizers, runs and the training loop."""

import numpy as np

rng = np.random.default_rng(0)
data, grad = np.ones(3), np.array([0.1, -20.0, 0.0])


def small_model(seed):
    config = Transformer.Config.base(10, d_model=8, heads=2, d_ff=16, layers=1)
    return Transformer(config, seed)


class Copy:
    """A task: to copy two symbols."""

    metric, higher_is_better, longest = "loss_on_copies", False, 3

    def batch(self, step):
        ids = np.random.default_rng(step).integers(4, 10, (16, 2)).tolist()
        return PairBatch.of([(row, row) for row in ids])

    def evaluate(self, model):
        return {"loss_on_copies": float(model.objective().forward(*self.batch(0).inputs))}

    def description(self):
        return {"name": "copy"}


# %% adamw
mean, square = np.zeros(3), np.zeros(3)
settings = dict(beta1=0.9, beta2=0.98, epsilon=1e-9, weight_decay=0.1)
adamw(data, grad, mean, square, step=1, rate=0.1, **settings)
print(data)  # the last weight has no gradient, and decays

# %% sgd
velocity = np.zeros(3)
for step in (1, 2):
    sgd(data, grad, velocity, step=step, rate=0.01, momentum=0.9)
print(data)

# %% lion
lion(data, grad, np.zeros(3), step=1, rate=0.01, beta1=0.9, beta2=0.99, weight_decay=0.0)
print(data)

# %% muon
matrix, gradient = np.zeros((2, 3)), rng.standard_normal((2, 3))
mean, square = np.zeros((2, 2, 3))
settings = dict(momentum=0.95, beta1=0.9, beta2=0.98, epsilon=1e-9, weight_decay=0.0)
muon(matrix, gradient, mean, square, step=1, rate=1.0, hidden=True, **settings)
print(np.linalg.svd(matrix, compute_uv=False))  # a step in every direction

# %% OPTIMIZERS
print(*OPTIMIZERS)

# %% clip_global_norm
print(round(clip_global_norm(grad, max_norm=1.0), 3), grad)

# %% linear_rate
print([round(linear_rate(step, 100, d_model=64, warmup=10), 5) for step in (1, 10, 55, 100)])

# %% cosine_rate
print([round(cosine_rate(step, 100, d_model=64, warmup=10), 5) for step in (1, 10, 55, 100)])

# %% DECAYS
print(*DECAYS)

# %% Recipe
recipe = Recipe(optimizer="adamw", warmup=100, decay="linear", clip_norm=1.0)
optimizer = recipe.make_optimizer(pack(small_model(seed=0)))
print(round(recipe.learning_rate(step=100, steps=1000, d_model=8), 5), optimizer.steps)

# %% draw_losses
train(small_model(seed=0), Copy(), "run", 20, verbose=False, parts=1)
print(draw_losses("run").axes[1].get_xlabel())  # a notebook shows the figure

# %% save_model
save_model("model.safetensors", small_model(seed=0), note="not trained")
model, metadata = load_model("model.safetensors")
print(type(model).__name__, metadata["note"])

# %% load_model
save_model("model.safetensors", small_model(seed=0))
model, _ = load_model("model.safetensors")
print(model.config.d_model)

# %% average
first, second = small_model(seed=0), small_model(seed=1)
first.load_state_dict(average([first.state_dict(), second.state_dict()]))
print(len(first.state_dict()), "arrays, each the mean of two")

# %% Task
task: Task = Copy()
print(task.batch(step=1).weight, task.description())

# %% Schedule
best = train(small_model(seed=0), Copy(), "run", Schedule(steps=6, evaluate_every=3), parts=1)
print(sorted(best))

# %% train
recipe = Recipe(warmup=20, factor=0.5)
best = train(small_model(seed=0), Copy(), "run", 40, recipe, parts=1)
print(best["step"], round(best["loss_on_copies"], 2))
