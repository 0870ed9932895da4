"""Two trainings to watch: one model learns to reverse words, one to continue repetitions."""

import base64
import string
from collections.abc import Mapping

import numpy as np
from threadpoolctl import threadpool_limits

from lessons.lesson_04.reverse import RULE
from lessons.lesson_11 import scores, small
from numformer import Adam, PairBatch, Transformer, inference, pack
from numformer.execution.in_turn import InTurn
from numformer.layer import mode
from numformer.models import LanguageModel
from numformer.optimization.clipping import clip_global_norm
from numformer.optimization.recipe import linear_rate
from numformer.paper.attention import MultiHeadAttention
from numformer.plots import attention_weights, by_kind
from toy_tasks import induction
from toy_tasks.text_to_text.sequences import SequenceTask

SEED, WORD, TESTED = 1, "window", 300
STEPS = {"reverse": 600, "induction": 500}
SHOWN = {  # after so many steps
    "reverse": (0, 25, 50, 75, 100, 125, 150, 175, 200, 250, 300, 400, 600),
    "induction": (0, 40, 80, 120, 140, 160, 170, 180, 190, 200, 240, 340, 500),
}
REPEATED = "qn" + "train" * 2


def packed(weights) -> dict:
    """Attention weights for JSON: 16-bit integers in base64, 65535 for a weight of 1."""
    numbers = np.round(65535 * np.asarray(weights, float)).astype("<u2")
    return {"shape": numbers.shape, "numbers": base64.b64encode(numbers.tobytes()).decode()}


def unpacked(results: Mapping) -> np.ndarray:
    """The array that `packed` packed."""
    numbers = np.frombuffer(base64.b64decode(results["numbers"]), "<u2")
    return numbers.reshape(results["shape"]) / 65535


def steps(task, model, name: str, factor: float):
    """Train, and pause after each step in SHOWN, so that the model can be looked at."""
    executor = InTurn(model.objective(), Adam(pack(model)), SEED, 1)
    for step in range(STEPS[name] + 1):
        if step:
            executor.gradient(step, task.batch(step))
            clip_global_norm(executor.optimizer.parameters.grad, 1.0)
            rate = linear_rate(step, STEPS[name], model.config.d_model, 50, factor)
            executor.update(rate)
        if step in SHOWN[name]:
            yield step


def reversal() -> tuple[dict, Transformer]:
    """What a model does while it learns to reverse words, and the trained model."""
    task = SequenceTask(RULE, 64, SEED)
    model = Transformer(small.config("reverse"), SEED)
    batch = PairBatch.of(
        task.encode((word, RULE.make_target(word)) for word, _ in task.test[:TESTED])
    )
    lengths = (batch.source != 0).sum(axis=1)
    t = np.arange(batch.target_out.shape[1])
    places = np.where(t < lengths[:, None] - 1, lengths[:, None] - 2 - t, -1)
    shown = PairBatch.of(task.encode([(WORD, WORD[::-1])]))
    results: dict = {"steps": [], "share": [], "exact": [], "weights": []}
    with threadpool_limits(1, "blas"):
        for step in steps(task, model, "reverse", 0.4):
            weights = by_kind(attention_weights(model, batch.source, batch.target_in))
            cross = weights["decoder cross_attention"]
            with inference():
                best = model.forward(batch.source, batch.target_in).argmax(axis=-1)
            right = (best == batch.target_out) | (batch.target_in == 0)
            looked = by_kind(attention_weights(model, shown.source, shown.target_in))
            results["steps"].append(step)
            results["share"].append([scores.share(layer, places) for layer in cross])
            results["exact"].append(right.all(axis=1).mean())
            results["weights"].append(looked["decoder cross_attention"][:, 0])
    results["weights"] = packed(results["weights"])
    return results, model


def of_reverse(model: Transformer) -> list[dict]:
    """What every head of the model that reverses looks at, in the explorer's order."""
    task = SequenceTask(RULE, 64, SEED)
    batch = PairBatch.of(
        task.encode((word, RULE.make_target(word)) for word, _ in task.test[:TESTED])
    )
    read, wrote = ((ids != 0).sum(axis=1) for ids in (batch.source, batch.target_in))
    t = np.arange(batch.target_in.shape[1])
    real, last = t < wrote[:, None], read[:, None] - 2

    def there(places):
        return np.where(real & (places >= 0) & (places <= last), places, -1)

    cross = {
        "the letter to write": there(last - t),
        "the letter written last": there(last - t + 1),
        "the letter to write next": there(last - t - 1),
        "the end mark": np.where(real, last + 1, -1),
    }
    return all_roles(model, batch, cross)


def all_roles(model: Transformer, batch: PairBatch, cross: dict) -> list[dict]:
    """The roles of every head on a batch: encoder, decoder, then cross-attention."""
    read, wrote = ((ids != 0).sum(axis=1) for ids in (batch.source, batch.target_in))
    weights = by_kind(attention_weights(model, batch.source, batch.target_in))
    s_real, causal = (
        (batch.source != 0)[:, None, None],
        np.tri(batch.target_in.shape[1], dtype=bool),
    )
    longest = batch.source.shape[1], batch.target_in.shape[1]
    kinds = {
        "encoder self_attention": (scores.self_places(read, longest[0], False), s_real),
        "decoder self_attention": (scores.self_places(wrote, longest[1], True), causal),
        "decoder cross_attention": (cross, s_real),
    }
    rng, results = np.random.default_rng(SEED), []
    for kind, (places, seen) in kinds.items():
        for layer in weights[kind]:
            of_heads = scores.roles(layer, places, seen, rng)
            results += [
                {name: found[head].tolist() for name, found in of_heads.items()}
                for head in range(small.HEADS)
            ]
    return results


def repetition(layers: int) -> dict:
    """What the heads of a model do while it learns to continue repetitions."""
    task = induction.InductionTask(induction.DEFAULTS["batch_size"], SEED)
    names = "d_model", "d_ff", "heads", "norm", "positions", "p_drop"
    sizes = {name: induction.DEFAULTS[name] for name in names}
    vocabulary = task.text.vocabulary
    model = LanguageModel(
        LanguageModel.Config(vocabulary=len(vocabulary), layers=layers, **sizes), SEED
    )
    ids = np.array([vocabulary.encode(REPEATED)])
    results: dict = {"steps": [], "matching": [], "before": [], "copying": [], "weights": []}
    with threadpool_limits(1, "blas"):
        for step in steps(task, model, "induction", induction.DEFAULTS["factor"]):
            found = [matching(model, batch) for batch in task.held_out]
            results["steps"].append(step)
            results["matching"].append(np.mean([one[0] for one in found], axis=0))
            results["before"].append(np.mean([one[1] for one in found], axis=0))
            results["chance"] = float(np.mean([one[2] for one in found]))
            results["copying"].append(task.evaluate(model)["copying"])
            results["weights"].append([w[0] for w in attention_weights(model, ids).values()])
    results["weights"] = packed(results["weights"])
    results["writes"] = copied(model, task.held_out[0].inputs[0])
    return results


def matching(model: LanguageModel, batch) -> tuple[np.ndarray, np.ndarray, float]:
    """The weights on what followed and on the symbol before, (layers, H), and their chance.

    Chance is the mean weight on what followed in shuffled rows.
    """
    ids, _, valid = batch.inputs
    again = np.flatnonzero(valid[0])
    t = np.arange(ids.shape[1])
    to_match = np.full(ids.shape, -1)
    to_match[:, again] = again - len(again)
    before = np.broadcast_to(t - 1, ids.shape)
    weights = [*attention_weights(model, ids).values()]
    seen, rng = np.tri(ids.shape[1], dtype=bool), np.random.default_rng(SEED)
    chance = np.mean([scores.share(scores.shuffled(w, seen, rng), to_match) for w in weights])
    shares = [[scores.share(w, places) for w in weights] for places in (to_match, before)]
    return np.array(shares[0]), np.array(shares[1]), float(chance)


def copied(model: LanguageModel, ids: np.ndarray) -> list[list[float]]:
    """For each head how often its output for a symbol makes that symbol the most probable one."""
    results = []
    for values, output in handed(model, ids):
        heads = values.shape[1]
        rows = output.reshape(heads, -1, output.shape[-1])
        written = values.swapaxes(0, 1) @ rows[:, None]  # (H, B, S, D)
        logits = written @ model.output.weight.data.T
        first = len(model.output.weight.data) - len(string.ascii_lowercase)
        best = logits[..., first:].argmax(axis=-1) + first
        results.append((best == ids).mean(axis=(1, 2)).tolist())
    return results


def handed(model: LanguageModel, ids: np.ndarray) -> list:
    """For each layer the values (B, H, S, K) of its heads and its W^O."""
    with mode(training=False, saving=True):
        model.forward(ids)
    layers = [layer for layer in model.layers_within() if isinstance(layer, MultiHeadAttention)]
    results = [(layer.attention.saved[-1]["value"], layer.output.weight.data) for layer in layers]
    model.clear_saved()
    return results
