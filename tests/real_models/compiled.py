"""tracr: programs in RASP (Weiss et al. 2021) become weights of a Transformer.

What such a Transformer computes is known exactly, for the program can also be run. The last step of
the compiler (Lindner et al. 2023) needs JAX; before it, the matrices of all sublayers are there.
"""

import importlib
import math
import sys
import types

import numpy as np

import numformer as nf
from tests.real_models.measuring import RealModel, folder_of

START, LENGTH = "compiler_bos", 6


def module(name: str):
    """A module of tracr, without running the package tracr.compiler, which imports JAX."""
    package = types.ModuleType("tracr.compiler")
    package.__path__ = [f"{folder_of('tracr')}/compiler"]
    sys.modules.setdefault("tracr.compiler", package)
    return importlib.import_module(f"tracr.{name}")


class Program(nf.Layer):
    """A program over symbols as a Transformer without norms: sublayers add to a stream x (T, D)."""

    def __init__(self, program, symbols):
        bases, rasp = module("craft.bases"), module("rasp.rasp")
        found = module("compiler.rasp_to_graph").extract_rasp_graph(program)
        graph, sink, start = found.graph, found.sink, bases.BasisDirection("tokens", START)
        module("compiler.basis_inference").infer_bases(graph, sink, {*symbols}, LENGTH)
        crafting = module("compiler.expr_to_craft_graph")
        crafting.add_craft_components_to_rasp_graph(graph, bos_dir=start)
        craft = module("compiler.craft_graph_to_model").craft_graph_to_model(graph, found.sources)
        inputs = [bases.BasisDirection("tokens", symbol) for symbol in symbols]
        inputs += [bases.BasisDirection("indices", n) for n in range(LENGTH)]
        stream = {*craft.residual_space.basis, start, *inputs, *sink["OUTPUT_BASIS"]}
        self.directions = [(n.name, n.value) for n in sorted(stream)]
        self.outputs = [(n.name, n.value) for n in sink["OUTPUT_BASIS"]]
        self.is_numerical, self.rng = rasp.is_numerical(program), np.random.default_rng(0)
        self.sublayers = [
            self.feed_forward(block) if hasattr(block, "fst") else self.attention([*block.heads()])
            for block in craft.blocks
        ]

    def select(self, space) -> np.ndarray:
        """The matrix (D, d) that takes a space out of the stream."""
        places = [self.directions.index((n.name, n.value)) for n in space.basis]
        return np.eye(len(self.directions))[:, places]

    def feed_forward(self, block) -> nf.Layer:
        layer = nf.FeedForward(len(self.directions), block.fst.matrix.shape[1], self.rng)
        layer.inner.weight.data[...] = self.select(block.fst.input_space) @ block.fst.matrix
        layer.outer.weight.data[...] = block.snd.matrix @ self.select(block.snd.output_space).T
        return layer

    def attention(self, heads) -> nf.Layer:
        d_k = max(head.w_qk.matrix.shape[1] for head in heads)
        d_v = max(head.w_ov.matrix.shape[1] for head in heads)
        layer = nf.SelfAttention(len(self.directions), len(heads), self.rng, d_k, d_v)
        for part in ("query", "key", "value", "output"):
            getattr(layer, part).weight.data[...] = 0
        for number, head in enumerate(heads):
            query, value = (self.select(n) for n in (head.w_qk.left_space, head.w_ov.input_space))
            query = query @ head.w_qk.matrix * math.sqrt(d_k)  # which attention divides by
            value, output = value @ head.w_ov.matrix, self.select(head.w_ov.output_space).T
            matrices = dict(query=query, key=self.select(head.w_qk.right_space), value=value)
            for part, matrix in matrices.items():
                columns = np.split(getattr(layer, part).weight.data, len(heads), axis=1)[number]
                columns[:, : matrix.shape[1]] = matrix
            layer.output.weight.data[number * d_v :][: len(output)] = output
        return layer

    def run(self, symbols) -> list:
        """The output at each symbol."""
        active = [
            {("tokens", symbol), ("indices", t), ("one", None)}
            for t, symbol in enumerate([START, *symbols], -1)
        ]
        x = np.array([[[n in here for n in self.directions] for here in active]], float)
        for layer in self.sublayers:
            x += layer.forward(x)
        y = x[0, 1:, [self.directions.index(output) for output in self.outputs]].T
        return y[:, 0].tolist() if self.is_numerical else [self.outputs[n][1] for n in y.argmax(1)]


class Compiled(RealModel):
    packages = (
        *(("tracr-pypi", "tracr"), ("absl-py", "absl"), ("networkx", "networkx")),
        ("typing-extensions", "typing_extensions"),
    )
    kind = "encoders, compiled"
    compared = "what five programs write"

    def __init__(self, packages, folder):
        lib, rasp = module("compiler.lib"), module("rasp.rasp")
        sort = lib.make_sort(rasp.tokens, rasp.tokens, max_seq_len=LENGTH, min_key=1)
        self.programs = [
            (lib.make_reverse(rasp.tokens), "abcd", ["abca", "dcbaab"]),
            (lib.make_hist(), "abcd", ["abca", "dddaab"]),
            (sort, range(1, 6), [[3, 1, 2, 2, 5], [4, 4, 1, 5, 3, 2]]),
            (lib.make_shuffle_dyck(["()", "{}"]), "(){}", ["({)}", "())("]),
            (lib.make_frac_prevs(rasp.tokens == "x"), "xyz", ["xyzxx", "yyyx"]),
        ]
        self.model = nf.Layer()
        self.model.parts = [Program(program, symbols) for program, symbols, _ in self.programs]

    def ours(self):
        return self.outputs(part.run for part in self.model.parts)

    def theirs(self):
        return self.outputs(program for program, *_ in self.programs)

    def outputs(self, runs) -> list:
        written = [
            run([*text])
            for run, (*_, texts) in zip(runs, self.programs, strict=True)
            for text in texts
        ]
        texts, numbers = written[:-2], written[-2:]
        return [" ".join(map(str, row)) for row in texts] + [[*map(float, row)] for row in numbers]
