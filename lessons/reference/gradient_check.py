"""Examples of checking gradients."""

import numpy as np

rng = np.random.default_rng(0)
x = rng.standard_normal((2, 3, 8))  # (B, T, D)


class Doubled(Layer):
    """A layer with a mistake: the slope of 2 x is 2."""

    def forward(self, x):
        return 2 * x

    def backward(self, dy):
        return 3 * dy


class Positive(Layer):
    """A layer with a branch."""

    def forward(self, x):
        self.save(positive=x > 0)
        return np.where(x > 0, x, 0)

    def backward(self, dy):
        return np.where(self.pop_saved()["positive"], dy, 0)


# %% TOLERANCE
print(all(row.error < TOLERANCE for row in check(LayerNorm(8), [x])))

# %% Row
(row,) = check(Doubled(), [x])
print(isinstance(row, Row), row.passed, round(row.explicit / row.numerical, 6))

# %% GradientCheck
gradients = GradientCheck(Linear(8, 2, rng), [x])
print(*gradients.parameters)

# %% check
for row in check(Doubled(), [x]):
    print(row)

# %% untaken_branches
print(*untaken_branches(Positive(), [np.abs(x)]), sep="\n")
