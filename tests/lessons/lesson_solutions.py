"""Solutions of the lessons' exercises as readers write them, right ones and wrong ones.

`RIGHT[exercise]` are source texts; `WRONG[exercise]` maps source texts to words of their
explanation: a few, in other styles and with other names than the solutions have.
"""

import textwrap

import lessons
from lessons.lesson import Picture, pieces

HEADER = "import math\n\nimport numpy as np\n\n"
LESSONS = [entry.number for entry in lessons.COURSE if entry.path]
EXERCISES = [task for number in LESSONS for task in lessons.load(number).EXERCISES]
EXERCISES = {exercise.name: exercise for exercise in EXERCISES}


def words_of(number: int, name: str) -> str:
    """What a function of a lesson says, in Markdown on one line."""
    shown = [piece for piece in pieces(getattr(lessons.load(number), name))]
    words = [piece.markdown() for piece in shown if not isinstance(piece, Picture)]
    return " ".join(" ".join(words).split())


def scope(source: str) -> dict:
    """What a file with this source defines."""
    names = {}
    exec(source, names)
    return names


def function(name: str, body: str, parameters: str) -> str:
    """The source of a file with this function."""
    body = textwrap.indent(textwrap.dedent(body).strip(), "    ")
    return f"{HEADER}def {name}({parameters}):\n{body}\n"


def softmax(body: str) -> str:
    return function("softmax_backward", body, "dweights, weights")


def attention(**lines: str) -> str:
    """A backward with einsum, some of its lines replaced."""
    lines = {
        "dA": "np.einsum('bhtv,bhsv->bhts', dO, V)",
        "dZ": "A * dA - A * np.sum(A * dA, axis=3)[..., None]",
        "dS": "dZ / Q.shape[3] ** 0.5",
        "dQ": "np.einsum('bhts,bhsk->bhtk', dS, K)",
        "dK": "np.einsum('bhts,bhtk->bhsk', dS, Q)",
        "dV": "np.einsum('bhts,bhtv->bhsv', A, dO)",
        "return": "dQ, dK, dV",
    } | lines
    body = "\n".join(f"{name} = {line}" for name, line in lines.items()).replace(
        "return =", "return"
    )
    return function("attention_backward", body, "dO, Q, K, V, A")


def tempered(dtau: str, dbias: str, dZ: str = "A * dA - A * np.sum(A * dA, 1)[:, None]") -> str:
    body = f"Z = Q @ K.T / Q.shape[1] ** 0.5 / tau\ndZ = {dZ}\nreturn {dtau}, {dbias}"
    return function("tempered_backward", body, "dA, Q, K, tau, A")


def mended(old: str = "", new: str = "") -> str:
    """The function with the mistake, a part of its text replaced."""
    given = EXERCISES["mended_attention_backward"].code
    assert old in given
    return HEADER + given.replace(old, new)


ROW_BY_ROW = """
result = np.zeros(weights.shape)
for i in range(len(weights)):
    for j in range(weights.shape[1]):
        for k in range(weights.shape[1]):
            jacobian = weights[i, j] * ((j == k) - weights[i, k])
            result[i, j] += jacobian * dweights[i, k]
return result
"""
WITH_FLIP = """
flip = lambda x: np.transpose(x, (0, 1, 3, 2))
Q = Q / math.sqrt(Q.shape[-1])
dA = dO @ flip(V)
dS = A * (dA - np.sum(A * dA, -1, keepdims=True))
return dS @ K / math.sqrt(K.shape[-1]), flip(dS) @ Q, flip(A) @ dO
"""
MASK_FORGOTTEN = """
def again(Q, K):
    A = np.exp(Q @ K.swapaxes(2, 3) / 11**0.5)
    return A / A.sum(axis=-1, keepdims=True)
"""


def through_time(old: str = "", new: str = "") -> str:
    """A loop that adds up the weight's gradient as it goes, a part of its text replaced."""
    body = """
later, d, W = 0, 0 * h, 0 * weight
for t in range(len(h) - 1, -1, -1):
    g = doutput[t] + later
    d[t] = g * (1 - h[t] ** 2)
    later = weight.dot(d[t])
    if t:
        W += np.outer(h[t - 1], d[t])
return d, W
"""
    return function("through_time_backward", body.replace(old, new), "doutput, h, weight")


def unit(dn: str = "dnew * f") -> str:
    body = f"""
de = {dn} * (1 - n * n)
dkept = np.einsum("bj,ij->bi", de, r)
da = (dnew * (n - h) + dkept * h) * f * (1 - f)
return da, de, dnew - dnew * f + dkept * f + np.einsum("bj,ij->bi", da, u)
"""
    return function("unit_backward", body, "dnew, h, u, r, f, n")


def river(power: str = "width ** 3") -> str:
    body = f"""
away = keys - query[:, None]
d = doutput[:, None] * weights * (values - (weights @ values)[:, None])
dq = (d * away / width ** 2)
return dq.sum(1), -dq.sum(0), (d * away ** 2 / ({power})).sum()
"""
    return function("river_backward", body, "doutput, query, keys, values, width, weights")


def handed(plus: str = "+=") -> str:
    body = f"""
dM, dW = np.zeros(M.shape), np.zeros(W.shape)
for i, (A, dO) in enumerate(zip(weights, dheads)):
    dM {plus} A.T @ dO @ W[:, i].T
    dW[:, i] = M.T @ A.T @ dO
return dM, dW
"""
    return function("handed_backward", body, "dheads, M, W, weights")


RIGHT = {
    "handed_backward": [handed()],
    "through_time_backward": [through_time()],
    "unit_backward": [unit()],
    "river_backward": [river()],
    "softmax_backward": [
        softmax("return weights * (dweights - (dweights * weights).sum(-1, keepdims=True))"),
        softmax(ROW_BY_ROW),
        softmax("g = np.asfortranarray(weights * dweights)\nreturn [g - (sum(g.T) * weights.T).T]"),
    ],
    "attention_backward": [
        attention(),
        function("attention_backward", WITH_FLIP, "dO, Q, K, V, A"),
    ],
    "tempered_backward": [
        tempered("-np.sum(dZ * Z / tau)", "sum(dZ)"),
        tempered("np.einsum('ts,tk,sk', dZ, Q, K) / -(tau**2) / len(K[0])**0.5", "dZ.sum(0)"),
    ],
    "mended_attention_backward": [
        mended(" / doutput.shape[0]"),
        attention().replace("def attention", "def mended_attention"),
    ],
}

WRONG = {
    "handed_backward": {handed("="): "Only the last head is left"},
    "through_time_backward": {
        through_time("weight.dot(d[t])", "weight.dot(g)"): "a step is left out: the gradient of a",
        through_time("    if t:\n        W", "    W"): "you take the last state",
        through_time("W +=", "W ="): "each replaces the one before",
        through_time("[t - 1], d[t]", "[t - 1], g"): "go back through the tanh first",
        through_time("h[t] ** 2", "np.tanh(h[t]) ** 2"): "The tanh is taken twice",
    },
    "unit_backward": {
        unit("dnew * (1 - f)"): "The two shares of the gate have changed places",
        unit("dnew * f**3"): "wrong da: 33 of 33 entries",  # and nothing of sequences that mix
    },
    "river_backward": {river("2 * width ** 3"): "is 0.5 times what it should be"},
    "softmax_backward": {
        softmax("slope = weights - weights ** 2\nreturn slope * dweights"): "its own weight alone",
        softmax("return weights - weights ** 2"): "Three times the upstream gradient",
        softmax("g = weights * dweights\nreturn g - sum(g.T)[:, None]"): "beside the average of a",
        softmax("g = weights * dweights\nreturn g - weights * sum(g)"): "not over the keys. Each",
        softmax(ROW_BY_ROW.replace("return ", "return 1/5 * ")): "by the number of queries",
        softmax("return weights * (dweights - np.sum(weights * dweights, -1))"): "lost its axis",
        softmax(
            "return weights * (dweights - np.amax(dweights, -1, keepdims=True))"
        ): "the largest entry stands where a sum belongs",
        softmax("g = dweights * (weights > 0.1)\nreturn weights * (g - g.mean())"): "It mixes:",
    },
    "attention_backward": {
        attention(dS="dZ", dQ="dZ @ K / 11**0.5"): "On the way to dkey, a step is left out",
        attention(dS="A"): "Where the gradient of query key^T belongs, there is weights.",
        attention(dS="dZ * V.shape[3] ** -0.5"): "d_v stands where another size belongs",
        attention(dK="np.matmul(dS, Q)"): "In dkey, a transpose is missing.",
        attention(
            dQ="np.einsum('bhts,bhsk->bhtk', dS, Q)", dK="dS.swapaxes(2, 3) @ K"
        ): "query and key have changed places",
        attention(dA="np.einsum('bhtv,bhsv->bhts', dO, V)\nA = again(Q, K)")
        + MASK_FORGOTTEN: "without the mask",
        attention(dK="dS.swapaxes(2, 3) @ dQ", dQ="dS @ K"): "In dkey, dquery stands where another",
        attention(dV="A.T @ dO"): "turns round all axes of weights",
        attention(**{"return": "dV, dQ, dK"}): "are the results in the order",
    },
    "tempered_backward": {
        tempered("-np.sum(dZ * Z)", "dZ.sum(0)"): "a division is missing",
        tempered("np.sum(dZ * Z) / tau", "dZ.sum(0)"): "or dtau is wrong",
        tempered("-np.sum(dZ * Z) / tau * (11/7)**0.5", "sum(dZ)"): "the number of keys stands",
        tempered("-np.sum(dZ * Z) / tau", "dZ"): "Its dbias has the shape (5, 7)",
    },
    "mended_attention_backward": {
        mended(): "Not begun yet.",
        mended("/ doutput.shape[0]", "* (1 / len(doutput))"): "What was wrong at first is still",
        mended("(dweights - average)", "dweights"): "one of two parts is missing",
    },
}
