"""The opening of the home page: the translator of lesson 11 reads, writes and learns.

page/opening.js draws it. All that it draws is computed in the page by recorded lines of numformer:
the encoder and the decoder as lesson 11 has them, and `learn`, one training step.
"""

import json

from lessons.kit.recording import Recording
from lessons.lesson_11 import small, translating
from numformer import CrossEntropy, Transformer
from numformer.backend import array_module
from numformer.data.vocabulary import END, PADDING
from numformer.interception import intercept
from numformer.layer import FlatParameters, mode
from numformer.optimization.optimizers import Adam

ENGLISH = "a woman is dancing with a bear."
GERMAN = "eine frau tanzt mit einem bären."
CLOSING = (
    "“Krawatten” are neckties: she dances with neckties! The right German stands below. Press Back "
    "to see which numbers are to blame, then Train."
)
RATE = 0.0003  # of Adam


def learn(weights, mean, square, steps, source, target, wanted) -> dict:
    """One step of Adam for a pair: the decoder reads `target` and has to say `wanted`.

    `weights`, `mean` and `square` (N,) and `steps` (1,) are the state before the step. The ids
    (LENGTH,) are padded. Besides encode's and decode's arrays, those with "back" say how much
    gradient flows: through each attention weight, how long the gradient is that reaches the value
    on its way, A_ts |dO_t|; through each stream, the gradient itself.
    """
    model, xp = Transformer(small.config("translator")), array_module(weights)
    flat = FlatParameters(
        weights.copy(), xp.zeros_like(weights), [*model.named_parameters().values()]
    )
    optimizer = Adam(flat)
    for name, vector in {"mean": mean, "square": square}.items():
        optimizer.state[name][...] = vector
    encoded = small.encode(model, source)
    decoded = small.decode(model, source, encoded["memory"], target)
    objective = CrossEntropy()
    loss = objective.forward(decoded["logits"], wanted, xp.asarray(wanted) != PADDING)
    arrays = encoded | decoded | {"loss": loss}
    attentions = {n: layer.attention for n, layer in enumerate(translating.attentions(model))}
    lengths = {}

    def around(n, backward, doutput):
        lengths[n] = (doutput * doutput).sum(axis=-1)[0] ** 0.5  # (H, T)
        return backward(doutput)

    with (
        intercept(attentions, "backward", around),
        small.streams(model.encoder, "backward") as in_encoder,
        small.streams(model.decoder, "backward") as in_decoder,
    ):
        dx, dmemory = model.decoder.backward(model.output.backward(objective.backward())[None])
        model.target.backward(dx)
        model.source.backward(model.encoder.backward(dmemory))
    for n, kind in enumerate(small.KINDS):
        kind_lengths = [lengths[small.LAYERS * n + layer] for layer in range(small.LAYERS)]
        arrays[f"{kind} back"] = arrays[kind] * xp.stack(kind_lengths)[..., None]
    arrays["encoder streams back"] = xp.stack(in_encoder[::-1])
    arrays["decoder streams back"] = xp.stack(in_decoder[::-1])
    optimizer.update(flat.grad, steps + 1, RATE)
    after = {"weights": flat.data, **optimizer.state, "steps": steps + 1}
    return arrays | {f"{name} after": array for name, array in after.items()}


def recordings() -> dict:
    """The recordings of lesson 11's translator, and of `learn`, for the page."""
    like, ids = small.weights("translator").astype(float), small.padded([END])
    with Recording() as recording, mode(training=False, saving=True):
        state = [recording.given("given weights", like)]
        state += [recording.given(f"given {name}", 0 * like) for name in ("mean", "square")]
        state.append(recording.given("given steps", [0.0]))
        texts = [
            recording.given_ids(f"given {name}", ids) for name in ("source", "target", "wanted")
        ]
        for name, array in learn(*state, *texts).items():
            recording.name(name, array)
    step = recording.data()
    for name in ("weights", "mean", "square"):  # the page sets them
        at, size = step["names"][f"given {name}"]
        step["buffers"][at] = size
    return {**small.recordings("translator"), "learn": step}


def data() -> str:
    """The recordings as an element of the page, which the script hands to its worker."""
    text = json.dumps(recordings(), separators=(",", ":")).replace("<", "\\u003c")
    return f'<script type="application/json" id="translator">{text}</script>\n'


def figure() -> str:
    """The figure as HTML; its script and `recordings` follow at the end of the page."""
    alt = (
        "An English sentence goes through three layers of an encoder and three of a decoder, "
        "line by line for every attention head, until the German stands at the right."
    )
    weights, symbols = small.weights("translator").size, len(small.symbols("translator"))
    return f"""<figure class="opening" data-closing="{CLOSING}" data-weights="{weights:,}"
data-symbols="{symbols:,}">
<figcaption>A translator runs in this page: {weights:,} trained numbers that read English and write
German. Write a sentence of your own, or watch.</figcaption>
<form><label><span>English</span><input name="english" value="{ENGLISH}" maxlength="200"
autocomplete="off" spellcheck="false" aria-label="English"></label><button>Translate</button></form>
<p class="why" aria-live="polite"></p>
<canvas role="img" aria-label="{alt}"></canvas>
<output class="writes" lang="de" aria-live="off"></output>
<p class="says"></p>
<div class="time"><button type="button" name="play">❚❚ Pause</button>
<input type="range" min="0" max="1" step="0.001" value="0" aria-label="Time"></div>
<form><label><span>Right German</span><input name="german" lang="de" value="{GERMAN}"
maxlength="200" autocomplete="off" spellcheck="false" aria-label="Right German"></label>
<button name="back" title="Let the gradient of the loss flow back">← Back</button>
<button type="button" name="train"
title="Train on this pair until the German is right">Train</button>
<button type="button" name="forget" title="Go back to the weights before training">Forget</button>
</form></figure>"""
