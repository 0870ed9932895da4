"""Solutions of the lessons' exercises as readers write them, right ones and wrong ones.

`RIGHT[exercise]` are source texts; `WRONG[exercise]` maps what the mistake is to the source and to
words that only its explanation has. No text is copied from the checker's known mistakes.
"""

import inspect
import textwrap

from lessons.lesson_03 import exercises as exercises_03

HEADER = "import math\nimport numpy as np\n\n"


def scope(source: str) -> dict:
    """What a file with this source defines."""
    names = {}
    exec(source, names)
    return names


def function(name: str, parameters: str, body: str) -> str:
    """The source of a file with this function."""
    return f"{HEADER}def {name}({parameters}):\n{textwrap.indent(textwrap.dedent(body), '    ')}"


def softmax(body: str) -> str:
    return function("softmax_backward", "dweights, weights", body)


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
    body = "".join(
        f"return {line}\n" if name == "return" else f"{name} = {line}\n"
        for name, line in lines.items()
    )
    return function("attention_backward", "dO, Q, K, V, A", body)


def mended(old: str = "", new: str = "") -> str:
    """The function with the mistake, a part of its text replaced."""
    given = inspect.getsource(exercises_03.mended_attention_backward)
    assert old in given
    return HEADER + given.replace(old, new)


ROW_BY_ROW = """
flat = weights.reshape(-1, weights.shape[-1])
upstream = dweights.reshape(flat.shape)
result = np.zeros(flat.shape)
for i in range(len(flat)):
    for j in range(flat.shape[1]):
        for k in range(flat.shape[1]):
            jacobian = flat[i, j] * ((j == k) - flat[i, k])
            result[i, j] += jacobian * upstream[i, k]
return result.reshape(weights.shape)
"""
HEAD_BY_HEAD = """
dQ, dK, dV = np.zeros(Q.shape), np.zeros(K.shape), np.zeros(V.shape)
scale = 1 / np.sqrt(K.shape[-1])
for b in range(len(Q)):
    for h in range(len(Q[0])):
        dV[b, h] = A[b, h].T @ dO[b, h]
        dA = dO[b, h] @ V[b, h].T
        for t, (row, a) in enumerate(zip(dA, A[b, h])):
            ds = a * (row - row @ a) * scale
            dQ[b, h, t] = ds @ K[b, h]
            dK[b, h] += np.outer(ds, Q[b, h, t])
return dQ, dK, dV
"""

RIGHT = {
    "softmax_backward": [
        softmax("return weights * (dweights - (dweights * weights).sum(-1, keepdims=True))"),
        softmax(ROW_BY_ROW),
        softmax("""
            jacobian = np.eye(weights.shape[-1]) - weights[..., None, :]
            return np.einsum('...i,...ij,...j->...i', weights, jacobian, dweights)
        """),
        softmax("""
            product = weights * dweights
            product -= weights * product.sum(axis=-1)[..., np.newaxis]
            return product
        """),
        softmax("""
            turned = np.moveaxis(weights * dweights, -1, 0)
            sums = sum(turned)
            return np.moveaxis(np.asfortranarray(turned), 0, -1) - weights * sums[..., None]
        """),
        softmax("""
            s = np.float64(1)
            result = weights * (dweights - s * (weights * dweights).sum(-1, keepdims=True))
            return [np.broadcast_to(result, weights.shape)]
        """),
    ],
    "attention_backward": [
        attention(),
        function("attention_backward", "dO, Q, K, V, A", HEAD_BY_HEAD),
        attention(**{"return": "[dQ, dK, dV]"}),
        HEADER
        + textwrap.dedent("""
            def softmax_backward(dy, y):
                return y * (dy - np.sum(y * dy, -1, keepdims=True))

            def attention_backward(doutput, query, key, value, weights):
                flip = lambda x: np.transpose(x, (0, 1, 3, 2))
                query = query / math.sqrt(query.shape[-1])
                dscores = softmax_backward(doutput @ flip(value), weights)
                dquery = dscores @ key / math.sqrt(query.shape[-1])
                return dquery, flip(dscores) @ query, flip(weights) @ doutput
        """),
    ],
    "mended_attention_backward": [
        mended(" / len(weights)"),
        mended("/ len(weights)", "* 1"),
        attention().replace("def attention", "def mended_attention"),
    ],
}

WRONG = {
    "softmax_backward": {
        "the diagonal": (
            softmax("slope = weights - weights ** 2\nreturn slope * dweights"),
            "moved its own weight alone",
        ),
        "no upstream gradient": (softmax("return weights - weights ** 2"), "does not occur"),
        "no factor": (
            softmax("return dweights - np.einsum('bhts,bhts->bht', dweights, weights)[..., None]"),
            "A factor is missing",
        ),
        "plain sum": (
            softmax("""
                total = np.sum(dweights, axis=-1, keepdims=True)
                return weights * dweights - weights * total
            """),
            "adds up dweights as they are",
        ),
        "the axis": (
            softmax("""
                result = np.zeros_like(weights)
                for s in range(weights.shape[-1]):
                    for b in range(len(weights)):
                        for h in range(weights.shape[1]):
                            w, d = weights[b, h, :, s], dweights[b, h, :, s]
                            result[b, h, :, s] = w * (d - w @ d)
                return result
            """),
            "over the queries and not over the keys",
        ),
        "over sequences": (
            softmax("return weights * (dweights - (weights * dweights).sum(0))"),
            "over the sequences and not",
        ),
        "over heads": (
            softmax("return weights * (dweights - np.sum(weights * dweights, 1)[:, None])"),
            "over the heads and not",
        ),
        "the whole array": (
            softmax("return weights * dweights - weights * np.vdot(weights, dweights)"),
            "over the whole array",
        ),
        "loops for three axes": (
            softmax("""
                result = np.zeros_like(weights)
                for b in range(weights.shape[0]):
                    for t in range(weights.shape[1]):
                        w, d = weights[b, t], dweights[b, t]
                        result[b, t] = w * (d - np.sum(w * d))
                return result
            """),
            "over queries and keys together",
        ),
        "loops for two axes": (
            softmax("""
                result = np.zeros_like(weights)
                for t in range(len(weights)):
                    result[t] = weights[t] * (dweights[t] - np.vdot(weights[t], dweights[t]))
                return result
            """),
            "over heads and queries too",
        ),
        "sequences too": (
            softmax("g = weights * dweights\nreturn g - weights * g.sum((0, 3), keepdims=True)"),
            "over the keys and over sequences too",
        ),
        "heads too": (
            softmax("g = weights * dweights\nreturn g - weights * g.sum((1, 3), keepdims=True)"),
            "over the keys and over heads too",
        ),
        "the mean": (
            softmax("g = weights * dweights\nreturn g - weights * g.mean(-1)[..., None]"),
            "too small by a factor, the number of keys",
        ),
        "the batch": (softmax(ROW_BY_ROW.replace("return ", "return 1/3 * ")), "by the batch size"),
        "the sign": (
            softmax("g = weights * dweights\nreturn g + weights * g.sum(-1, keepdims=True)"),
            "A sign is wrong",
        ),
        "the sum": (
            softmax("return np.multiply(dweights, weights)"),
            "second part of the derivative",
        ),
        "keepdims": (
            softmax("return weights * (dweights - np.sum(weights * dweights, -1))"),
            "has lost its axis",
        ),
        "all signs": (
            softmax("""
                g = weights * dweights
                return np.sum(g, axis=-1, keepdims=True) * weights - g
            """),
            "uphill",
        ),
        "the plain mean": (
            softmax("return weights * (dweights - np.mean(dweights, axis=-1)[..., None])"),
            "You subtract the plain mean",
        ),
        "the largest": (
            softmax("return weights * (dweights - np.amax(dweights, -1, keepdims=True))"),
            "You subtract the largest",
        ),
        "the whole sum": (
            softmax("d = dweights * weights\nreturn d - d.sum(-1, keepdims=True)"),
            "from every entry alike",
        ),
        "log-softmax": (
            softmax("return dweights - weights * dweights.sum(-1)[..., None]"),
            "the backward of log-softmax",
        ),
        "cross-entropy": (softmax("return weights - dweights"), "softmax and cross-entropy give"),
        "own term twice": (
            softmax("""
                result = weights * (1 - weights) * dweights
                return result - weights * np.einsum('...s,...s', weights, dweights)[..., None]
            """),
            "own term is counted twice",
        ),
        "own term not at all": (
            softmax("""
                g = weights * dweights
                others = g.sum(axis=-1, keepdims=True) - g
                return g - weights * others
            """),
            "own term is left out of the sum",
        ),
        "the sum alone": (
            softmax("return -weights * np.einsum('...s,...s', weights, dweights)[..., None]"),
            "comes from the division by the sum",
        ),
        "one weight squared": (
            softmax("return weights * dweights - weights**2 * np.sum(dweights, -1, keepdims=True)"),
            "occurs twice in what is",
        ),
        "exchanged": (
            softmax("g = weights * dweights\nreturn g - dweights * g.sum(axis=-1)[..., None]"),
            "have changed places",
        ),
        "weights once more": (
            softmax("""
                g = weights * dweights
                return weights * (g - (weights * g).sum(axis=-1)[..., None])
            """),
            "once too often",
        ),
    },
    "attention_backward": {
        "no scale": (
            attention(dS="dZ"),
            "The scale is missing: every entry is too large by sqrt(d_k)",
        ),
        "scale in dquery alone": (attention(dS="dZ", dQ="dZ @ K / 11**0.5"), "in dkey alone"),
        "scale in dkey alone": (attention(dQ="dZ @ K"), "in dquery alone"),
        "scale twice": (attention(dS="dZ / K.shape[-1]"), "You divide by d_k"),
        "scale of the values": (attention(dS="dZ * V.shape[3] ** -0.5"), "of the values in it"),
        "dkey untransposed": (attention(dK="np.matmul(dS, Q)"), "dkey lacks a transpose"),
        "dvalue untransposed": (
            attention(dV="np.einsum('bhst,bhtv->bhsv', A, dO)"),
            "dvalue lacks a transpose",
        ),
        "softmax skipped": (attention(dZ="dA"), "the softmax is skipped"),
        "softmax forward": (
            attention(dZ="np.exp(dA) / np.exp(dA).sum(axis=-1, keepdims=True)"),
            "the softmax once more",
        ),
        "softmax's diagonal": (attention(dZ="A * (1 - A) * dA"), "moved its own weight alone"),
        "key and query exchanged": (
            attention(
                dQ="np.einsum('bhts,bhsk->bhtk', dS, Q)", dK="np.einsum('bhts,bhtk->bhsk', dS, K)"
            ),
            "Query and key are exchanged",
        ),
        "scale by the sequences": (attention(dS="dZ / len(Q) ** 0.5"), "number of sequences."),
        "scale by the heads": (attention(dS="dZ / Q.shape[1] ** 0.5"), "number of heads."),
        "mask forgotten": (
            attention(dA="np.einsum('bhtv,bhsv->bhts', dO, V)\nA = again(Q, K)")
            + "\n\ndef again(Q, K):\n    A = np.exp(Q @ K.swapaxes(2, 3) / 11**0.5)\n"
            + "    return A / A.sum(axis=-1, keepdims=True)\n",
            "without the mask",
        ),
        "keepdims, head by head": (
            attention(dZ="A * (dA - (A * dA).sum(axis=-1)[..., None, :])"),
            "has lost its axis",
        ),
        "scale by the queries": (attention(dS="dZ / math.sqrt(Q.shape[-2])"), "number of queries,"),
        "scale by the keys": (attention(dS="dZ / np.sqrt(K.shape[2])"), "the number of keys,"),
        "arguments exchanged": (
            attention(dZ="dA * (A - np.sum(A * dA, axis=3)[..., None])"),
            "have changed places",
        ),
        "weights before the softmax": (
            attention(dA="A * (dO @ V.swapaxes(2, 3))"),
            "once too often",
        ),
        "dkey from the weights": (
            attention(dK="np.einsum('bhts,bhtk->bhsk', A, Q)"),
            "dkey is made of the weights",
        ),
        "dquery from the weights, scaled": (
            attention(dQ="A @ K / math.sqrt(K.shape[-1])"),
            "dquery is made of the weights",
        ),
        "dkey from dquery": (
            attention(dQ="dS @ K", dK="dS.swapaxes(2, 3) @ dQ"),
            "dkey is made of another gradient",
        ),
        "dvalue from the values": (
            attention(dV="A.swapaxes(-1, -2) @ V"),
            "dvalue is made of the values",
        ),
        "dvalue entry by entry": (attention(dV="A * dO"), "dvalue is multiplied entry by entry"),
        "dvalue from gradients": (attention(dV="dO.swapaxes(2, 3) @ dO"), "Its dvalue has the"),
        ".T": (attention(dV="A.T @ dO"), "turns round all axes"),
        "two mistakes": (
            attention(dS="dZ", dV="np.einsum('bhts,bhtv->bhsv', dZ, dO)"),
            "dvalue is made of the scores' gradient",
        ),
        "order": (attention(**{"return": "dV, dQ, dK"}), "are the results in the order"),
    },
    "mended_attention_backward": {
        "as given": (mended(), "Not begun yet."),
        "written otherwise": (
            mended("/ len(weights)", "* (1 / len(doutput))"),
            "It still does what it did. dvalue is right, dquery and dkey are too small",
        ),
        "dquery alone": (mended("dscores @ key", "len(key) * dscores @ key"), "dkey is still too"),
        "dkey alone": (
            mended("-2) @ query", "-2) @ query * doutput.shape[0]"),
            "dquery is still too",
        ),
        "dvalue too": (mended("-2) @ doutput", "-2) @ doutput / len(doutput)"), "dvalue was right"),
        "turned round": (
            mended("/ len(weights)", "* len(weights)"),
            "Now dquery and dkey are too large",
        ),
        "the queries": (mended("len(weights)", "weights.shape[2]"), "by the number of queries"),
        "the heads": (mended("len(weights)", "weights.shape[1]"), "by the number of heads"),
        "the keys": (mended("len(weights)", "weights.shape[3]"), "by the number of keys in place"),
        "no sum": (
            mended("(dweights - expected)", "dweights"),
            "The sum that you took out was right",
        ),
        "no scale": (
            mended(" / len(weights)").replace(" / math.sqrt(d_k)", ""),
            "The scale is missing: ",
        ),
    },
}
