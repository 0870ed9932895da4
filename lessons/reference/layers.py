"""Examples of parameters, layers and the functions below them."""

import numpy as np

rng = np.random.default_rng(0)
x = rng.standard_normal((2, 3, 4))  # (B, T, D)

# %% InputError
try:
    Linear(8, 2, rng).forward(x)
except InputError as error:
    print(error)


# %% Array
def length(vector: Array) -> float:
    return float(np.sqrt(vector @ vector))


print(length(np.array([3.0, 4.0])))

# %% Parameter
gain = Parameter([1.0, 2.0])
gain.grad += [0.5, 0.25]
gain.data[...] = 3
print(gain.data, gain.grad)

# %% mode
dropout = Dropout(0.5)
with mode(training=True):
    print(dropout.forward(np.ones(8)))
with mode(training=False):
    print(dropout.forward(np.ones(8)))

# %% inference
layer = Linear(4, 2, rng)
with inference():
    layer.forward(x)
print(layer.pending(), "records wait for backward")


# %% Layer
class Double(Layer):
    def forward(self, x):
        return 2 * x

    def backward(self, dy):
        return 2 * dy


print(Double().forward(x[0, 0]), Double().backward(np.ones(4)))

# %% FlatParameters
parameters = pack(Linear(4, 2, rng))
print(isinstance(parameters, FlatParameters), parameters.data.shape)

# %% pack
layer = Linear(4, 2, rng)
parameters = pack(layer, np.float64)
parameters.data[...] = 0  # the weight is a view of this vector
print(layer.weight.data.dtype, layer.weight.data.ravel())

# %% array_module
print(array_module(x).__name__)


# %% intercept
def look(name, forward, *inputs):
    y = forward(*inputs)
    print(name, y.shape)
    return y


inner, activation = Linear(4, 8, rng), ReLU()
with intercept({"inner": inner, "activation": activation}, "forward", look):
    Chain(inner, activation).forward(x)
