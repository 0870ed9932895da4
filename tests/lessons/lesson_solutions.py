"""Solutions of the lessons' exercises as readers write them, right ones and wrong ones.

`RIGHT[exercise]` are source texts; `WRONG[exercise]` maps source texts to words of their
explanation: a few, in other styles and with other names than the solutions have.
"""

import inspect
import textwrap

import lessons
from lessons.kit.lesson import Picture, pieces

HEADER = "import math\n\nimport numpy as np\n\n"
LESSONS = [entry.number for entry in lessons.COURSE if entry.path]
EXERCISES = [task for number in LESSONS for task in lessons.load(number).EXERCISES]
EXERCISES = {exercise.name: exercise for exercise in EXERCISES}
# What readers type where a number is asked for.
NUMBERS: dict[str, float | None] = {"0.5": 0.5, " .5 ": 0.5, "5.": 5, "+3": 3, "1e-3": 0.001}
NUMBERS |= {"−0.8": -0.8, "- 0.8": -0.8, "–0,8": -0.8, "1e−3": 0.001, "−1/2": -0.5, "2E3": 2000}
NUMBERS |= {"0,5": 0.5, "0,500": 0.5, "1,25": 1.25, "1234,567": 1234.567, "1,25 / 2": 0.625}
NUMBERS |= {"36,864": 36864, "1,048,576.5": 1048576.5, "36 864": 36864, "36\u2009864,5": 36864.5}
NUMBERS |= {"1\u202f048\u202f576": 1048576, "1\u00a0024/2": 512, "50 %": 0.5, "50%": 0.5}
NUMBERS |= {"n = 1024": 1024, "0.95^30 ≈ 0.21": 0.21, "1/2 %": 0.005}
NONSENSE = "quarter|1/0|nan|inf|1e999|1/4/2|1 2|1 1/2|1,2,3|1,234,5|1,024 000|0 500|1.234,5|1_000"
NUMBERS |= dict.fromkeys(["", *NONSENSE.split("|"), *"0x10|--1|1-2|e|٣|²|50 % %|3 =".split("|")])


def words_of(number: int, name: str) -> str:
    """What a function of a lesson says, in Markdown on one line."""
    shown = [piece for piece in pieces(getattr(lessons.load(number), name))]
    words = [piece.markdown() for piece in shown if not isinstance(piece, Picture)]
    return " ".join(" ".join(words).split())


def function(name: str, parameters: str, body: str) -> str:
    """The source of a file with this function."""
    body = textwrap.indent(textwrap.dedent(body).strip(), "    ")
    return f"{HEADER}def {name}({parameters}):\n{body}\n"


def softmax(body: str) -> str:
    return function("softmax_backward", "dweights, weights", body)


def attention(**lines: str) -> str:
    """A backward with einsum, some of its lines replaced."""
    lines = {
        "dB": "dO * G",
        "dA": "np.einsum('bhtv,bhsv->bhts', dB, V)",
        "dZ": "A * dA - A * np.sum(A * dA, axis=3)[..., None]",
        "dS": "dZ / Q.shape[3] ** 0.5",
        "dQ": "np.einsum('bhts,bhsk->bhtk', dS, K)",
        "dK": "np.einsum('bhts,bhtk->bhsk', dS, Q)",
        "dV": "np.einsum('bhts,bhtv->bhsv', A, dB)",
        "dG": "dO * np.einsum('bhts,bhsv->bhtv', A, V)",
        "return": "dQ, dK, dV, dG",
    } | lines
    body = "\n".join(f"{name} = {line}" for name, line in lines.items())
    body = body.replace("return =", "return")
    return function("attention_backward", "dO, Q, K, V, G, A", body)


def tied(body: str) -> str:
    return function("tied_backward", "y, x, w, i", f"d = {body}\nreturn d")


def tempered(dtau: str, dbias: str) -> str:
    body = f"""
Z = Q @ K.T / Q.shape[1] ** 0.5 / tau
dZ = A * dA - A * np.sum(A * dA, 1)[:, None]
return {dtau}, {dbias}
"""
    return function("tempered_backward", "dA, Q, K, tau, A", body)


def smoothed_answer(body: str) -> str:
    return function("smoothed_backward", "dl, p, y, e", body)


def altered(name: str, old: str = "", new: str = "") -> str:
    """The exercise's solution, or what has a mistake to find, a part of its text replaced."""
    exercise = EXERCISES[name]
    given = exercise.code if exercise.to_find else inspect.getsource(exercise.solution)
    assert old in given
    return HEADER + given.replace(old, new)


def whole_attention(**lines: str) -> str:
    """The backward of multi-head self-attention with einsum, some of its lines replaced."""
    lines = {
        "dO": "np.einsum('td,hvd->htv', dy, wo)",
        "dA": "np.einsum('htv,hsv->hts', dO, V)",
        "dS": "A * (dA - np.sum(A * dA, axis=2)[..., None]) / K.shape[2] ** 0.5",
        "dQ": "np.einsum('hts,hsk->htk', dS, K)",
        "dK": "np.einsum('hts,htk->hsk', dS, Q)",
        "dV": "np.einsum('hts,htv->hsv', A, dO)",
        "dx": "sum(np.einsum('htk,hdk->td', d, w) for d, w in ((dQ, wq), (dK, wk), (dV, wv)))",
        "dwq, dwk, dwv": "(np.einsum('td,htk->hdk', x, d) for d in (dQ, dK, dV))",
        "dwo": "np.einsum('hts,hsv,td->hvd', A, V, dy)",
    } | lines
    body = "\n".join(f"{name} = {line}" for name, line in lines.items())
    name = "multi_head_self_attention_backward"
    return function(
        name, "dy, x, Q, K, V, A, wq, wk, wv, wo", f"{body}\nreturn dx, dwq, dwk, dwv, dwo"
    )


def whole_norm(
    dx: str = "r * (g - np.mean(g, 1)[:, None] - h * np.mean(g * h, 1)[:, None])",
) -> str:
    body = f"g = gamma * dy\nreturn {dx}, sum(dy * h), sum(dy)"
    return function("layer_norm_backward", "dy, gamma, h, r", body)


def rms_norm(dx: str, parameters: str = "dy, gamma, h, r") -> str:
    return function("rms_norm_backward", parameters, f"return {dx}, sum(dy * h)")


def whole_layer(dn: str = "du + (g @ w_1.T)", dx: str = "dt + attended") -> str:
    """A whole encoder layer with the functions of the exercises before."""
    body = f"""
du, _, _ = layer_norm_backward(dy, gamma_2, h_2, r_2)
g = np.where(r > 0, du @ w_2.T, 0)
dn = {dn}
dt, dgamma, _ = layer_norm_backward(dn, gamma_1, h_1, r_1)
attended, *_ = multi_head_self_attention_backward(dt, x, *of_attention)
return {dx}, dgamma, n.T @ g, r.T @ du
"""
    names = (
        "dy, x, q, k, v, a, wq, wk, wv, wo, gamma_1, h_1, r_1, n, r, w_1, w_2, gamma_2, h_2, r_2"
    )
    body = "of_attention = q, k, v, a, wq, wk, wv, wo" + body
    parts = whole_attention() + whole_norm()
    for name in ("layer_norm_backward", "multi_head_self_attention_backward"):
        parts, body = (text.replace(name, f"my_{name}") for text in (parts, body))
    return parts + function("encoder_layer_backward", names, body)


def of_block(**lines: str) -> str:
    """The backward of a block of keys with einsum, some of its lines replaced."""
    lines = {
        "A": "np.exp(np.einsum('tk,sk->ts', Q, K) / Q.shape[1] ** 0.5 - g)",
        "r": "np.sum(dO * O, axis=1)[:, None]",
        "dZ": "A * (np.einsum('tv,sv->ts', dO, V) - r)",
        "dK": "np.einsum('ts,tk->sk', dZ, Q) / Q.shape[1] ** 0.5",
        "dV": "np.einsum('ts,tv->sv', A, dO)",
    } | lines
    body = "\n".join(f"{name} = {line}" for name, line in lines.items())
    return function("block_backward", "dO, Q, K, V, O, g", f"{body}\nreturn dK, dV")


def running(later: str = "np.flip(np.cumsum(np.flip(h, 0), axis=0), 0)") -> str:
    """The backward of linear attention with einsum."""
    body = f"""
s = np.cumsum(np.einsum('tk,tv->tkv', k, v), axis=0)
h = np.einsum('tk,tv->tkv', q, dy)
d = {later}
dq = np.einsum('tkv,tv->tk', s, dy)
return dq, np.einsum('tkv,tv->tk', d, v), np.einsum('tkv,tk->tv', d, k)
"""
    return function("linear_attention_backward", "dy, q, k, v", body)


def of_all(gradient: str) -> str:
    return function("whole_gradient", "g, n", f"return {gradient}")


def half_a_ring(chunk: str = "r - s", following: str = "r + 1", sends: str = "a") -> str:
    """Half a ring, all messages of a step at once."""
    body = f"""
a, b, R = b.copy(), b, len(b)
for s in range(R - 1):
    sent = [{sends}[r, ({chunk}) % R].copy() for r in range(R)]
    for r in range(R):
        a[({following}) % R, ({chunk}) % R] += sent[r]
return a
"""
    return function("reduce_scatter", "b", body)


def joined(output: str) -> str:
    body = f"""
m = np.where(m_1 > m_2, m_1, m_2)
a, b = n_1 * np.exp(m_1 - m), n_2 * np.exp(m_2 - m)
return m, a + b, {output}
"""
    return function("merge", "m_1, n_1, o_1, m_2, n_2, o_2", body)


def scored(place: str = "before[-1] + 1", mean: str = "np.mean(found, axis=0)") -> str:
    """The score for induction in a loop."""
    body = f"""
found = []
for t, x in enumerate(symbols):
    before = [s for s in range(t) if symbols[s] == x]
    if before:
        found.append(weights[:, t, {place}])
return {mean}
"""
    return function("induction_score", "weights, symbols", body)


def learned(da: str) -> str:
    body = f"""
g = 1 / (1 + np.exp(-a))
d = np.einsum('td,hkd->htk', dy, w)
dg = np.einsum('htk,htk->h', d, C)
return d * g[:, None, None], {da}
"""
    return function("learned_gates_backward", "dy, C, a, w", body)


def in_nucleus(kept: str = "np.where(np.cumsum(q) - q < top_p, q, 0)") -> str:
    """Top-p row by row."""
    body = f"""
kept = np.zeros(p.shape)
for row in range(len(p)):
    order = np.argsort(p[row])[::-1]
    q = p[row][order]
    q = {kept}
    kept[row][order] = q / sum(q)
return kept
"""
    return function("nucleus", "p, top_p", body)


def of_beam(**lines: str) -> str:
    """A step of a beam with a list of all ways, some of its lines replaced."""
    lines = {
        "ways": "[(log_p[i] + step[i, j], i) for i, j in np.ndindex(step.shape)]",
        "ways2": "sorted(ways, reverse=True)[:len(log_p)]",
        "kept": "np.array([state[i] for _, i in ways2])",
    } | lines
    body = "\n".join(f"{name} = {line}" for name, line in lines.items())
    body += "\nreturn np.array([total for total, _ in ways2]), kept"
    return function("beam_step", "log_p, step, state", body)


def of_drawn(dz: str = "g[:, None] * (y - p)", dtau: str = "-np.sum(dz * z) / tau**2") -> str:
    body = f"dz = {dz}\nreturn dz / tau, {dtau}"
    return function("drawn_backward", "g, z, p, y, tau", body)


S_BACKWARD = "weights * (dweights - (weights * dweights).sum(axis=-1, keepdims=True))"
MASK_FORGOTTEN = """
def again(Q, K):
    A = np.exp(Q @ K.swapaxes(2, 3) / 11**0.5)
    return A / A.sum(axis=-1, keepdims=True)
"""


def gpt(total: str, attention: str = "4 * d * (d + 1)") -> str:
    body = f"""
a, n = {attention}, d * f * 2 + (d + f)
return a, n, {total}
"""
    return function("gpt_size", "d, f, layers, v, t", body)


def worked(pairs: str = "4 * t * t * d", step: str = "3 * (a + p + n)") -> str:
    body = f"""
a, p, n = 8 * t * d * d, {pairs}, 4 * t * d * f
return a, p, n, {step}
"""
    return function("layer_work", "d, f, t", body)


def gate(slope: str, dvalue: str = "dy * g * s") -> str:
    body = f"""
s = 0.5 + 0.5 * np.tanh(g / 2)
return dy * v * ({slope}), {dvalue}
"""
    return function("swiglu_backward", "dy, g, v", body)


RIGHT = {
    "softmax_backward": [
        softmax(f"return {S_BACKWARD}"),
        softmax("g = np.asfortranarray(weights * dweights)\nreturn [g - (sum(g.T) * weights.T).T]"),
    ],
    "attention_backward": [attention()],
    "tempered_backward": [tempered("-np.sum(dZ * Z / tau)", "sum(dZ)")],
    "mended_additive_backward": [altered("mended_additive_backward", " / dscores.shape[0]")],
    "smoothed_backward": [
        smoothed_answer("g = p - e / p.shape[1] - (1 - e) * y\nreturn g * dl.reshape(-1, 1)"),
    ],
    "mended_counted_backward": [
        altered("mended_counted_backward", "valid.mean()", "np.count_nonzero(valid)"),
    ],
    "multi_head_self_attention_backward": [whole_attention()],
    "layer_norm_backward": [whole_norm()],
    "encoder_layer_backward": [whole_layer()],
    "induction_score": [scored()],
    "learned_gates_backward": [learned("dg * (g - g**2)"), learned("dg * np.exp(-a) * g**2")],
    "mended_importance": [altered("mended_importance", "size = gates", "size = (gates**2) ** 0.5")],
    "merge": [joined("o_1 + (o_2 - o_1) * b / (a + b)")],
    "mended_one_after_the_other": [
        altered("mended_one_after_the_other", "blend = blend +", "blend = factor * blend +"),
    ],
    "block_backward": [of_block()],
    "linear_attention_backward": [running(), running("h[::-1].cumsum(0)[::-1]")],
    "whole_gradient": [of_all("np.einsum('r,rn->n', n[:, 0], g) / n.sum()")],
    "reduce_scatter": [half_a_ring()],
    "mended_machines_backward": [
        altered("mended_machines_backward", "dx = dbefore", "dx += dbefore"),
    ],
    "nucleus": [in_nucleus()],
    "beam_step": [of_beam()],
    "mended_scores": [altered("mended_scores", "sum(axis=(0, 1))", "sum(axis=1)")],
    "drawn_backward": [of_drawn(), of_drawn(dtau="-(np.einsum('tn,tn', dz, z)) / tau / tau")],
    "tied_backward": [tied("y.T @ x\nnp.add.at(d, i, w.shape[1] ** 0.5 * (y @ w))")],
    "gpt_size": [gpt("layers * (a + n + 4 * d) + d * (v + t + 2)")],
    "layer_work": [worked()],
    "mended_one_softmax": [
        altered("mended_one_softmax", "[:, None]", "[:, None] + len(source_key)"),
    ],
    "swiglu_backward": [gate("s * (1 + g * (1 - s))")],
}

WRONG = {
    "softmax_backward": {
        softmax("slope = weights - weights ** 2\nreturn slope * dweights"): "its own weight alone",
        softmax("g = weights * dweights\nreturn g - weights * sum(g)"): "not over the keys. Each",
        softmax("return weights * (dweights - np.sum(weights * dweights, -1))"): "lost its axis",
        softmax("return weights * (dweights - dweights.mean(1)[:, None])"): "counts alike",
        softmax("g = dweights * (weights > 0.1)\nreturn weights * (g - g.mean())"): "It mixes:",
    },
    "attention_backward": {
        attention(dS="dZ", dQ="dZ @ K / 11**0.5"): "On the way to dkey, a step is left out",
        attention(dS="dZ * V.shape[3] ** -0.5"): "d_v stands where another size belongs",
        attention(dA="np.einsum('bhtv,bhsv->bhts', dB, V)\nA = again(Q, K)")
        + MASK_FORGOTTEN: "without the mask",
        attention(dV="A.T @ dB"): "reverses all the axes of weights",
        attention(**{"return": "dV, dQ, dK, dG"}): "are the results in the order",
        attention(dB="dO"): "In the gradient of the blend, a factor is missing",
    },
    "multi_head_self_attention_backward": {
        whole_attention(dx="np.einsum('htk,hdk->td', dQ, wq)"): "one of three roads",
        whole_attention(dx="np.einsum('htv,hdv->td', dV, wv)"): "one of three roads",
        whole_attention(dO="np.einsum('td,hvd->htv', dy, wo) / len(wo)"): "by the number of heads",
    },
    "layer_norm_backward": {
        whole_norm("r * g"): "if means and variances were constant",
        whole_norm("r * (g - g.mean(1)[:, None])"): "if the variances were constant",
        whole_norm(
            "gamma * r * (dy - np.mean(dy, 1)[:, None] - h * np.mean(dy * h, 1)[:, None])"
        ): ("the factor gamma comes too late"),
    },
    "rms_norm_backward": {
        rms_norm("gamma * r * (dy - h * np.mean(dy * h, 1)[:, None])"): "gamma comes too late",
        rms_norm("dy", "dy, x_hat, rrms, gamma"): "in the order dy, x_hat, rrms and gamma. It is",
    },
    "gated_backward": {
        function(
            "gated_backward",
            "dy, x, g, w, h",
            "d = g * (h > 0) * dy\nreturn g * (dy + ((h > 0) * dy) @ w.T), np.sum(dy * h), x.T @ d",
        ): "In dx, the factor gate comes too late",
    },
    "tied_backward": {
        tied("y.T @ x"): "a part is missing",
        tied("y.T @ x\nd[i] += 17**0.5 * (y @ w)"): "the second addition forgets the first",
        tied("y.T @ x\nnp.add.at(d, i, y @ w)"): "a factor is missing",
    },
    "merge": {
        joined("(o_1 + o_2) / 2"): "a half whose scores are high has most of the weight",
        joined("o_1 + o_2"): "divided already, each by the sum of its own half",
        joined("(o_1 * n_1 + o_2 * n_2) / (a + b)"): "relative to two different maxima",
    },
    "block_backward": {
        of_block(
            A="np.exp(Q @ K.T / 11**0.5)\nA = A / A.sum(1)[:, None]"
        ): "of this block alone, as",
        of_block(r="np.sum(A * (dO @ V.T), axis=1)[:, None]"): "over the keys of this block alone",
        of_block(dK="dZ.T @ Q"): "In the gradient of query key^T, a division is missing",
    },
    "linear_attention_backward": {
        running("np.cumsum(h, axis=0)"): "The running sum runs forwards",
        running("h[::-1].cumsum(0)[::-1] - h"): "A position’s own result is left out",
    },
    "whole_gradient": {
        of_all("np.mean(g, 0)"): "All tokens should count alike, not all machines",
        of_all("np.sum(g * n, 0)"): "The gradient of their mean is smaller",
    },
    "reduce_scatter": {
        half_a_ring(chunk="r + s"): "a sign is wrong: one part has to be subtracted",
        half_a_ring(sends="b"): "parts is used as what the machines hold",
        half_a_ring(following="r"): "In the next machine, a part is missing",
    },
    "mended_machines_backward": {
        altered(
            "mended_machines_backward", "dbefore = dhidden * (hidden > 0)", "dbefore = dhidden"
        ): "a factor is missing beside the gradient of the activation",
    },
    "induction_score": {
        scored("before[-1]"): "You look at the earlier occurrence itself",
        scored("before[0] + 1"): "You take the first occurrence",
        scored(mean="np.sum(found, axis=0) / len(symbols)"): "the number of all positions",
    },
    "learned_gates_backward": {
        learned("dg"): "You stop at the gates",
        learned("dg * (1 - g**2)"): "The slope is that of a tanh",
        learned("dg * g"): "a factor is missing",
    },
    "mended_importance": {
        altered("mended_importance", "(1, 3)", "1"): "shape",
    },
    "nucleus": {
        in_nucleus("np.where(np.cumsum(q) <= top_p, q, 0)"): "with which the sum reaches top_p",
    },
    "beam_step": {
        of_beam(kept="state"): "You left the memories where they were.",
        of_beam(
            ways2="sorted(((max(s) + l, i) for i, (s, l) in enumerate(zip(step, log_p))))[::-1]"
        ): "best: You continued each hypothesis only in",
    },
    "drawn_backward": {
        of_drawn("g[:, None] * (p - y)"): "the gradient of a loss, which is minus the logarithm",
        of_drawn(dtau="-np.sum(dz * z) / tau"): "a power is missing",
    },
    "gpt_size": {
        gpt("layers * (a + n + 4 * d) + d * (v + t)"): "In the total, a part is missing",
        gpt("layers * (a + n + 4 * d) + d * (v + t + 2)", "4 * d * d"): "attention",
    },
    "layer_work": {
        worked("4 * t * d"): "In the work of the pairs, a power is missing",
        worked(step="2 * (a + p + n)"): "step",
    },
    "swiglu_backward": {
        gate("s * (1 - s)"): "the slope of the logistic function alone",
        gate("g > 0"): "the slope of ReLU",
        gate("s * (1 + g * (1 - s))", "dy * g"): "In dvalue",
    },
    "encoder_layer_backward": {
        whole_layer(dn="g @ w_1.T"): "In the gradient of what the first norm made, a part is",
        whole_layer(dx="attended"): "In dx, a part is missing. Count how often x",
    },
    "tempered_backward": {
        tempered("np.sum(dZ * Z) / tau", "dZ.sum(0)"): "or dtau is wrong",
        tempered("-np.sum(dZ * Z) / tau * (11/7)**0.5", "sum(dZ)"): "the number of keys stands",
        tempered("-np.sum(dZ * Z) / tau", "dZ"): "Its dbias has the shape (5, 7)",
    },
    "smoothed_backward": {
        smoothed_answer("return (p - y) * dl[:, None]"): "without label smoothing",
        smoothed_answer("q = y - e * y + e * (1 - y) / 16\nreturn (p - q) * dl[:, None]"): "alone",
        smoothed_answer("q = (1 - e) * y + e / 17\nreturn -q / p * dl[:, None]"): "go back through",
    },
} | {
    name: {altered(name, old, new): words for old, new, words in rows}
    for name, rows in {
        "mended_one_after_the_other": [
            ("blend = blend +", "blend = blend * factor**2 +", "a factor occurs twice"),
            ("blend = blend +", "blend = total * blend +", "another array belongs"),
        ],
        "mended_scores": [
            ("", "", "Not begun yet."),
            ("length = valid.sum(axis=(0, 1))", "length = valid.max(axis=-1)", "the largest entry"),
        ],
        "mended_additive_backward": [
            ("", "", "Not begun yet."),
            ("/ dscores.shape[0]", "* (1 / len(dscores))", "that you have to find is still"),
            ("v * slopes / dscores.shape[0]", "v", "a part is missing"),
        ],
        "through_time_backward": [
            ("np.zeros((1, h.shape[1]))", "h[-1:]", "you take the last state"),
            ("before.T @ da", "before.T @ (da / (1 - h**2))", "go back through the tanh first"),
            ("(1 - h[t] ** 2)", "(h[t] - h[t] ** 2)", "You used the slope of a sigmoid"),
            ("reversed(range(len(h)))", "range(len(h))", "The loop runs forwards"),
            ("reversed(range(len(h)))", "range(len(h) - 1, 0, -1)", "ends one word early"),
        ],
        "unit_backward": [
            ("dn = dnew * f", "dn = dnew * (1 - f)", "You swapped the two shares of the gate"),
            ("dn * (1 - n**2)", "dn * (n - n**2)", "But n came out of a tanh"),
            ("dgate = dnew *", "dgate = dnew * f *", "gradient of the gate by the gate itself"),
            ("dnew * (1 - f) + dkept", "dkept", "a part is missing"),
            ("dkept * f + da", "dkept * f**3 + da", "wrong dh: 33 of 33 entries"),
        ],
        "dropped_backward": [
            ("dy + dproduct @", "dproduct @", "a part is missing"),
            ("x.T @ dproduct", "x.T @ dy", "On the way to dweight"),
        ],
        "mended_counted_backward": [("valid.mean()", "len(valid)", "no part of the mean")],
        "river_backward": [("/ width\n", "/ 2 / width\n", "is 0.5 times what it should be")],
    }.items()
}
