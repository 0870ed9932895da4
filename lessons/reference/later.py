"""Examples of formulas and layers from later work."""

import numpy as np

rng = np.random.default_rng(0)
x = rng.standard_normal((2, 3, 8))  # (B, T, D)
causal = Reach(Places.without_padding(2, 3), causal=True)
heads = rng.standard_normal((2, 2, 3, 4))  # (B, H, T, K)

# %% gelu
y, slope = gelu(np.array([-2.0, 0.0, 2.0]))
print(y, gelu_backward(np.ones(3), slope))

# %% GELU
print(GELU().forward(np.array([-2.0, 0.0, 2.0])))

# %% gelu_tanh
exact, _ = gelu(x)
approximate, slope = gelu_tanh(x)
print(f"{np.abs(approximate - exact).max():.1e}")

# %% GELUTanh
print(GELUTanh().forward(np.array([-2.0, 0.0, 2.0])))

# %% swish
y, sigmoid_x = swish(np.array([-2.0, 0.0, 2.0]))
print(y, swish_backward(np.ones(3), y, sigmoid_x))

# %% Swish
print(Swish().forward(np.array([-2.0, 0.0, 2.0])))

# %% QuickGELU
print(QuickGELU().forward(np.array([-2.0, 0.0, 2.0])))

# %% swiglu
y, sigmoid_gate = swiglu(x)
print(y.shape, swiglu_backward(np.ones_like(y), x, sigmoid_gate).shape)

# %% SwiGLU
inner, outer = Linear(8, 2 * 20, rng, bias=False), Linear(20, 8, rng, bias=False)
network = FeedForward(8, 20, rng, inner=inner, activation=SwiGLU(), outer=outer)
print(network.forward(x).shape)

# %% geglu
y, gelu_gate, slope = geglu(x)
print(y.shape, geglu_backward(np.ones_like(y), x, gelu_gate, slope).shape)

# %% GEGLU
print(GEGLU().forward(x).shape)

# %% tanh
y = tanh(np.array([-2.0, 0.0, 2.0]))
print(y, tanh_backward(np.ones(3), y))

# %% Tanh
print(Tanh().forward(np.array([-2.0, 0.0, 2.0])))

# %% rms_norm
y, x_hat, rrms = rms_norm(x, np.ones(8), epsilon=1e-5)
print((y**2).mean(axis=-1))
dx, dgamma = rms_norm_backward(x, x_hat, rrms, np.ones(8))
print(f"{np.abs(dx).max():.1e}")  # y hardly changes if x is rescaled

# %% RMSNorm
print((RMSNorm(8).forward(5 * x) ** 2).mean(axis=-1))

# %% cap
y = cap(np.array([0.5, 5.0, 500.0]), 3.0)
print(y, cap_backward(np.ones(3), y, 3.0))

# %% Cap
print(Cap(50.0).forward(np.array([1.0, 40.0, 400.0])))

# %% OutputNormResidual
layer = OutputNormResidual(FeedForward(8, 32, rng), 8, 0.1)
print(layer.forward(x).shape)

# %% SandwichResidual
layer = SandwichResidual(FeedForward(8, 32, rng), 8, 0.1, RMSNorm(8), RMSNorm(8))
print([name for name in layer.named_parameters() if "norm" in name])

# %% layer_scale
y = layer_scale(x, np.arange(8.0))
dx, dscale = layer_scale_backward(np.ones_like(y), x, np.arange(8.0))
print(dx[0, 0], np.allclose(dscale, x.sum(axis=(0, 1))))

# %% LayerScale
print(np.array_equal(LayerScale(8).forward(x), 0.1 * x))

# %% ScaledResidual
layer = ScaledResidual(FeedForward(8, 32, rng), 8, 0.1, RMSNorm(8))
print(layer.output_norm.scale.data)

# %% ParallelLayer
parts = SelfAttention(8, 2, rng), FeedForward(8, 32, rng)
layer = ParallelLayer(*(PreNormResidual(part, 8, 0.1) for part in parts), one_norm=True)
print(layer.forward(x).shape)

# %% PreNormResidual
layer = PreNormResidual(FeedForward(8, 32, rng), 8, 0.1)
y = layer.forward(x)
print(y.shape, layer.backward(np.ones_like(y)).shape)

# %% NormedEncoder
parts = SelfAttention(8, 2, rng), FeedForward(8, 32, rng)
layer = EncoderLayer(*(PreNormResidual(part, 8, 0.1) for part in parts))
print(NormedEncoder([layer], LayerNorm(8)).forward(x).std(axis=-1)[0])

# %% NormedDecoder
parts = SelfAttention(8, 2, rng), CrossAttention(8, 2, rng), FeedForward(8, 32, rng)
layer = DecoderLayer(*(PreNormResidual(part, 8, 0.1) for part in parts))
print(NormedDecoder([layer], LayerNorm(8)).forward(x, causal, x, None).std(axis=-1)[0])

# %% NoPositions
print(np.array_equal(NoPositions().forward(x), x))

# %% UnscaledEmbedding
layer = UnscaledEmbedding(10, 8, rng)
print(np.array_equal(layer.forward(np.array([[4]]))[0, 0], layer.weight.data[4]))

# %% RichInputEmbedding
symbols, segments = UnscaledEmbedding(10, 8, rng), UnscaledEmbedding(2, 8, rng)
layer = RichInputEmbedding(symbols, NoPositions(), segments=segments, norm=LayerNorm(8))
print(layer.forward(np.array([[4, 5, 6]]), segments=np.array([[0, 0, 1]])).shape)

# %% CappedOutputProjection
layer = CappedOutputProjection(Embedding(10, 8, rng).weight, 2.0)
print(np.abs(layer.forward(100 * x)).max())

# %% BiasedOutputProjection
layer = BiasedOutputProjection(Embedding(10, 8, rng).weight)
print(layer.forward(x).shape, layer.bias.shape)

# %% Chain
layer = Chain(GELU(), Dropout(0.1))
print(layer.forward(x).shape)

# %% route
weights, chosen = route(np.array([[1.0, 3.0, 2.0, 0.0]]), count=2)
print(weights, chosen)
print(route_backward(np.array([[0.0, 1.0, 0.0, 0.0]]), weights))

# %% balance
scores = np.array([[1.0, 3.0], [2.0, 1.0]])
_, chosen = route(scores, count=1)
loss, probabilities, shares = balance(scores, chosen)
print(round(loss, 3), shares)  # each expert gets one of the two rows
print(balance_backward(1.0, probabilities, shares))

# %% Experts
experts = [FeedForward(8, 16, rng) for _ in range(4)]
layer = Experts(experts, 8, rng, count=2)
y = layer.forward(x)
print(y.shape, layer.backward(np.ones_like(y)).shape)

# %% RoutedEncoderLayer
config = Transformer.Config.base(
    10, d_model=8, heads=2, d_ff=16, layers=1, feed_forwards=("experts",)
)
print(isinstance(config.encoder_layer(rng), RoutedEncoderLayer))

# %% RoutedDecoderLayer
config = Transformer.Config.base(
    10, d_model=8, heads=2, d_ff=16, layers=1, feed_forwards=("experts",)
)
print(isinstance(config.decoder_layer(rng), RoutedDecoderLayer))

# %% BiasedHeads
layer = BiasedHeads(8, 2, 4, rng)
print(layer.forward(x, causal.queries).shape, layer.bias.shape)

# %% QueryKeyHeads
layer = QueryKeyHeads(8, 2, 4, rng, norm=RMSNorm(4), rotary=Rotary())
queries = layer.forward(x, causal.queries)
print((queries**2).mean(axis=-1)[0])  # QK-norm bounds the scores

# %% rotary_turns
print(rotary_turns(3, 4))

# %% rotary
turns = rotary_turns(3, 4)
y = rotary(heads, turns)
print(np.allclose(rotary_backward(y, turns), heads))  # the gradient is turned back

# %% Rotary
y = Rotary().forward(np.tile(heads[0, 0, 0], (6, 1)))  # the same vector at 6 positions
print(round(y[1] @ y[3], 3), round(y[2] @ y[4], 3))  # a score depends only on the distance

# %% alibi
print(alibi(np.array([0.5]), np.arange(3), np.arange(3))[0])

# %% ALiBi
positions = np.arange(3)
print(ALiBi(heads=2).forward(positions, positions, like=x))

# %% RelativePositions
positions = np.arange(3)
layer = RelativePositions(heads=2)
print(layer.forward(positions, positions).shape)

# %% BiasedAttention
bias = np.zeros((2, 3, 3))
print(BiasedAttention().forward(heads, heads, heads, None, bias).shape)

# %% attention_in_tiles
tiles = [*TiledAttention(rows=2).tiles(heads, heads, causal)]
output, log_sums = attention_in_tiles(heads, heads, heads, tiles, small=True)
plain = ScaledDotProductAttention().forward(heads, heads, heads, causal)
print(len(tiles), np.allclose(output, plain))
saved = heads, heads, heads, output, log_sums
print(len(attention_in_tiles_backward(np.ones_like(output), *saved, tiles)), "gradients")

# %% TiledAttention
near = TiledAttention(Window(window=2))
layer = SelfAttention(8, 2, rng, attention=near)
print(layer.forward(x, causal).shape)

# %% attention_weights
layer = SelfAttention(8, 2, rng)
layer.forward(x, causal)
print(attention_weights(layer)[0, 0])

# %% FullPattern
positions = np.arange(3)
print(FullPattern().mask(positions, positions), FullPattern().is_local)

# %% Window
positions = np.arange(5)
print(Window(window=2).mask(positions, positions).astype(int))

# %% GlobalWindow
positions = np.arange(5)
print(GlobalWindow(window=2, global_tokens=1).mask(positions, positions).astype(int))

# %% Strided
positions = np.arange(5)
print(Strided(stride=2).mask(positions, positions, heads=2).astype(int))

# %% Mixer
print(issubclass(LinearAttention, Mixer), LinearAttention.looks_ahead, StateSpace.looks_ahead)

# %% positive_features
phi = positive_features(np.array([-1.0, 2.0]))
print(phi, positive_features_backward(np.ones(2), phi))

# %% full_sums
y, state = full_sums(heads, heads, heads)
print(y.shape, state.shape)
print([g.shape for g in full_sums_backward(np.ones_like(y), heads, heads, heads, state)])

# %% normalizers
phi = positive_features(heads)
total, sums = normalizers(phi, phi, causal=True, start=0.0)
print(total.shape, [g.shape for g in normalizers_backward(total, phi, sums, causal=True)])

# %% LinearAttention
layer = LinearAttention(8, 2, rng)
y = layer.forward(x, causal)
print(y.shape, layer.backward(np.ones_like(y)).shape)

# %% convolution
weight, bias, before = np.ones((2, 8)), np.zeros(8), np.zeros((2, 1, 8))
y, x_with_past = convolution(x, weight, bias, before)
print(np.allclose(y[:, 1], x[:, 0] + x[:, 1]))
print(convolution_backward(np.ones_like(y), weight, x_with_past)[0].shape)

# %% Convolution
print(Convolution(8, rng).forward(x).shape)

# %% selective_scan
step, rate, skip = np.ones((2, 2, 3)), np.ones(2), np.zeros(2)
write = read = np.ones((2, 1, 3, 1))
y, before_skip, states, last = selective_scan(heads, step, rate, write, read, skip)
print(np.allclose(y[:, :, 1], heads[:, :, 1] + np.exp(-1) * heads[:, :, 0]))
inputs = heads, step, rate, write, read, skip
print(selective_scan_backward(np.ones_like(y), *inputs, before_skip, states)[0].shape)

# %% softplus
print(softplus(np.array([-5.0, 0.0, 5.0])), softplus_backward(np.ones(1), np.zeros(1)))

# %% StateSpace
layer = StateSpace(8, 2, rng)
y = layer.forward(x, causal)
print(y.shape, layer.backward(np.ones_like(y)).shape)

# %% running_sums
y, states, last = running_sums(heads, heads, heads)
print(y.shape, last.shape)
gradients = running_sums_backward(np.ones_like(y), heads, heads, heads, None, y, states)
print([gradient.shape for gradient in gradients if gradient is not None])

# %% Checkpointed
layer = Checkpointed(FeedForward(8, 32, rng))
y = layer.forward(x)
print(y.shape, layer.backward(np.ones_like(y)).shape)

# %% divergence
p, q = (softmax(scores) for scores in (x[0], x[1]))
mean, means = divergence(p, q, np.log(p / q), count=3)
print(round(mean, 6))
print(len(divergence_backward(1.0, p, q, np.log(p / q), 3, means)), "gradients")

# %% Divergence
layer = Divergence()
print(layer.forward(x, x), layer.forward(x, -x) > 0)

# %% split_patches
images = np.arange(16.0).reshape(1, 4, 4)
patches = split_patches(images, size=2)
print(patches[0])
print(np.array_equal(split_patches_backward(patches, images.shape, size=2), images))

# %% Patches
print(Patches(size=2).forward(np.zeros((1, 8, 8, 3))).shape)

# %% prepend
y = prepend(x, np.zeros(8))
dx, dtoken = prepend_backward(np.ones_like(y))
print(y.shape, dx.shape, dtoken)

# %% ClassToken
print(ClassToken(8, rng).forward(x).shape)

# %% token_and_mean
y = token_and_mean(x)
print(x.shape, y.shape, token_and_mean_backward(np.ones_like(y), x.shape[1] - 1)[0, :, 0])

# %% TokenAndMean
print(TokenAndMean().forward(x).shape)

# %% windows
y = windows(x, width=3, stride=2)
print(x.shape, y.shape, np.array_equal(y[:, 1, 8:16], x[:, 2]))
print(windows_backward(np.ones_like(y), x.shape, width=3, stride=2)[0, :, 0])

# %% Windows
print(Windows(3, stride=2).forward(x).shape)

# %% SoundEmbedding
positions = LearnedPositions(1500, 8, rng)
print(SoundEmbedding(80, 8, positions, rng).forward(np.zeros((1, 100, 80))).shape)

# %% unit
y, lengths = unit(np.array([[3.0, 4.0]]))
print(y, lengths, unit_backward(np.array([[4.0, -3.0]]), y, lengths))

# %% Similarity
print(Similarity().forward(np.eye(3), np.eye(3)[:2]))

# %% pick
places = np.array([1, 5])
y = pick(x, places)
print(np.array_equal(y[1], x[1, 2]), pick_backward(y, places, x.shape).shape)

# %% Pick
print(Pick().forward(x, np.array([1, 5])).shape)

# %% NORMALIZATIONS
print(*NORMALIZATIONS)

# %% ACTIVATIONS
ACTIVATIONS["mine"] = GELU  # "mine" is now a value of a config's `activation`
config = Transformer.Config.base(10, activation="mine")
print(type(config.new_activation()).__name__)
del ACTIVATIONS["mine"]

# %% FEED_FORWARDS
print(*FEED_FORWARDS)

# %% POSITIONS
print(*POSITIONS)

# %% POSITIONS_IN_ATTENTION
print(*POSITIONS_IN_ATTENTION)

# %% ATTENTIONS
print(*ATTENTIONS)

# %% MIXERS
print(*MIXERS)
