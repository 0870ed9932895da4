import { element, lightTogether, written } from "./dom.js";
import { MatrixTable } from "./matrix_table.js";

// Steps through arrays, there and back: words, matrices, the arithmetic of a row, an equation and
// the library's line. A symbol, its matrix and its name in the code light up together.

export class Stepper {
  constructor(data, simulation) {
    Object.assign(this, { data, simulation, steps: data.steps });
    const forward = this.steps.filter((step) => !step.inverts);
    const column = (id) => `--column: ${forward.findIndex((step) => step.id === id) + 1}`;
    this.dots = this.steps.map((step, n) =>
      element(
        "button",
        {
          type: "button", class: `dot ${step.inverts ? "back" : "there"}`, "data-go": step.id, style: column(step.inverts || step.id),
          "aria-label": `${n + 1}, ${step.inverts ? "backward" : "forward"}: ${step.title}`, onclick: () => this.go(n),
        },
        step.name,
      ),
    );
    const cells = forward.map((step) => {
      const back = this.dots.filter((_, n) => this.steps[n].inverts === step.id).reverse();
      return element("div", { class: "mirror", style: column(step.id) }, ...back);
    });
    const turn = (name, by, text) => element("button", { type: "button", class: name, onclick: () => this.go(this.at + by) }, text);
    [this.previous, this.next] = [turn("previous", -1, "← Previous"), turn("next", 1, "Next →")];
    this.place = element("span", { class: "place", "aria-live": "polite" });
    this.words = element("div", { class: "step-words" });
    this.numbers = element("div", { class: "step-numbers" });
    this.element = element(
      "div",
      { class: "stepper" },
      element(
        "nav",
        { class: "track", "aria-label": "Steps", style: `--columns: ${forward.length}` },
        element("span", { class: "track-name" }, "forward →"),
        ...this.dots.filter((_, n) => !this.steps[n].inverts),
        element("span", { class: "track-name back" }, "← backward"),
        ...cells,
      ),
      element("div", { class: "turn" }, this.previous, this.place, this.next),
      element("div", { class: "bench" }, this.words, this.numbers),
    );
    this.element.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!by || event.altKey || event.ctrlKey || event.metaKey || event.target.closest("pre, td, input, select")) return;
      event.preventDefault();
      const onDot = event.target.closest(".dot");
      this.go(this.at + by);
      if (onDot) this.dots[this.at].focus();
    });
    lightTogether(this.element);
  }

  go(to) {
    if (to >= 0 && to < this.steps.length) this.simulation.choose(this.data.control, to);
  }

  set(arrays, chosen) {
    Object.assign(this, { arrays, row: chosen[this.data.picked] });
    const at = chosen[this.data.control];
    if (at !== this.at) this.open(at);
    for (const [name, table] of Object.entries(this.tables)) {
      table.set(arrays[name]);
      const axis = this.axisOf(name);
      table.outline("picked", (row) => axis === "row" && row === this.row);
      table.outline("picked-column", (_, column) => axis === "column" && column === this.row);
    }
    this.spell();
  }

  // What stands there at a step.
  open(at) {
    const step = this.steps[(this.at = at)];
    const focused = document.activeElement;
    [this.previous.disabled, this.next.disabled] = [at === 0, at === this.steps.length - 1];
    if (focused?.disabled) (at ? this.previous : this.next).focus(); // or the keyboard loses its place
    this.place.textContent = `${at + 1} of ${this.steps.length}: ${step.title}`;
    this.dots.forEach((dot, n) => {
      dot.classList.toggle("passed", n < at);
      n === at ? dot.setAttribute("aria-current", "step") : dot.removeAttribute("aria-current");
    });
    const names = [...step.inputs, ...step.results];
    this.tables = Object.fromEntries(names.map((name) => [name, new MatrixTable(this.data.of[name])]));
    this.result = step.results.at(-1);
    const inverted = this.steps.findIndex(({ id }) => id === step.inverts);
    const back = inverted < 0 ? null : element("p", { class: "undoes" }, "Goes back through step ",
      element("button", { type: "button", class: "link", onclick: () => this.go(inverted) }, `${inverted + 1}, ${this.steps[inverted].name}`));
    const link = step.see ? element("p", { class: "undoes" }, element("a", { href: `#${step.see}` }, "Where this is derived")) : null;
    const ask = element("details", { class: "ask" }, element("summary", { html: step.ask }), element("div", { html: step.answer }));
    const library = element("div", { class: "library" }, element("p", { class: "note" }, `numformer, in ${step.of}`), element("div", { html: step.code }), element("div", { class: "note", html: step.note }));
    this.words.replaceChildren(
      element("h4", {}, step.title), element("div", { html: step.say }), back ?? "", link ?? "",
      element("div", { class: "equation", html: step.equation }), step.of ? library : "", step.ask ? ask : "",
    );
    this.worked = element("div", { class: "worked" });
    const [from, to] = [step.inputs, step.results].map((of) => of.map((name) => this.tables[name].element));
    const arrow = from.length ? element("span", { class: "arrow", "aria-hidden": "true" }) : "";
    this.numbers.replaceChildren(element("div", { class: "matrices" }, ...from, arrow, ...to), this.worked);
    for (const each of this.element.querySelectorAll(".bench :is(pre, .equation)")) {
      if (each.scrollWidth > each.clientWidth) each.tabIndex = 0; // so that keys can scroll it
    }
    this.tables[this.result]?.rove((cell) => this.use(cell));
  }

  // Whether the picked row is read from a matrix by its rows or, in a product, by its columns.
  axisOf(name) {
    const [left, axis] = this.steps[this.at].worked;
    if (axis === "row" || axis === "column") {
      if (name === left) return axis;
      return name === this.result ? "row" : null;
    }
    return this.data.marked.includes(name) ? "row" : null;
  }

  // Outline what the entry in this cell of the result is made of, and its line of arithmetic.
  use(cell) {
    const at = cell ? [Number(cell.dataset.row), Number(cell.dataset.column)] : null;
    const { worked } = this.steps[this.at];
    for (const [name, table] of Object.entries(this.tables)) {
      table.outline("used", (row, column) => {
        if (!at || !worked.length) return false;
        if (name === this.result) return row === at[0] && column === at[1];
        const side = worked.indexOf(name);
        if (["row", "column"].includes(worked[1])) return side >= 0 && (worked[side + 1] === "row" ? row : column) === at[side / 2];
        return side > 0 && row === at[0] && (worked[0] === "sum" || table.cells[0].length === 1 || column === at[1]);
      });
    }
    this.spell(at ? at[0] : this.row, at?.[1]);
  }

  // The arithmetic of a row of the result.
  spell(row = this.row, used = null) {
    const { worked } = this.steps[this.at];
    if (!worked.length) return this.worked.replaceChildren();
    const of = this.data.of[this.result];
    const lines = of.columns.map((name, column) =>
      element("div", { class: column === used ? "used" : null }, element("dt", {}, name), element("dd", {}, spelt(worked, this.arrays, this.result, row, column))),
    );
    this.worked.replaceChildren(element("p", { class: "note" }, `${of.plain}, row ${of.rows[row]}, by hand:`), element("dl", {}, ...lines));
  }

  shown() {
    const matrices = Object.entries(this.tables).map(([name, table]) => [name, table.shown().cells]);
    return { step: this.steps[this.at].id, matrices: Object.fromEntries(matrices) };
  }
}

/** How an entry comes about, "0.5 · 2 + 1 · (−1) = 0", with as many digits as it takes to see it. */
function spelt(worked, arrays, result, row, column) {
  const at = (name, i, j) => (typeof name === "number" ? name : arrays[name][i][arrays[name][i].length === 1 ? 0 : j]);
  const value = arrays[result][row][column];
  let terms, sign;
  if (["row", "column"].includes(worked[1])) {
    const [left, way, right, other] = worked;
    const count = way === "row" ? arrays[left][0].length : arrays[left].length;
    const along = (name, axis, n, k) => (axis === "row" ? arrays[name][n][k] : arrays[name][k][n]);
    terms = Array.from({ length: count }, (_, k) => [along(left, way, row, k), along(right, other, column, k)]);
    sign = "+";
  } else if (worked[0] === "sum") {
    [terms, sign] = [arrays[worked[1]][row].map((x) => [x]), "+"];
  } else {
    [terms, sign] = [[[at(worked[1], row, column), at(worked[2], row, column)]], worked[0]];
  }
  if (value === null || terms.flat().includes(null)) return written(value);
  const join = { "/": " / ", "-": " − " }[sign] ?? " · ";
  const ways = { "/": ([a, b]) => a / b, "-": ([a, b]) => a - b };
  const way = ways[sign] ?? ((factors) => factors.reduce((product, x) => product * x, 1));
  const round = (x, digits) => Number(x.toFixed(digits));
  let digits = 2;
  const found = () => terms.reduce((sum, term) => sum + way(term.map((x) => round(x, digits))), 0);
  while (digits < 5 && round(found(), 2) !== round(value, 2)) digits += 1;
  const text = (x) => {
    const made = String(round(x, digits)).replace("-", "−");
    return made.startsWith("−") ? `(${made})` : made;
  };
  const exact = [...terms.flat(), value].every((x) => Math.abs(x - round(x, 2)) < 1e-9);
  return `${terms.map((term) => term.map(text).join(join)).join(" + ")} ${exact ? "=" : "≈"} ${written(value)}`;
}
