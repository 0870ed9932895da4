import { element, lightTogether, roomy, roving, seen, turned, written } from "./dom.js";
import { MatrixTable } from "./matrix_table.js";

// Steps through arrays, forward and back: words, matrices, the arithmetic of a row, an equation and
// the library's line. A symbol, its matrix and its name in the code light up together. A link to
// #step-NAME from anywhere on the page opens the step of that name. All steps share one place, and
// one of them is visible: so nothing moves from step to step. On a phone, where their heights differ
// most, the place is as high as the step, which opens at its beginning.

export class Stepper {
  constructor(data, simulation) {
    Object.assign(this, { data, simulation, steps: data.steps });
    const forward = this.steps.filter((step) => !step.inverts);
    const column = (id) => `--column: ${forward.findIndex((step) => step.id === id) + 1}`;
    this.dots = this.steps.map((step, n) => {
      const label = `${n + 1}, ${step.inverts ? "backward" : "forward"}: ${step.title}`;
      const attributes = { type: "button", class: step.inverts ? "dot back" : "dot there", style: column(step.inverts || step.id) };
      return element("button", { ...attributes, "aria-label": label, "data-go": step.id, onclick: () => this.go(n) }, step.name);
    });
    const mirrored = forward.map((step) => {
      const back = this.dots.filter((_, n) => this.steps[n].inverts === step.id).reverse();
      return element("div", { class: "mirror", style: column(step.id) }, ...back);
    });
    const there = this.dots.filter((_, n) => !this.steps[n].inverts);
    const way = (words) => element("span", { class: "track-name" }, words);
    const track = element("nav", { class: "track", "aria-label": "Steps", style: `--columns: ${forward.length}` }, way("forward →"), ...there, way("← backward"), ...mirrored);
    const turn = (name, by, text) => element("button", { type: "button", class: name, onclick: () => this.go(this.at + by) }, text);
    [this.previous, this.next] = [turn("previous", -1, "← Previous"), turn("next", 1, "Next →")];
    this.title = (n) => `${n + 1} of ${this.steps.length}: ${this.steps[n].title}`;
    this.place = roomy("span", { class: "place", "aria-live": "polite" }, this.steps.map((_, n) => this.title(n)));
    const bar = element("div", { class: "turn" }, this.previous, this.place.element, this.next);
    this.track = track;
    this.made = this.steps.map((step) => this.make(step));
    this.bench = element("div", { class: "bench pile" }, ...this.made.map((made) => made.step));
    this.element = element("div", { class: "stepper" }, track, bar, this.bench);
    this.element.addEventListener("keydown", (event) => {
      const by = turned(event)?.[1];
      if (!by || event.target.closest("pre, td, input, select")) return;
      event.preventDefault();
      this.go(this.at + by);
      if (event.target.closest(".dot")) this.dots[this.at].focus();
    });
    lightTogether(this.element);
    const linked = () => {
      const at = this.steps.findIndex(({ id }) => `#step-${id}` === location.hash);
      if (at >= 0) (this.go(at), this.element.scrollIntoView());
    };
    window.addEventListener("hashchange", linked);
    setTimeout(linked);
  }

  go(to) {
    if (to >= 0 && to < this.steps.length) this.simulation.choose(this.data.control, to);
  }

  set(arrays, chosen) {
    const { control, picked } = this.data;
    const { options } = this.simulation.data.controls.find(({ name }) => name === picked);
    Object.assign(this, { arrays, label: options[chosen[picked]].label });
    const at = chosen[control];
    if (this.at === undefined) this.first();
    if (at !== this.at) this.open(at);
    for (const [name, table] of Object.entries(this.tables)) {
      table.set(arrays[name]);
      const axis = this.axisOf(name);
      table.outline("picked", (row) => axis === "row" && table.of.rows[row] === this.label);
      table.outline("picked-column", (_, column) => axis === "column" && table.of.columns[column] === this.label);
    }
    this.spell();
  }

  changed(before, after, chosen) {
    if (chosen[this.data.control] !== this.at) return; // a step that has just opened marks no changes
    for (const [name, table] of Object.entries(this.tables)) table.mark(before[name], after[name]);
  }

  /** Spell out all steps, and find which controls each of them uses: those whose effect begins there. */
  first() {
    const { controls } = this.simulation.data;
    const [changed, slots] = [controls.map((control) => this.simulation.changes(control)), new Map()];
    this.steps.forEach((step, at) => {
      this.at = at;
      Object.assign(this, this.made[at]);
      this.spell();
      const made = new Set(this.steps.slice(0, at).flatMap(({ inputs, results }) => (inputs.length ? results : [])));
      const uses = (_, n) => [...step.inputs, ...step.results].some((of) => changed[n].has(of)) && !step.inputs.some((of) => changed[n].has(of) && made.has(of));
      slots.set(this.slot, controls.filter(uses).map(({ name }) => name));
    });
    this.at = undefined;
    this.simulation.share(slots);
  }

  /** Show a step. */
  open(at) {
    this.at = at;
    const focused = document.activeElement;
    [this.previous.disabled, this.next.disabled] = [at === 0, at === this.steps.length - 1];
    if (focused?.disabled) (at ? this.previous : this.next).focus(); // or the keyboard loses its place
    this.place.say(this.title(at));
    this.dots.forEach((dot, n) => {
      dot.classList.toggle("passed", n < at);
      n === at ? dot.setAttribute("aria-current", "step") : dot.removeAttribute("aria-current");
    });
    const { offsetLeft, offsetWidth } = this.dots[at];
    this.track.scrollTo({ left: offsetLeft - (this.track.clientWidth - offsetWidth) / 2 });
    Object.assign(this, this.made[at]);
    const before = this.bench.offsetHeight;
    seen(this.made.map((made) => made.step), this.step);
    this.simulation.use?.(this.slot);
    const resized = before && before !== this.bench.offsetHeight;
    if (resized && this.bench.getBoundingClientRect().top < 0) this.bench.scrollIntoView();
  }

  /** Make what a step shows. */
  make(step) {
    const tables = Object.fromEntries([...step.inputs, ...step.results].map((name) => [name, new MatrixTable(this.data.of[name], this.simulation.every(name))]));
    const inverted = this.steps.findIndex(({ id }) => id === step.inverts);
    const undone = element("button", { type: "button", class: "link", onclick: () => this.go(inverted) }, `${inverted + 1}, ${this.steps[inverted]?.name}`);
    const derived = element("a", { href: `#${step.see}` }, "Where this is derived");
    const back = inverted < 0 ? [] : ["Goes back through step ", undone, step.see ? ". " : null];
    const words = element(
      "div",
      { class: "says" },
      element("h4", {}, step.title),
      element("div", { html: step.say }),
      element("p", { class: "undoes" }, ...back, step.see ? derived : null),
      step.ask ? element("details", { class: "ask" }, element("summary", { html: step.ask }), element("div", { html: step.answer })) : null,
    );
    const library = step.of ? element("div", { class: "library", html: `<p class="note">numformer, in ${step.of}</p>${step.code}${step.note}` }) : null;
    const lines = element("div", { class: "lines" }, element("div", { class: "equation", html: step.equation }), library);
    const [from, to] = [step.inputs, step.results].map((of) => of.map((name) => tables[name].element));
    const arrow = from.length ? [element("span", { class: "arrow", "aria-hidden": "true" })] : [];
    const result = step.results.at(-1);
    const worked = element("div", { class: "worked", tabindex: step.worked.length ? 0 : null });
    const parts = element("div", { class: "step-words" }, words, lines);
    for (const each of parts.querySelectorAll("pre, .equation")) each.tabIndex = 0;
    for (const { dataset } of parts.querySelectorAll("[data-matrix]")) dataset.role = this.data.of[dataset.matrix].role;
    const slot = element("div", { class: "slot" });
    const numbers = element("div", { class: "step-numbers" }, element("div", { class: "matrices" }, ...from, ...arrow, ...to), worked, slot);
    tables[result]?.element.classList.add("result");
    if (result) roving(tables[result].cells, (cell) => this.use(cell));
    return { step: element("div", { class: "step" }, parts, numbers), tables, result, worked, slot };
  }

  /** Whether the picked row is read from a matrix by its rows or, in a product, by its columns. */
  axisOf(name) {
    const [left, axis] = this.steps[this.at].worked;
    const isProduct = axis === "row" || axis === "column";
    if (isProduct && name === left) return axis;
    return (isProduct ? name === this.result : this.data.marked.includes(name)) ? "row" : null;
  }

  /** Outline the entries from which this cell of the result is made, and its line of arithmetic. */
  use(cell) {
    const at = cell && [Number(cell.dataset.row), Number(cell.dataset.column)];
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
    this.spell(at?.[0], at?.[1]);
  }

  /** Write out the arithmetic of a row of the result. */
  spell(at, used = null) {
    const { worked } = this.steps[this.at];
    if (!worked.length) return this.worked.replaceChildren();
    const { columns, rows, symbol } = this.data.of[this.result];
    const row = at ?? Math.max(0, rows.indexOf(this.label)); // the first if no row has this label
    const spelt = (column) => element("dd", {}, arithmetic(worked, this.arrays, this.result, row, column));
    const lines = columns.map((name, n) => element("div", { class: n === used ? "used" : null }, element("dt", {}, name), spelt(n)));
    this.worked.replaceChildren(element("p", { class: "note" }, `${symbol.plain}, row ${rows[row]}, by hand:`), element("dl", {}, ...lines));
  }

  shown() {
    const matrices = Object.entries(this.tables).map(([name, table]) => [name, table.shown().cells]);
    return { step: this.steps[this.at].id, matrices: Object.fromEntries(matrices) };
  }
}

const WAYS = { "/": [(a, b) => a / b, " / "], "-": [(a, b) => a - b, " − "], "*": [(a, b) => a * b, " · "], sum: [(a) => a, ""] };

/** How an entry is computed, "0.5 · 2 + 1 · (−1) = 0", with as many digits as it takes to see it. */
function arithmetic(worked, arrays, result, row, column) {
  const value = arrays[result][row][column];
  const [first, second, right, other] = worked;
  let terms = [];
  if (["row", "column"].includes(second)) {
    const line = (name, axis, n) => (axis === "row" ? arrays[name][n] : arrays[name].map((each) => each[n]));
    const [lefts, rights] = [line(first, second, row), line(right, other, column)];
    terms = lefts.map((x, k) => [x, rights[k]]);
  } else if (first === "sum") terms = arrays[second][row].map((x) => [x]);
  else terms = [[second, right].map((x) => (typeof x === "number" ? x : (arrays[x][row][column] ?? arrays[x][row][0])))];
  if (value === null || terms.flat().includes(null)) return written(value);
  const [way, sign] = WAYS[first] ?? WAYS["*"];
  const round = (x, digits) => Number(x.toFixed(digits));
  const found = (digits) => terms.reduce((sum, term) => sum + way(...term.map((x) => round(x, digits))), 0);
  const digits = [2, 3, 4].find((each) => round(found(each), 2) === round(value, 2)) ?? 5;
  const text = (x) => {
    const made = String(round(x, digits)).replace("-", "−");
    return made.startsWith("−") ? `(${made})` : made;
  };
  const exact = [...terms.flat(), value].every((x) => Math.abs(x - round(x, 2)) < 1e-9);
  return `${terms.map((term) => term.map(text).join(sign)).join(" + ")} ${exact ? "=" : "≈"} ${written(value, Number.isInteger(value))}`;
}
