// What simulations share: their start, elements, numbers as text, matrices as tables, lighting
// things up together, and the Python below. Nothing here computes: the numbers come from numformer.

/**
 * Put the simulation `name` in the place of its picture, wherever the page has it:
 * `start(figure, data, number)` fills the stage, and `data` is what Python gave it.
 */
export function simulate(name, start) {
  document.querySelectorAll(`[data-simulation="${name}"]`).forEach((figure, number) => {
    figure.querySelector(".simulation-picture").hidden = true;
    figure.querySelector(".simulation-stage").hidden = false;
    const data = figure.querySelector('script[type="application/json"]').textContent;
    start(figure, JSON.parse(data), number);
  });
}

/**
 * A function that writes the reader's choices into the Python below a simulation: called with
 * { name: text }, it turns the line "name = …" into "name = text".
 */
export function pythonOf(figure) {
  const code = figure.querySelector(".simulation-code code");
  const lines = code.innerHTML.split("\n");
  const text = element("div");
  return (chosen) => {
    const changed = lines.map((line) => {
      text.innerHTML = line;
      const name = Object.keys(chosen).find((each) => text.textContent.startsWith(`${each} = `));
      return name ? `${name} = ${chosen[name]}` : line;
    });
    code.innerHTML = changed.join("\n");
  };
}

/** element("button", { class: "x", onclick: f }, "text", child): a DOM element. */
export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "html") made.innerHTML = value;
    else if (value !== false && value !== null && value !== undefined) {
      made.setAttribute(name, value === true ? "" : value);
    }
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

/** A number as a matrix shows it: two decimals, an exact 0 or integers without, a true minus. */
export function shown(value, whole = false) {
  if (value === null) return "−∞";
  const text = whole || value === 0 ? String(value) : value.toFixed(2);
  return Number(text) === 0 ? text.replace("-", "") : text.replace("-", "−");
}

/** A number within arithmetic: two decimals, and none that say nothing. */
export function short(value) {
  if (value === null) return "−∞";
  return isExact(value) ? String(round(value)).replace("-", "−") : shown(value);
}

/** The same as a factor or a summand: a negative one in brackets. */
export function factor(value) {
  const text = short(value);
  return text.startsWith("−") ? `(${text})` : text;
}

const round = (value) => Math.round(value * 100) / 100;
const isExact = (value) => Math.abs(value - round(value)) < 1e-8;

/** "=" where two decimals tell all of every number, else "≈". */
export function equals(...values) {
  return values.every((x) => x === null || isExact(x)) ? "=" : "≈";
}

/**
 * A matrix as a table with a caption: `symbol` in HTML, `plain` in letters. `columns` and `rows`
 * are its headers, `note` names its axes, `words(number)` is what stands in a cell for a number.
 * `set(values)` shows numbers, with `mark` those that changed stand out for a moment.
 */
export class MatrixTable {
  constructor({ name, symbol, plain, rows, columns, note, words = null }) {
    this.words = words;
    const button = element("button", {
      type: "button",
      class: "matrix-symbol",
      "data-matrix": name,
      "aria-label": `${plain}: show where it stands`,
      html: symbol,
    });
    this.note = element("span", { class: "matrix-note" }, note);
    this.cells = rows.map(() => columns.map(() => element("td")));
    const size = `(${rows.length} × ${columns.length})`;
    this.element = element(
      "div",
      { class: "matrix-box", "data-matrix": name },
      element(
        "table",
        {},
        element("caption", {}, button, ` ${size}`, this.note),
        element(
          "thead",
          {},
          element(
            "tr",
            {},
            element("td"),
            ...columns.map((text) => element("th", { scope: "col" }, text)),
          ),
        ),
        element(
          "tbody",
          {},
          ...rows.map((text, row) =>
            element("tr", {}, element("th", { scope: "row" }, text), ...this.cells[row]),
          ),
        ),
      ),
    );
    this.cells.forEach((cells, row) =>
      cells.forEach((cell, column) => Object.assign(cell.dataset, { row, column })),
    );
  }

  set(values, mark = false) {
    const numbers = values.flat();
    const whole = numbers.every((x) => x === null || Number.isInteger(x));
    const largest = Math.max(...numbers.map((x) => Math.abs(x ?? 0))) || 1;
    const changed = [];
    values.forEach((line, row) =>
      line.forEach((value, column) => {
        const cell = this.cells[row][column];
        const full = value === null ? "-Infinity" : String(value);
        if (mark && cell.dataset.value !== full) changed.push(cell);
        cell.dataset.value = full;
        cell.textContent = this.words ? this.words(value) : shown(value, whole);
        cell.classList.toggle("zero", value === 0);
        cell.classList.toggle("hidden-entry", value === null || (this.words && value === 0));
        const colour = value < 0 ? "--negative" : "--positive";
        const strength = value && !this.words ? 0.06 + (0.42 * Math.abs(value)) / largest : 0;
        cell.style.backgroundColor = strength ? `rgb(var(${colour}) / ${strength.toFixed(3)})` : "";
      }),
    );
    for (const cell of changed) flash(cell);
  }

  /** Outline the cells for which `test(row, column)` holds, by a class. */
  outline(kind, test) {
    this.cells.forEach((cells, row) =>
      cells.forEach((cell, column) => cell.classList.toggle(kind, test(row, column))),
    );
  }
}

const flashes = new WeakMap();

/** Mark a cell as changed for a moment. */
function flash(cell) {
  clearTimeout(flashes.get(cell));
  cell.classList.remove("changed");
  void cell.offsetWidth; // so that the animation starts anew
  cell.classList.add("changed");
  flashes.set(
    cell,
    setTimeout(() => cell.classList.remove("changed"), 1400),
  );
}

/**
 * Whatever bears the same data-matrix lights up together: under the pointer, in focus, and after
 * a tap until the next one.
 */
export function lightTogether(root) {
  let pinned = null;
  const named = (target) => target.closest?.("[data-matrix]")?.dataset.matrix ?? null;
  const light = (name) => {
    for (const each of root.querySelectorAll("[data-matrix]")) {
      each.classList.toggle("lit", each.dataset.matrix === name);
    }
  };
  root.addEventListener("pointerover", (event) => light(named(event.target) ?? pinned));
  root.addEventListener("pointerleave", () => light(pinned));
  root.addEventListener("focusin", (event) => light(named(event.target) ?? pinned));
  root.addEventListener("focusout", () => light(pinned));
  root.addEventListener("click", (event) => {
    const name = named(event.target);
    if (event.target.closest("button:not(.matrix-symbol), label, input, select")) return;
    pinned = name === pinned ? null : name;
    light(name ?? pinned);
  });
}

/**
 * A row of radio buttons for `what`: choices of [value, label]; `choose(value)` is called with the
 * new one. `name` is unique on the page.
 */
export function choice(legend, name, what, choices, chosen, choose) {
  return element(
    "fieldset",
    { class: "choice", "data-choice": what },
    element("legend", {}, legend),
    element(
      "div",
      { class: "choices" },
      ...choices.map(([value, label]) =>
        element(
          "label",
          {},
          element("input", {
            type: "radio",
            name,
            value,
            checked: value === chosen,
            onchange: () => choose(value),
          }),
          element("span", {}, label),
        ),
      ),
    ),
  );
}
