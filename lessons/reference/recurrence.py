"""Examples of recurrent networks and their attention."""

import numpy as np

rng = np.random.default_rng(0)
x = rng.standard_normal((2, 3, 8))  # (B, T, D)
memory = rng.standard_normal((2, 5, 8))  # (B, S, M)

# %% dot_product_score
scores = dot_product_score(x, memory, scale=8**-0.5)
dquery, dkey = dot_product_score_backward(np.ones_like(scores), x, memory, scale=8**-0.5)
print(scores.shape, dquery.shape, dkey.shape)

# %% DotProductScore
query, key = rng.standard_normal((2, 1000, 64))
for layer in (DotProductScore(), DotProductScore(scaled=False)):
    print(round(layer.forward(query, key).std(), 2))

# %% multiplicative_score
weight = rng.standard_normal((8, 8))
scores, projected = multiplicative_score(x, memory, weight)
gradients = multiplicative_score_backward(np.ones_like(scores), x, memory, weight, projected)
print(scores.shape, [gradient.shape for gradient in gradients])

# %% MultiplicativeScore
print(MultiplicativeScore(8, 4, rng).forward(x, memory[..., :4]).shape)

# %% additive_score
weights = rng.standard_normal((8, 6)), rng.standard_normal((8, 6)), rng.standard_normal((6, 1))
scores, hidden = additive_score(x, memory, *weights)
gradients = additive_score_backward(np.ones_like(scores), x, memory, *weights, hidden)
print(scores.shape, hidden.shape, len(gradients))

# %% AdditiveScore
print(AdditiveScore(8, 8, 16, rng).forward(x, memory).shape)

# %% rnn
a, h, weight = np.zeros((1, 2)), np.array([[1.0, -1.0]]), 0.5 * np.eye(2)
new = rnn(a, h, weight)
print(new)
print(rnn_backward(np.ones((1, 2)), h, weight, new)[1])  # dh

# %% lstm
a = np.array([[-9.0, 9.0, 9.0, 0.0]])  # i closed; f and o open
state, weight = np.array([[0.0, 0.7]]), np.zeros((1, 4))  # [h | c]
new, gates, tanh_c = lstm(a, state, weight)
print(new)  # c stays
print(lstm_backward(np.array([[0.0, 1.0]]), state, weight, gates, tanh_c)[1])

# %% gru
a = np.array([[0.0, 9.0, 0.0]])  # r, z, n: z keeps h
state, weight = np.array([[0.7]]), np.zeros((1, 3))
new, gates, product = gru(a, state, weight)
print(new, gru_backward(np.ones((1, 1)), state, weight, gates, product)[1])

# %% RNNCell
cell = RNNCell(4, rng)
print(cell.forward(np.zeros((2, 4)), np.ones((2, 4))).shape)

# %% LSTMCell
cell = LSTMCell(4, rng)
print(cell.forward(np.zeros((2, 16)), np.zeros((2, 8))).shape)

# %% GRUCell
cell = GRUCell(4, rng)
print(cell.forward(np.zeros((2, 12)), np.ones((2, 4))).shape)
print(GRUCell(4, rng, inner_bias=True).bias.shape)

# %% Recurrent
layer = Recurrent(LSTMCell(4, rng), 8, rng)
h = layer.forward(x, lengths=np.array([3, 2]))
print(h.shape, np.array_equal(h[1, 2], h[1, 1]))  # padding leaves the state as it is

# %% additive_attention
query, keys = rng.standard_normal((2, 8)), rng.standard_normal((2, 5, 6))
query_weight, v = rng.standard_normal((8, 6)), rng.standard_normal((6, 1))
context, weights, hidden = additive_attention(query, keys, memory, None, query_weight, v)
print(context.shape, weights.sum(axis=-1))
saved = query, memory, query_weight, v, weights, hidden
print(len(additive_attention_backward(np.ones_like(context), *saved)), "gradients")

# %% AdditiveAttention
layer = AdditiveAttention(8, 6, rng)
print(layer.forward(x[:, 0], rng.standard_normal((2, 5, 6)), memory).shape)

# %% AttentionDecoder
layer = AttentionDecoder(GRUCell(4, rng), 8, 8, rng)
mask = np.ones((2, 5), dtype=bool)
print(layer.forward(x, None, np.zeros((2, 4)), memory, mask).shape)
