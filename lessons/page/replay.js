// Repeats what lessons/kit/recording.py recorded: the operations of the library on arrays,
// in their order, on views of buffers, with the numbers that a reader has set.

/** An entry of the result, from entries x, y and z of the operands and its own value before, w. */
const ENTRIES = {
  absolute: "Math.abs(x)",
  add: "x + y",
  all: "w && x ? 1 : 0",
  any: "w || x ? 1 : 0",
  copy: "x",
  cos: "Math.cos(x)",
  divide: "x / y",
  equal: "x === y ? 1 : 0",
  exp: "Math.exp(x)",
  greater: "x > y ? 1 : 0",
  greater_equal: "x >= y ? 1 : 0",
  isfinite: "Number.isFinite(x) ? 1 : 0",
  less: "x < y ? 1 : 0",
  less_equal: "x <= y ? 1 : 0",
  log: "Math.log(x)",
  logical_and: "x && y ? 1 : 0",
  logical_not: "x ? 0 : 1",
  logical_or: "x || y ? 1 : 0",
  max: "Math.max(w, x)",
  maximum: "Math.max(x, y)",
  min: "Math.min(w, x)",
  minimum: "Math.min(x, y)",
  multiply: "x * y",
  negative: "-x",
  not_equal: "x !== y ? 1 : 0",
  power: "x ** y",
  sign: "Math.sign(x)",
  sin: "Math.sin(x)",
  sqrt: "Math.sqrt(x)",
  square: "x * x",
  subtract: "x - y",
  sum: "w + x",
  tanh: "Math.tanh(x)",
  where: "x ? y : z",
};

/** How far the entries of a view lie from its first, in the order of its shape. */
const addresses = (() => {
  const known = new Map();
  return (shape, strides) => {
    const key = `${shape}|${strides}`;
    if (!known.has(key)) {
      const places = new Int32Array(shape.reduce((product, size) => product * size, 1));
      let count = 1;
      shape.forEach((size, axis) => {
        for (let at = count - 1; at >= 0; at--) {
          const place = places[at];
          for (let n = size - 1; n >= 0; n--) places[at * size + n] = place + n * strides[axis];
        }
        count *= size;
      });
      known.set(key, places);
    }
    return known.get(key);
  };
})();

/** A function for each name, made once, so that each is compiled for its own operation. */
const kernels = Object.fromEntries(
  Object.entries(ENTRIES).map(([name, entry]) => {
    const operands = ["x", "y", "z"].filter((letter) => new RegExp(`\\b${letter}\\b`).test(entry));
    const before = operands.map((v, n) => `const ${v}s = of[${n}].numbers, ${v}p = of[${n}].places, ${v}o = of[${n}].first;`);
    const each = operands.map((v) => `const ${v} = ${v}s[${v}o + ${v}p[n]];`);
    const body = `const { numbers, places, first } = result, count = places.length; ${before.join(" ")}
      for (let n = 0; n < count; n++) { const at = first + places[n]; const w = numbers[at]; ${each.join(" ")} numbers[at] = ${entry}; }`;
    return [name, new Function("result", "of", body)];
  }),
);

/** Products of matrices: each entry a sum of `count` products. */
kernels.matmul = (result, [left, right], [count, down, across]) => {
  const { numbers, places, first } = result;
  const [a, b] = [left.numbers, right.numbers];
  for (let n = 0; n < places.length; n++) {
    let [i, j, sum] = [left.first + left.places[n], right.first + right.places[n], 0];
    for (let k = 0; k < count; k++, i += down, j += across) sum += a[i] * b[j];
    numbers[first + places[n]] = sum;
  }
};

const led = (indices, strides, n) =>
  indices.reduce((way, { numbers, places, first }, k) => way + numbers[first + places[n]] * strides[k], 0);

kernels.take = (result, [start, ...indices], strides) => {
  for (let n = 0; n < result.places.length; n++) {
    result.numbers[result.first + result.places[n]] = start.numbers[start.first + start.places[n] + led(indices, strides, n)];
  }
};

kernels.put = (start, [values, ...indices], strides) => {
  for (let n = 0; n < start.places.length; n++) {
    start.numbers[start.first + start.places[n] + led(indices, strides, n)] = values.numbers[values.first + values.places[n]];
  }
};

export class Replay {
  constructor({ buffers, operations, names }) {
    this.buffers = buffers.map((begin) => (Array.isArray(begin) ? Float64Array.from(begin, Number) : new Float64Array(begin)));
    this.begins = buffers;
    this.names = names;
    const view = (shape, operand) => {
      if (!Array.isArray(operand)) return { numbers: Float64Array.of(Number(operand)), first: 0, places: addresses(shape, shape.map(() => 0)) };
      const [buffer, first, ...strides] = operand;
      return { numbers: this.buffers[buffer], first, places: addresses(shape, strides) };
    };
    this.operations = operations.map(([name, shape, result, operands, more]) => [
      kernels[name],
      view(shape, result),
      operands.map((operand) => view(shape, operand)),
      more,
    ]);
  }

  /** Do all operations once more. */
  run() {
    for (const [kernel, result, operands, more] of this.operations) kernel(result, operands, more);
  }

  /** Let all arrays that are kept from run to run be as they were before the first run. */
  reset() {
    this.begins.forEach((begin, n) => Array.isArray(begin) && this.buffers[n].set(begin.map(Number)));
  }

  /** The numbers of an array, one after the other: to look at, or to change. */
  flat(name) {
    return this.buffers[this.names[name][0]];
  }

  set(name, values) {
    this.flat(name).set([values].flat(Infinity));
  }

  /** An array by its name, as rows within rows. */
  get(name) {
    const [buffer, ...shape] = this.names[name];
    return shape.reduceRight((rows, size) => Array.from({ length: rows.length / size || 0 }, (_, n) => rows.slice(n * size, (n + 1) * size)), [...this.buffers[buffer]])[0];
  }
}
