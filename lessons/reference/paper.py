"""Examples of the paper's formulas and layers."""

import math

import numpy as np

rng = np.random.default_rng(0)
x = rng.standard_normal((2, 3, 8))  # (B, T, D)
memory = rng.standard_normal((2, 5, 8))  # (B, S, D)

# %% linear
weight, bias = np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([10.0, 20.0])
print(linear(np.array([[1.0, 1.0]]), weight, bias))
dx, dweight, dbias = linear_backward(np.ones((1, 2)), np.array([[1.0, 1.0]]), weight, bias)
print(dx, dbias)

# %% Linear
layer = Linear(8, 2, rng)
print(layer.forward(x).shape, layer.backward(np.ones((2, 3, 2))).shape)
print(layer.bias.grad)  # a 1 from each of the 6 positions

# %% softmax
weights = softmax(np.array([1.0, 2.0, 3.0]), mask=np.array([True, True, False]))
print(weights)
print(softmax_backward(np.array([1.0, 0.0, 0.0]), weights))

# %% Softmax
weights = Softmax().forward(x)
print(weights.sum(axis=-1))

# %% padding_mask
print(padding_mask(np.array([[True, True, False]])).shape)

# %% causal_mask
print(causal_mask(4)[0, 0].astype(int))

# %% Places
places = Places(np.array([[True, True, False], [True, False, False]]))
print(places.real, places.all_valid)

# %% Reach
places = Places(np.array([[True, True, False]]))
print(Reach(places, causal=True).mask()[0, 0].astype(int))

# %% ExplicitMask
places = Places.without_padding(2, 3)
reach = ExplicitMask(np.eye(3, dtype=bool), places, places)
print(np.array_equal(ScaledDotProductAttention().forward(x, x, x, reach.mask()[0]), x))

# %% Memory
past, layer = Memory(room=3), SelfAttention(8, 2, rng)
with inference():
    for position in range(3):
        y = layer.forward(x[:, [position]], None, past)  # one position at a time
        past.advance(1)
    print(np.allclose(y, layer.forward(x)[:, [2]]))

# %% State
model = Transformer(Transformer.Config.base(10, d_model=8, heads=2, d_ff=8, layers=1))
with inference():
    state = model.start(pad_sources([[4, 5, 6]]), length=5)
    print(isinstance(state, State), state.ids, model.step(state.ids, state).shape)

# %% scaled_dot_product_attention
output, weights = scaled_dot_product_attention(x, memory, memory)
print(output.shape, weights.sum(axis=-1)[0])
gradients = scaled_dot_product_attention_backward(np.ones_like(output), x, memory, memory, weights)
print([gradient.shape for gradient in gradients])

# %% ScaledDotProductAttention
layer = ScaledDotProductAttention()
y = layer.forward(x, x, x, causal_mask(3)[0])
print(np.array_equal(y[:, 0], x[:, 0]))  # the first position sees only itself

# %% split_heads
print(split_heads(x, heads=2).shape)

# %% merge_heads
print(np.array_equal(merge_heads(split_heads(x, heads=2)), x))

# %% Heads
print(Heads(8, heads=2, size=4, rng=rng).forward(x, Places.without_padding(2, 3)).shape)

# %% MultiHeadAttention
layer = MultiHeadAttention(8, 2, rng)
y = layer.forward(x, memory)
dx, dmemory = layer.backward(np.ones_like(y))
print(y.shape, dx.shape, dmemory.shape)

# %% SelfAttention
layer = SelfAttention(8, 2, rng)
y = layer.forward(x, Reach(Places.without_padding(2, 3), causal=True))
print(y.shape, layer.backward(np.ones_like(y)).shape)

# %% CrossAttention
layer = CrossAttention(8, 2, rng)
print(layer.forward(x, memory).shape)

# %% relu
y, positive = relu(np.array([-1.0, 2.0]))
print(y, relu_backward(np.array([5.0, 5.0]), positive))

# %% ReLU
layer = ReLU()
print(layer.forward(np.array([-1.0, 2.0])), layer.backward(np.array([5.0, 5.0])))

# %% FeedForward
layer = FeedForward(8, 32, rng)
y = layer.forward(x)
print(y.shape, layer.backward(np.ones_like(y)).shape)

# %% embed
weight, dweight = np.eye(3, 4), np.zeros((3, 4))
vectors = embed(np.array([[2, 2, 0]]), weight)
print(vectors)
embed_backward(vectors, np.array([[2, 2, 0]]), dweight)
print(dweight)  # id 2 occurs twice

# %% Embedding
layer = Embedding(10, 8, rng)
vectors = layer.forward(np.array([[4, 5], [6, 0]]))
layer.backward(np.ones_like(vectors))
print(vectors.shape, np.flatnonzero(layer.weight.grad.any(axis=1)))

# %% output_projection
weight = rng.standard_normal((10, 8))  # (V, D)
logits = output_projection(x, weight)
dx, dweight = output_projection_backward(np.ones_like(logits), x, weight)
print(logits.shape, dx.shape, dweight.shape)

# %% OutputProjection
embedding = Embedding(10, 8, rng)
output = OutputProjection(embedding.weight)  # tied: one weight for both (3.4)
print(output.forward(x).shape)

# %% InputEmbedding
layer = InputEmbedding(Embedding(10, 8, rng), SinusoidalPositions(), p_drop=0.1)
print(layer.forward(np.array([[4, 5, 6]])).shape)

# %% sinusoidal_table
print(sinusoidal_table(3, 4))

# %% SinusoidalPositions
print(SinusoidalPositions().forward(np.zeros((1, 3, 4)))[0])

# %% LearnedPositions
layer = LearnedPositions(max_length=10, d_model=8, rng=rng)
print(layer.forward(x).shape)

# %% layer_norm
y, x_hat, rstd = layer_norm(x, np.ones(8), np.zeros(8), epsilon=1e-5)
print(np.allclose(y.mean(axis=-1), 0), y.std(axis=-1)[0])
dx, dgamma, dbeta = layer_norm_backward(np.ones_like(y), x_hat, rstd, np.ones(8))
print(np.allclose(dx, 0))  # if all values of x shift, y stays the same

# %% LayerNorm
layer = LayerNorm(8)
y = layer.forward(x)
print(y.shape, layer.backward(np.ones_like(y)).shape)

# %% dropout
keep = np.array([0.0, 2.0, 2.0, 0.0])  # p_drop is 0.5
print(dropout(np.array([1.0, 2.0, 3.0, 4.0]), keep), dropout_backward(np.ones(4), keep))

# %% Dropout
print(Dropout(0.5).forward(np.ones((2, 6))))

# %% Residual
layer = Residual(FeedForward(8, 32, rng), 8, 0.1)
y = layer.forward(x)
print(y.shape, y.std(axis=-1)[0])  # LayerNorm comes last

# %% EncoderLayer
attention, network = SelfAttention(8, 2, rng), FeedForward(8, 32, rng)
layer = EncoderLayer(Residual(attention, 8, 0.1), Residual(network, 8, 0.1))
print(layer.forward(x).shape)

# %% Encoder
config = Transformer.Config.base(10, d_model=8, heads=2, d_ff=32, layers=2)
stack = Encoder([config.encoder_layer(rng), config.encoder_layer(rng)])
print(stack.forward(x).shape)

# %% DecoderLayer
parts = SelfAttention(8, 2, rng), CrossAttention(8, 2, rng), FeedForward(8, 32, rng)
layer = DecoderLayer(*(Residual(part, 8, 0.1) for part in parts))
y = layer.forward(x, causal_mask(3), memory, None)
dx, dmemory = layer.backward(np.ones_like(y))
print(dx.shape, dmemory.shape)

# %% Decoder
config = Transformer.Config.base(10, d_model=8, heads=2, d_ff=32, layers=2)
stack = Decoder([config.decoder_layer(rng), config.decoder_layer(rng)])
print(stack.forward(x, causal_mask(3), memory, None).shape)

# %% cross_entropy
logits, targets, share = np.zeros((2, 4)), np.array([1, 3]), np.full(2, 0.5)
loss, exponentials, total = cross_entropy(logits, targets, share, smoothing=0.0)
print(round(loss, 6), round(math.log(4), 6))
print(cross_entropy_backward(share, exponentials, total, targets, smoothing=0.0))

# %% CrossEntropy
layer = CrossEntropy(smoothing=0.1)
print(round(layer.forward(np.zeros((2, 4)), np.array([1, 3])), 6))
print(layer.backward())

# %% adam
data, grad, mean, square = np.ones(2), np.array([0.1, -20.0]), np.zeros(2), np.zeros(2)
adam(data, grad, mean, square, step=1, rate=0.01, beta1=0.9, beta2=0.98, epsilon=1e-9)
print(data)  # the first step is as long as the rate, whatever the gradient

# %% Adam
layer = Linear(8, 2, rng)
optimizer = Adam(pack(layer))
layer.forward(x.astype(np.float32))
layer.backward(np.ones((2, 3, 2), np.float32))
optimizer.step(rate=0.01)
print(layer.bias.data)

# %% warmup_rate
print([round(warmup_rate(step, d_model=512), 6) for step in (1, 4000, 100_000)])

# %% length_penalty
print([round(length_penalty(length, alpha=0.6), 3) for length in (1, 10, 20)])

# %% Hypothesis
short, long = Hypothesis(-1.5, [4, 5]), Hypothesis(-1.2, [4, 5, 6])
print(max(short, long, key=lambda hypothesis: hypothesis.score).ids)
