import { equals, factor, short } from "../page/matrix.js";

// The arithmetic of a step of the attention stepper, spelt out: "0·0 + 2·2 + 1·1 + 0·0 = 5". `now`
// has the numbers of each matrix by its name; a step's `worked` says which of them take part.

const sum = (terms) => terms.join(" + ");
const products = (left, right) => left.map((x, n) => `${factor(x)}·${factor(right[n])}`);
const makes = (text, parts, value) => `${text} ${equals(...parts, value)} ${short(value)}`;

/** What a step finds for a whole row before its entries: [its name, the arithmetic], or null. */
export function ofRow({ worked }, now, row) {
  if (worked.kind === "centre") {
    const [left, right, [average]] = [now.dweights[row], now.weights[row], now.average[row]];
    return ["average", makes(sum(products(left, right)), [...left, ...right], average)];
  }
  if (worked.kind === "softmax") {
    const [exponentials, [total]] = [now.exponentials[row], now.total[row]];
    return ["sum", makes(sum(exponentials.map(short)), exponentials, total)];
  }
  return null;
}

/** How an entry of the step's last result comes about. */
export function ofEntry({ worked, inputs, results }, now, scale, row, column) {
  const value = now[results.at(-1)][row][column];
  if (worked.kind === "product") {
    const along = ([name, axis], n) =>
      axis === "row" ? now[name][n] : now[name].map((line) => line[n]);
    const left = along(worked.left, row);
    const right = along(worked.right, column);
    return makes(sum(products(left, right)), [...left, ...right], value);
  }
  if (worked.kind === "scale") {
    const before = now[inputs[0]][row][column];
    return makes(`${short(before)} / ${short(scale)}`, [before, scale], value);
  }
  if (worked.kind === "mask") {
    return now.allowed[row][column] ? `may be seen: stays ${short(value)}` : "hidden: −∞";
  }
  if (worked.kind === "softmax") {
    const [above, [total]] = [now.exponentials[row][column], now.total[row]];
    if (total === 0) return "0 / max(0, 1) = 0";
    return makes(`${short(above)} / ${short(total)}`, [above, total], value);
  }
  if (worked.kind === "centre") {
    const [x, [average]] = [now.dweights[row][column], now.average[row]];
    return makes(`${short(x)} − ${factor(average)}`, [x, average], value);
  }
  const [weight, centred] = [now.weights[row][column], now.centred[row][column]];
  return makes(`${short(weight)} · ${factor(centred)}`, [weight, centred], value);
}
