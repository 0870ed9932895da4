"""Mutants that compute the same as the library, with proofs that no test can notice them.

Below each proof are its mutants: the file, and part of the mutated statement as `ast.unparse`
writes it.
"""

import re
from collections import defaultdict

from tests.mutation.mutants import Mutant

LISTED = """
How much is done at once, and how weights lie in memory, changes no number.
    generation/reading.py: LARGEST = 4097
    generation/beam.py: PIECE = 1 << 19
    generation/beam.py: PIECE = 1 >> 18
    generation/beam.py: PIECE = 2 << 18
    generation/beam.py: PIECE = 1
    generation/binding.py: SMALL = 1 >> 16
    generation/binding.py: SMALL = 1 << 17
    generation/binding.py: SMALL = 2 << 16
    generation/binding.py: SMALL = 1
    generation/binding.py: SMALL = 16
    generation/binding.py: FEW_STEPS = 9
A tag need only differ from others; defaults of replaced methods are unused; waits may be longer.
    execution/rank_executor.py: GRADIENTS = 17
    execution/ranks.py: to: int, tag: int=1) -> Callable[[], bool]:
    execution/ranks.py: source: int, tag: int=1) -> Callable[[], bool]:
    execution/ranks.py: timeout: float=40.0
Nothing reads whether a tensor of a file requires a gradient.
    published/pickles.py: 'NEWFALSE': True
    published/pickles.py: 'NEWTRUE': False
A table's row is not used if the model lacks its parameter.
    published/images.py: range(config.registers or 1)
A factor keeps the order of measures; a number that all evaluations share decides nothing.
    training/trainer.py: sign = -2 if
    training/trainer.py: self.task.higher_is_better else 2
    training/trainer.py: e.get('held_out_loss', 1)
An array of the module stays as it is.
    backend.py: return x
Two empty lists may change places.
    published/saving.py: requirements, received = ([], [])
Python numbers what a pickle memorizes in order.
    published/pickles.py: memory[len(memory)]
Arrays of the host have no kernels.
    arithmetic.py: if (kernel := kernels_for(a).get('matmul'))
Only the number of sources is looked at, not their length.
    models/speech.py: np.ones((len(sounds), 2))
The two halves of the mel scale meet; times and divided by a penalty 0 stays 0.
    data/sound.py: hertz = np.where(mel <= 15
    generation/rules.py: np.where(row[ids] <= 0
A layer that shares its parameters with itself has its own; rows of a weight have one length.
    models/config.py: for layer in layers[:]
    generation/binding.py: np.zeros_like(part.weight.data[1])
Without rules a writer writes the same, but more slowly.
    generation/continuation.py: writer: Any = RuledWriter(model, self.rules)
    generation/transduction.py: writer: Any = RuledWriter(model, self.rules)
A bias of keys adds the same to all scores of a query; the first time stamp is never in a pair.
    generation/binding.py: else part.weight.data[0]
    generation/listening.py: [n > self.first_stamp for n in ids]
    generation/listening.py: for n in range(2, len(ids))
A hypothesis that can only equal the worst one does not replace it.
    generation/beam.py: return reachable >= self.worst
A distance has no sign.
    later/attention/patterns.py: abs(t[:, None] - s)
    later/attention/patterns.py: abs(t - s)
    optimization/optimizers.py: abs(cut - ends)
    later/attention/patterns.py: ahead, near = (t[:, None] - s,
Nothing comes after a single position.
    paper/transformer.py: Reach(latest)
    paper/transformer.py: Reach(latest, causal=False)
Biases have the same rules in both directions; the factor of rotary positions has no base.
    later/mixers/attention.py: self.new_bias(config, causal=False)
    published/llamas.py: rope(foreign, 2, 20000.0)
A share between two ends that are one is cut off at 0 or 1.
    published/rope.py: last - first or 0.002
A copy of an array that is a new one already.
    paper/dropout.py: return dx.copy()
The number of pairs in a batch is not used where tokens fill the batch.
    data/batching.py: super().__init__(pairs, 2, seed, pool)
Every pair has a start or an end, so its length is at least 1.
    data/batching.py: longest = 1
Where nothing is saved a checkpointed layer saves nothing, either.
    later/checkpointed.py: if any((isinstance(x, Memory) for x in inputs)):
The largest of a row are found in groups and without, the one of many, the other of few faster.
    generation/beam.py: if not groups <= count:
    generation/beam.py: if groups < count:
    generation/beam.py: GROUP = 33
A device takes all rows at once because that is faster: the output is the same.
    generation/beam.py: rows = max(1, PIECE // logits.shape[1])
The largest are taken from every group, not only from the `count` groups with the largest maxima.
    generation/beam.py: first = xp.argpartition(highest, -count)[:, :]
A bound model computes the same, faster; so it does with products of another kind, with a copy of
the weights, or without an offset of zeros. A number added to every logit of a row changes nothing.
    generation/beam.py: writer, choose, ranking = (model, most_probable
    generation/sampling.py: bound = model
    generation/sampling.py: write(model, inputs, max_length
    generation/binding.py: if source is not None:
    generation/binding.py: dtype.type(1), dtype.type(-np.inf)
    generation/binding.py: most = PIECE * weight.size
    generation/binding.py: most = PIECE
    generation/binding.py: most = weight.size
    generation/binding.py: y = x.dot(weight)
    generation/binding.py: y = product(x, weight)
    generation/binding.py: len(x) < most
    generation/binding.py: if not (len(x) <= MOST_ROWS or
    generation/binding.py: len(x) <= MOST_ROWS and step
    generation/binding.py: if step.past.room <= FEW_STEPS
    generation/binding.py: if len(x) <= MOST_ROWS:
    generation/binding.py: len(x) < MOST_ROWS or
    generation/binding.py: step.past.room < FEW_STEPS
    generation/binding.py: slices(0, transposed.shape[1], 65)
    generation/binding.py: if not sum((part.weight.size for part in parts)) > SMALL
    generation/binding.py: part.weight.size for part in parts)) >= SMALL
    generation/binding.py: return writing.greedy(model, inputs
Ended rows are removed once they are a third or half of all: the output is the same.
    paper/writing.py: if 3 * ended[rows].sum() >= len(rows):
The exponentials in new memory instead of that of `shifted`, which is not read again.
    paper/cross_entropy.py: exponentials = xp.exp(shifted)
Positions are whole numbers, and NumPy's numbers can be the ends of a slice.
    later/attention/patterns.py: last + ahead + 1.0)
Where two ways to the same sum are equally fast, and the types of an annotation.
    arithmetic.py: MAX_ROWS = 17
    arithmetic.py: contextvars.ContextVar[Callable](
    arithmetic.py: contextvars.ContextVar[None](
Any letters of a script that hardly any text has serve as signs.
    data/moses.py: range(40961, 42125)
    data/moses.py: range(40960, 42126)
The rows of a matrix are the matrix itself.
    arithmetic.py: return x.reshape(-1, x.shape[-1])
Backward has the overwritten array already, so what is returned does not matter.
    paper/cross_entropy.py: return (lambda g: g / len(g))(dlogits)
A total for every entry of a row, all of them the same.
    paper/cross_entropy.py: total = xp.empty_like(logits[:, :])
The first position after those that last stands behind them, by either rule.
    later/attention/rolling_cache.py: np.where(positions <= self.permanent
A block has as many rows as is fast, a chunk as many positions; a stretch is cut off where the array
ends.
    later/attention/tiles.py: ROWS = 129
    later/mixers/running_sums.py: CHUNK = 65
Beyond 10 and beyond 11 the share of GELU is 0 or 1 to the last digit.
    later/activations.py: near = xp.minimum(xp.maximum(x, -11), 10)
    later/activations.py: near = xp.minimum(xp.maximum(x, -10), 11)
A distance of `single` is the first of the later buckets: the logarithm of 1 is 0.
    later/attention/relative.py: np.where(near <= single, near,
A NumPy bool works like a Python bool.
    paper/masks.py: return self.valid.all()
The last of two axes is axis 1, and the last axis is the default since NumPy 2.3.
    generation/beam.py: xp.split(x, [groups * GROUP], axis=-1)
    generation/beam.py: xp.concatenate([places, after], axis=-1)
    generation/beam.py: xp.take_along_axis(places, among)
    generation/beam.py: xp.take_along_axis(places, among, axis=-1)
    paper/beam.py: xp.take_along_axis(shifted, symbols) -
    paper/beam.py: xp.take_along_axis(shifted, symbols, axis=-1)
    generation/sampling.py: np.take_along_axis(ranked, count - 1)
Any letters may stand for the marks while the sentence is tokenized.
    data/moses.py: zip(marks, (c for c
The same bools, which Python reads more slowly.
    data/subwords.py: iter(rng.random(3 * len(text) + 3) < dropout)
The comparison differs only where a random number of 53 bits equals the probability.
    data/subwords.py: rng.random(3 * len(text) + 3) <= dropout
No texts have so few characters, none so many subwords; sentencepiece takes both numbers.
    data/subwords.py: max(6, size)
    data/subwords.py: 11 ** 6
    data/subwords.py: 10 ** 7
The amount of output by sentencepiece on standard error.
    data/subwords.py: normalization_rule_name='identity', **SPECIAL_IDS
    data/subwords.py: minloglevel=3
What logits are where they do not count: what comes of it is multiplied with 0, or compared with the
same.
    paper/cross_entropy.py: xp.where(real[rows, None], piece, logits.dtype.type(1))
    later/divergence.py: xp.where(counts, x, x.dtype.type(1))
np.diff gets -2 instead of -1 before the smallest id or row. These are at least 0, so the first
difference is above 0 either way, and whether it is 0 is all that counts.
    arithmetic.py: np.diff(sorted_ids, prepend=-2)
    paper/memory.py: np.diff(sources, prepend=-2)
A Python integer takes the dtype of the array that it multiplies, uint64 (NEP 50).
    randomness.py: bits *= 11400714819323198485
    randomness.py: bits *= factor
The same hashes, computed in pieces that the cache may not hold.
    randomness.py: for piece in cache_pieces((flat := counters)):
More random words than are read.
    later/attention/tiled_dropout.py: np.arange(count * 4 + 2)
    later/attention/tiled_dropout.py: np.arange(count + 2)
    later/attention/tiled_dropout.py: np.arange(count // 4 + 3)
SeedSequence.generate_state makes word after word: of two words the first is the same.
    randomness.py: sequence.generate_state(2, np.uint64)[0]
A polynomial of a higher degree, which has all digits of the dtype, too.
    later/normal.py: _tail_polynomial(8 if
    later/normal.py: else 19)
The same numbers. As NumPy's own they make each sum in float64 before it is rounded, which takes
longer.
    later/normal.py: return polynomial.convert(kind=np.polynomial.Polynomial).coef[::-1]
Beyond 40 the exponential is 0 in every dtype, so both results are.
    later/normal.py: xp.minimum(xp.absolute(value), 41)
At 0 the tail is 1/2, and so is the difference from 1.
    later/normal.py: tail -= value >= 0
What differs from the first state and what differs from the second have the same difference; and of
one state nothing differs.
    training/average.py: shapes[1].items()
The number of holes that are filled at once.
    generation/infilling.py: np.split(holes, range(256, len(holes), 257))
Only the size of the difference is used.
    later/attention/alibi.py: abs(keys - queries[:, None])
Where all are at work, nothing is appended.
    recurrence/recurrent.py: state = xp.concatenate([new, state[count:]])
What stands after a target is computed, too, and left out afterwards, with no gradient.
    models/recurrent.py: y = self.decoder.forward(x, None, start,
At the end of the warm-up both formulas give the peak.
    optimization/recipe.py: if step < warmup
The cosine of a number and of its negative are the same.
    optimization/recipe.py: math.pi * (warmup - step)
    optimization/recipe.py: (warmup - (steps + 1))
The dot product of two vectors, whose products and their order are the same.
    paper/cross_entropy.py: return (share @ losses,
The two are added, into an array that belongs to nobody else either way.
    paper/attention.py: dmemory, dx = super().backward(dy)
The same maxima, of which a device makes more work.
    arithmetic.py: if x.shape[-1] <= 64
The number of texts that are computed at once.
    generation/transduction.py: min(251, 2 ** 20
A copy of what could be viewed as well.
    later/attention/rotary.py: return x.copy()
    published/table.py: return np.concatenate(arrays, axis=-1)
The time at which a line appears on a terminal, and its place beside a progress bar.
    training/loop.py: print(line)
    training/loop.py: print(line, flush=False)
Where nothing is remembered, x and memory both begin one place further; who may see whom, and
rotary's angles between them, stay.
    paper/attention.py: past.length if past else 1
    later/mixers/linear_attention.py: past.length if past else 1
Without padding a product with True everywhere.
    later/mixers/linear_attention.py: visible = xp.asarray(places.valid[:, None, :, None])
    later/mixers/state_space.py: return x * self._visible(x, reach)
    later/mixers/state_space.py: return dx * self._visible(dx, reach)
A round in which no two are added; a tree with one more level, which adds nothing.
    execution/pairwise.py: size <= count
    execution/pairwise.py: total(0, 2 << (count - 1).bit_length())
    execution/pairwise.py: total(0, 1 << count - 1)
    execution/pairwise.py: total(0, 1 << (count + 1).bit_length())
    execution/pairwise.py: total(0, 1 << count.bit_length())
    execution/pairwise.py: total(0, 1 << (1 - count).bit_length())
On Linux UTF-8 is the usual encoding, too.
    published/files.py: values = json.loads(path.read_text())
    published/vocabularies.py: path.read_text()
    published/files.py: main.read_text()
Every published model has norms, which the lower bound leaves out: a folder with just as many
numbers lacks some, and is refused later.
    published/loading.py: if config.least_parameters >= count
No JSON file is that long to the byte.
    published/files.py: LARGEST_JSON = 100000001
    published/pickles.py: LARGEST = 100000001
Weights that the arrays of the file replace.
    published/loading.py: return np.broadcast_to(1.0, size)
No branch is empty where it begins beyond the last part; a count begins at 0.
    execution/rank_executor.py: branches(own.start, min(own.stop, parts), parts)
    execution/rank_executor.py: self.bytes_sent, self.seconds_waiting = (0.0, 0)
A tall matrix gives the same turned or not; and no matrix has a norm of just such a size.
    optimization/optimizers.py: if x.shape[1] > x.shape[1]:
    optimization/optimizers.py: 2e-07
Rows of logits that all count are computed the same, one by one or with those that do not.
    paper/cross_entropy.py: real: Any = to_module(counts, xp)
The vectors of an optimizer have one size; of a bias that is only looked at, its presence counts;
rows of a table taken by their numbers are those taken by a slice; a list makes ids quick to read.
    paper/adam.py: cache_pieces(vectors[1])
    paper/linear.py: bias = (self.weight.data, self.bias)
    recurrence/cells.py: dict(weight=self.weight.data, bias=self.bias)
    paper/positions.py: (positions == stop - len(positions)).all()
    paper/positions.py: return table[to_module(positions, xp)]
    paper/writing.py: if not unwritten.isdisjoint(ids):
    paper/writing.py: [symbol in ends for symbol in ids]
    paper/beam.py: (self.rows, self.log_p, self.written.tolist())
Each expert has saved for itself, so their order does not matter; without padding all places are
real; with all places, the first axis is only longer by one.
    later/experts.py: in saved['results']:
    later/experts.py: return pick_backward(y, places, x.shape)
    later/experts.py: return pick_backward(dx, places, shape)
    later/experts.py: if x.ndim < 3 or not isinstance(reach, Reach):
How attention is divided into tiles, whatever the tiles; limits between whole numbers.
    later/attention/patterns.py: tile.keys.start >= count
    later/attention/patterns.py: causal, half, rows):
    later/attention/patterns.py: yield tile
    later/attention/patterns.py: tile._replace()
    later/attention/patterns.py: small=self.stride <= rows
    later/attention/patterns.py: strided_rows, strided_keys)
    later/attention/patterns.py: small=False
    later/attention/patterns.py: first + ahead + 1.0
    later/attention/tiled_dropout.py: columns[-1] + columns[0]
    later/attention/tiled_dropout.py: if count <= columns[-1]:
    later/attention/tiles.py: dot_last(x, x).max(initial=1)
    later/attention/tiles.py: groups <= heads
    later/attention/tiles.py: for sequences in slices(0, batch, 1):
    later/attention/tiles.py: host or not reach.keys.all_valid
    later/attention/tiles.py: 1 if not reach.keys.all_valid
    later/attention/tiles.py: 1 if host else
    later/attention/tiles.py: stop = tile.unmasked.start
    later/attention/tiles.py: stop = len(real)
    later/attention/tiles.py: tile.small and (not host)
    later/attention/tiles.py: together = not host
    later/attention/tiles.py: together = tile.small
    later/attention/tiles.py: tile.small or host
    later/attention/tiles.py: size = 1
    later/attention/tiles.py: tile.heads == 0
    later/attention/tiles.py: tile.heads == slice(1, heads)
    later/attention/tiles.py: else 2
    later/attention/tiles.py: product([sequences], slices
    later/attention/tiles.py: product(slices(sequences.start, sequences.stop, 1), slices
    later/attention/tiles.py: sequences.stop, 2)
    later/attention/tiles.py: heads if group == 1
    later/attention/tiles.py: tile.heads.stop, size)
    later/attention/tiles.py: np.flatnonzero(places.valid[sequences]).max
    later/attention/tiles.py: max(initial=1) for places
    later/attention/tiles.py: return xp.asarray(padding_mask(valid))
    later/attention/tiles.py: if visible is None:
The faster search for the most probable finds the same.
    paper/beam.py: beam.extend(*most_probable(logits
A clock never shows the very end of the timeout.
    execution/ranks.py: time.monotonic() - began >= self.timeout
A copy that nothing overwrites, an empty message, a block of zeros, a cut beyond the vector.
    execution/rank_executor.py: number <= len(own) - 1
    execution/rank_executor.py: len(own) + 1
    execution/rank_executor.py: if number < len(own):
    execution/rank_executor.py: part.start <= part.stop
    execution/rank_executor.py: np.zeros(1, grad.dtype)
    execution/forked.py: range(self.parts + 2)
A rank has arrays of a GPU only with MPI, whose tests notice.
    execution/rank_executor.py: squares = block_squares(grad, blocks)
    execution/rank_executor.py: [loss for loss in losses], squares
A block has more than two entries, so a vector of one or two has one block.
    optimization/clipping.py: max(size, 2)
"""
PROOFS = {
    " ".join(proof.split()): [entry.strip() for entry in entries.splitlines()]
    for proof, entries in re.findall(r"(?m)((?:^\S.*\n)+)((?:^ {4}.*\n)+)", LISTED)
}


def equivalent(mutants: list[Mutant]) -> tuple[dict[str, str], list[str]]:
    """The proofs of equivalent mutants by name, and the entries that fit no mutant or too many.

    An entry fits too many if they change the statement in different ways.
    """
    proofs, unfit, by_path = {}, [], defaultdict(list)
    for mutant in mutants:
        by_path[mutant.path].append(mutant)
    for proof, entries in PROOFS.items():
        for entry in entries:
            path, words = entry.split(": ", 1)
            candidates = [m for m in by_path[path] if words in m.mutated]
            fitting = [m for m in candidates if words not in m.statement or words == m.mutated]
            proofs |= {mutant.name: proof for mutant in fitting}
            if len({mutant.mutated for mutant in fitting}) != 1:
                unfit.append(entry)
    return proofs, unfit
