"""The mistakes that learners make, as operators on the lines of a solution.

An operator takes a node of a line, and whether it is the whole line, and yields the wrong
expressions that a learner may write there. Each comes with a sentence in which {it} stands for what
the line computes, and with a hint if that of the line does not fit. If several mistakes give the
same numbers, the first one is reported.
"""

import ast
import itertools
import re
from collections.abc import Iterator

import numpy as np


def parsed(expression: str) -> ast.AST:
    return ast.parse(expression, mode="eval").body


def names(node: ast.AST) -> list[str]:
    """The names in an expression, except arrays of which it takes only a size."""
    return re.findall(r"\w+", re.sub(r"\w+\.shape", "", ast.unparse(node)))


def forms(value: ast.AST) -> list[ast.AST]:
    """a (b - c) also as a b - a c, a form in which learners make other mistakes."""
    match value:
        case ast.BinOp(a, ast.Mult(), ast.BinOp(b, ast.Add() | ast.Sub() as op, c)):
            product = ast.BinOp(ast.BinOp(a, ast.Mult(), b), op, ast.BinOp(a, ast.Mult(), c))
            return [value, parsed(ast.unparse(product))]
    return [value]


# Kind of expression | what a learner writes instead | the sentence. Words in [] are said only if
# the {part} in them has a name.
RULES = """\
reduced | {x} | In {it}, the {how} is missing: each entry is used by itself.
reduced | {x}.{other}({rest}) | In {it}, a {other} stands where a {how} belongs.
reduced | {x}.max({rest}) | In {it}, the largest entry stands where a {how} belongs.
kept | {x}.{how}({axis}) | In {it}, each {how} has lost its axis, so it lines up with the wrong one.
kept | {x}.{how}({axis})[..., None, :] | In {it}, each {how} lines up with the wrong axis.
kept | {x}.{how}({rest}) - {x} | In {it}, each entry's own term is left out of the {how}.
kept | {x}.{how}({rest}) + {x} | In {it}, each entry's own term is counted twice in the {how}.
Mult | {a} | In {it}, a factor is missing[ beside {a}].
Mult | {a} * {b} * {a} | In {it}, a factor occurs twice[: {a}].
Mult | {a} / {b} | In {it}, a factor is upside down: it divides where it has to multiply.
Div | {a} | In {it}, a division is missing.
by root | {a} / {b} / {b} | In {it}, a division is done twice, or a root is missing.
Div | {a} / {b} / {b} | In {it}, a division is done twice.
Div | {a} * {b} | In {it}, a factor is upside down: it multiplies where it has to divide.
root | {x} | In {it}, a root is missing.
Pow | {a} | In {it}, a power is missing.
Sub | {a} | In {it}, a part is missing.
Sub | -{b} | In {it}, a part is missing.
Sub | {a} + {b} | In {it}, a sign is wrong: one part has to be subtracted.
Add | {a} | In {it}, a part is missing.
Add | {a} - {b} | In {it}, a sign is wrong: both parts have to be added.
transposed | {x} | In {it}, a transpose is missing.
transposed | {x}.T | In {it}, `.T` reverses all the axes[ of {x}], not only the last two.
plain a | {a}.swapaxes(-1, -2) @ {b} | In {it}, there is one transpose too many.
plain b | {a} @ {b}.swapaxes(-1, -2) | In {it}, there is one transpose too many.
MatMult | {b} @ {a} | In {it}, the factors of the product stand in the wrong order.
MatMult | {a} * {b} | In {it}, entry is multiplied by entry, where a matrix product belongs.
MatMult | {a}.swapaxes(-1, -2) * {b} | In {it}, entry is multiplied by entry, not as matrices.
"""


def kinds(node: ast.AST) -> Iterator[tuple[str, dict[str, str]]]:
    """The kinds of an expression by their names in RULES, each with its parts."""
    text = ast.unparse
    match node:
        case ast.Call(ast.Attribute(x, "sum" | "mean" as how), [], options):
            given = {option.arg: f"{option.arg}={text(option.value)}" for option in options}
            parts = {"x": f"({text(x)})", "how": how, "other": "mean" if how == "sum" else "sum"}
            parts |= given | {"rest": ", ".join(given.values())}
            yield from ((kind, parts) for kind in ("reduced", "kept")[: 1 + ("keepdims" in given)])
        case ast.BinOp(a, op, b):
            parts = {"a": f"({text(a)})", "b": f"({text(b)})"}
            if isinstance(op, ast.Div) and "root" in dict(kinds(b)):
                yield "by root", parts
            for name, side in {"a": a, "b": b}.items():
                if isinstance(op, ast.MatMult) and "transposed" not in dict(kinds(side)):
                    yield f"plain {name}", parts
            yield type(op).__name__, parts
            if isinstance(op, ast.Mult | ast.Add):
                yield type(op).__name__, {"a": parts["b"], "b": parts["a"]}
        case ast.Attribute(x, "T") | ast.Call(ast.Attribute(x, "swapaxes")):
            yield "transposed", {"x": text(x)}
        case ast.Call(ast.Attribute(_, "sqrt"), [x]):
            yield "root", {"x": text(x)}


def other_axis(node, line, solution, whole):
    for kind, parts in kinds(node):
        if kind == "reduced":
            shape, how, kept = solution.shape(parts["x"]), parts["how"], parts.get("keepdims", "")
            every = range(len(shape))
            given = ast.literal_eval(parts["axis"][5:]) if "axis" in parts else every
            own = {axis % len(shape) for axis in np.atleast_1d(given)}
            for axes in itertools.chain(*(itertools.combinations(every, n + 1) for n in every)):
                here, there = (solution.over([*some], shape) for some in (axes, own))
                if here == there:  # two axes whose sizes are called the same
                    here, there = f"axis {axes[0]}", f"axis {min(own)}"
                alone = " alone" * (own < {*axes})
                words = f"the {how} runs over {here} and not over {there}{alone}."
                yield f"{parts['x']}.{how}(axis={axes}, {kept})", f"In {{it}}, {words}"


def by_rule(node, line, solution, whole):
    table = [rule.split(" | ") for rule in RULES.splitlines()]
    for (kind, parts), (its_kind, new, words) in itertools.product([*kinds(node)], table):
        if kind == its_kind:
            called = {name: line.what.get(part.strip("()")) for name, part in parts.items()}
            for part in re.findall(r"\[.*?\]", words):
                phrase = part[1:-1].format(**called)
                words = words.replace(part, phrase * ("None" not in phrase))
            yield new.format(**parts), words.format(**parts, it="{it}")


def other_line(node, line, solution, whole):
    """The wrong sign, another array instead, an array as a factor too many, or two swapped."""
    text = ast.unparse(node)
    if whole:
        yield f"-({text})", "The sign of {it} is wrong."
    for name, what in line.what.items() if whole else ():
        if solution.shape(name) == solution.shape(line.name) != ():
            words = f"Where {{it}} belongs, there is {what}."
            if on_the_way(name, line, solution.parameters[0]):
                words = f"A step is left out: {what} is passed on unchanged as {{it}}."
            yield name, words
            yield f"({text}) * {name}", f"In {{it}}, there is an extra factor: {what}."
    for name, other in itertools.combinations(line.what, 2) if whole else ():
        if {name, other} <= {*names(node)}:
            new = {name: other, other: name}
            words = f"In {{it}}, {line.what[name]} and {line.what[other]} are swapped."
            yield re.sub(r"\w+", lambda word, new=new: new.get(word[0], word[0]), text), words


def on_the_way(name: str, line: ast.Assign, first: str) -> bool:
    """Whether an array is made from the first argument and used for what a line computes."""
    return name in sources(line) and first in {name, *sources(line.earlier.get(name))}


def sources(line: ast.Assign | None) -> set[str]:
    """The names that a line computes with, and all names that these were made from."""
    used = line.operands if line else set()
    return used.union(*(sources(line.earlier[name]) for name in used if name in line.earlier))


def other_array(node, line, solution, whole):
    """x -> y of the same shape; in a matrix product y of any shape, since it may fit."""
    sized = [part.value for part in ast.walk(line.value) if getattr(part, "attr", "") == "shape"]
    text = ast.unparse(line.value)
    own = getattr(node.value if isinstance(node, ast.Subscript) else node, "id", "")  # x or x[t]
    for name, what in line.what.items() if own in line.what and node not in sized else ():
        right, shape = line.earlier.get(own), solution.shape(name)
        if right and name in right.operands and on_the_way(name, line, solution.parameters[0]):
            words = f"On the way to {{it}}, a step is left out: {what} is used as {right.it}."
            yield name, words, right.hint
        elif shape and (shape == solution.shape(ast.unparse(node)) or "@" in text):
            yield name, f"In {{it}}, {what} stands where another array belongs."


def other_size(node, line, solution, whole):
    """x.shape[i] -> y.shape[j], x -> x / y.shape[j], x -> x * y.shape[j]"""
    text = ast.unparse(node)
    for words, size in solution.sizes().items():
        if re.fullmatch(r"\w+\.shape\[.*\]", text):
            yield size, f"In {{it}}, {words} stands where another size belongs."
        if whole:
            message = f"In {{it}}, there is an extra division by {words}."
            mean = " A loss that is a mean already contains this division."
            yield f"({text}) / {size}", message + mean * ("loss" in solution.parameters[0])
            yield f"({text}) * {size}", f"In {{it}}, there is an extra factor: {words}."


OPERATORS = [other_axis, by_rule, other_line, other_array, other_size]
