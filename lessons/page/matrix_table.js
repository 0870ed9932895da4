import { element, written } from "./dom.js";

/** What `lit`, an array for all cells or for one column, says of a cell. */
const light = (lit, row, column) => (lit ? (lit[row][column] ?? lit[row][0]) : 0);

/** A matrix as a table, described by an `Of` (views.py); cells have room for the longest text of `arrays`. */
export class MatrixTable {
  constructor(of, arrays = []) {
    this.of = of;
    const attributes = { type: "button", class: "matrix-symbol", "data-matrix": of.name, "aria-label": `${of.symbol.plain}: show where it stands` };
    const button = element("button", { ...attributes, html: of.symbol.math });
    const cell = (row, column) => element("td", { "data-row": row, "data-column": column });
    this.cells = of.rows.map((_, row) => of.columns.map((_, column) => cell(row, column)));
    const head = of.columns.map((text) => element("th", { scope: "col" }, text));
    const body = of.rows.map((text, row) => element("tr", {}, element("th", { scope: "row" }, text), ...this.cells[row]));
    const note = element("span", { class: "matrix-note" }, of.below);
    const caption = element("caption", {}, button, ` (${of.rows.length} × ${of.columns.length})`, note);
    const parts = [caption, element("thead", {}, element("tr", {}, element("td"), ...head)), element("tbody", {}, ...body)];
    this.table = element("table", {}, ...parts);
    this.element = element("div", { class: "matrix-box", "data-matrix": of.name, "data-role": of.role }, this.table);
    this.longest = 0;
    for (const array of arrays) this.widen(this.texts(array));
    if (arrays.length) this.set(arrays[0]); // a row of empty cells would be lower
  }

  /** The texts of the cells for an array; empty where `lit` is -1. */
  texts(array, lit) {
    const { words } = this.of;
    const values = Array.isArray(array[0]) ? array : [array];
    const there = values.map((line, row) => line.map((_, column) => light(lit, row, column) >= 0));
    const whole = values.flat().every((x, n) => x === null || Number.isInteger(x) || !there.flat()[n]);
    const text = (value) => (words.length ? words[value] : written(value, whole));
    return values.map((line, row) => line.map((value, column) => (there[row][column] ? text(value) : "")));
  }

  widen(texts) {
    const longest = Math.max(...texts.flat().map((text) => text.length));
    if (longest > this.longest) this.table.style.setProperty("--chars", (this.longest = longest));
  }

  set(array, lit) {
    const { largest, words } = this.of;
    const texts = this.texts(array, lit);
    this.widen(texts);
    if (lit) this.outline("used", (row, column) => light(lit, row, column) === 1);
    (Array.isArray(array[0]) ? array : [array]).forEach((line, row) =>
      line.forEach((value, column) => {
        const cell = this.cells[row][column];
        if (cell.textContent !== texts[row][column]) cell.textContent = texts[row][column];
        cell.classList.toggle("zero", value === 0);
        const hidden = value === null || (words.length > 0 && value === 0);
        cell.classList.toggle("hidden-entry", hidden && texts[row][column] !== "");
        const share = words.length || !texts[row][column] ? 0 : Math.min(1, Math.abs(value ?? 0) / largest);
        const colour = `rgb(var(${value < 0 ? "--negative" : "--positive"}) / ${(0.06 + 0.42 * share).toFixed(3)})`;
        cell.style.backgroundColor = share ? colour : "";
      }),
    );
  }

  /** Mark the cells that change between two arrays, unless all of them do. */
  mark(before, after, lit = []) {
    const [from, to] = [before, after].map((array, n) => this.texts(array, lit[n]));
    const changed = this.cells.flatMap((line, row) => line.filter((_, column) => from[row][column] !== to[row][column]));
    if (changed.length === this.cells.flat().length) return;
    for (const cell of changed) cell.animate({ boxShadow: ["inset 0 0 0 2px var(--ink)", "inset 0 0 0 2px transparent"] }, 1200);
  }

  /** Outline the cells for which `test(row, column)` holds, by a class. */
  outline(kind, test) {
    this.cells.forEach((cells, row) => cells.forEach((cell, column) => cell.classList.toggle(kind, test(row, column))));
  }

  shown() {
    const picked = this.cells.findIndex((line) => line[0].classList.contains("picked"));
    const cells = this.cells.map((line) => line.map((cell) => cell.textContent));
    const used = this.cells.flatMap((line, row) => line.flatMap((cell, column) => (cell.classList.contains("used") ? [[row, column]] : [])));
    return { cells, picked: picked < 0 ? null : picked, ...(this.of.lit ? { lit: used } : {}) };
  }
}
