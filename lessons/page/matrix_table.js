import { element, roving, written } from "./dom.js";

/**
 * A matrix as a table: `symbol` in HTML, `plain` in letters, the names of its `rows` and `columns`,
 * the `largest` size of an entry, which has the darkest colour, `words` for 0 and 1.
 */
export class MatrixTable {
  constructor(of) {
    this.of = of;
    const { name, symbol, plain, rows, columns, note } = of;
    const button = element("button", {
      type: "button",
      class: "matrix-symbol",
      "data-matrix": name,
      "aria-label": `${plain}: show where it stands`,
      html: symbol,
    });
    this.note = element("span", { class: "matrix-note" }, note);
    this.cells = rows.map((_, row) =>
      columns.map((_, column) => element("td", { "data-row": row, "data-column": column })),
    );
    const head = columns.map((text) => element("th", { scope: "col" }, text));
    const body = rows.map((text, row) =>
      element("tr", {}, element("th", { scope: "row" }, text), ...this.cells[row]),
    );
    this.element = element(
      "div",
      { class: "matrix-box", "data-matrix": name },
      element(
        "table",
        {},
        element("caption", {}, button, ` (${rows.length} × ${columns.length})`, this.note),
        element("thead", {}, element("tr", {}, element("td"), ...head)),
        element("tbody", {}, ...body),
      ),
    );
  }

  set(array) {
    const { largest, words } = this.of;
    const values = Array.isArray(array[0]) ? array : [array];
    const whole = values.flat().every((x) => x === null || Number.isInteger(x));
    const first = this.cells[0][0].dataset.value === undefined;
    values.forEach((line, row) =>
      line.forEach((value, column) => {
        const cell = this.cells[row][column];
        const full = value === null ? "-Infinity" : String(value);
        if (!first && cell.dataset.value !== full) flash(cell);
        cell.dataset.value = full;
        cell.textContent = words ? words[value] : written(value, whole);
        cell.classList.toggle("zero", value === 0);
        cell.classList.toggle("hidden-entry", value === null || (words && value === 0));
        const colour = value < 0 ? "--negative" : "--positive";
        const share = Math.min(1, Math.abs(value ?? 0) / largest);
        const strength = share && !words ? 0.06 + 0.42 * share : 0;
        cell.style.backgroundColor = strength ? `rgb(var(${colour}) / ${strength.toFixed(3)})` : "";
      }),
    );
  }

  /** Outline the cells for which `test(row, column)` holds, by a class. */
  outline(kind, test) {
    this.cells.forEach((cells, row) =>
      cells.forEach((cell, column) => cell.classList.toggle(kind, test(row, column))),
    );
  }

  /** Let the keyboard and the pointer reach every entry; `reached(cell)` hears of it, and of null. */
  rove(reached) {
    roving(this.cells, reached);
  }

  shown() {
    const picked = this.cells.findIndex((line) => line[0].classList.contains("picked"));
    return {
      cells: this.cells.map((line) => line.map((cell) => cell.textContent)),
      picked: picked < 0 ? null : picked,
    };
  }
}

const flashes = new WeakMap();

/** Mark a cell as changed for a moment. */
function flash(cell) {
  clearTimeout(flashes.get(cell));
  cell.classList.remove("changed");
  void cell.offsetWidth; // so that the animation starts anew
  cell.classList.add("changed");
  flashes.set(cell, setTimeout(() => cell.classList.remove("changed"), 1400));
}
