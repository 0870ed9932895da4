// What every part of a page uses: elements, numbers as text, and marks that the keyboard reaches.

const SVG = ["svg", "g", "path", "line", "rect", "circle", "polyline", "polygon", "text", "marker", "defs"];

/** element("button", { class: "x", onclick: f }, "text", child): an element; of SVG if its tag is. */
export function element(tag, attributes = {}, ...children) {
  const space = SVG.includes(tag) ? "http://www.w3.org/2000/svg" : "http://www.w3.org/1999/xhtml";
  const made = document.createElementNS(space, tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "html") made.innerHTML = value;
    else if (value !== false && value != null) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child != null));
  return made;
}

/** A number as a matrix shows it: two decimals, none for 0 or if all are `whole`; a true minus. */
export function written(value, whole = false) {
  if (value === null) return "−∞";
  // A number halfway between two decimals is rounded away from 0, whatever its last bits.
  const text = whole || value === 0 ? String(value) : (value + Math.sign(value) * 1e-9).toFixed(2);
  return Number(text) === 0 ? text.replace("-", "") : text.replace("-", "−");
}

/** A number as it is read out: up to three significant digits. */
export const figure = (value) => String(Number(value.toPrecision(3))).replace("-", "−");

const UNITS = [[1e18, "quintillion"], [1e15, "quadrillion"], [1e12, "trillion"], [1e9, "billion"], [1e6, "million"]];

/** A number that may be large, in words: 37.9 million. */
export const amount = (value) => {
  const [unit, word] = UNITS.find(([least]) => value >= least) ?? [];
  if (word) return `${figure(value / unit)} ${word}`;
  return value >= 1000 ? Math.round(value).toLocaleString("en-US") : figure(value);
};

/**
 * A text that changes, in a place that has room for the longest of `texts`, so that nothing jumps:
 * `say(text)` changes it, `element` is the place.
 */
export function roomy(tag, attributes, texts) {
  const said = element("span");
  const room = element("span", { class: "away", "aria-hidden": "true" });
  const say = (text) => {
    if (text.length > room.textContent.length) room.textContent = text;
    said.textContent = text;
  };
  texts.forEach(say);
  return { element: element(tag, { ...attributes, class: `${attributes.class ?? ""} pile` }, said, room), said, say };
}

/** Pieces of HTML in one place, as high as the highest of them: `show(html)` shows one of them. */
export function pile(pieces) {
  const parts = new Map(pieces.map((html) => [html, element("div", { html })]));
  return { element: element("div", { class: "note pile" }, ...parts.values()), show: (html) => seen([...parts.values()], parts.get(html)) };
}

/** Show one of the parts that share a place. */
export const seen = (parts, part) => parts.forEach((other) => other.classList.toggle("away", other !== part));

/** The colours of numbers above 0 and below 0, as style.css has them: red, green, blue. */
export function signs() {
  const style = getComputedStyle(document.documentElement);
  return ["--positive", "--negative"].map((name) => style.getPropertyValue(name).trim().split(" ").map(Number));
}

/** By how many rows and columns an arrow key moves; undefined for all other keys. */
export const turned = (event) =>
  event.altKey || event.ctrlKey || event.metaKey
    ? undefined
    : { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];

/**
 * Let the arrow keys move through marks that lie in rows: one of them is in the tab order at a
 * time. `reached(mark)` is called for a mark in focus or under the pointer, and with null after it.
 */
export function roving(rows, reached = () => {}) {
  let last = rows[0][0];
  rows.forEach((line, row) =>
    line.forEach((mark, column) => {
      mark.setAttribute("tabindex", mark === last ? 0 : -1);
      const here = () => ([last.tabIndex, mark.tabIndex, last] = [-1, 0, mark]) && reached(mark);
      for (const event of ["focus", "pointerenter"]) mark.addEventListener(event, event === "focus" ? here : () => reached(mark));
      for (const event of ["blur", "pointerleave"]) mark.addEventListener(event, () => reached(null));
      mark.addEventListener("keydown", (event) => {
        const [down, right] = turned(event) ?? [];
        const to = row + (line.length > 1 ? down : down || right); // in a single column, all four arrows move
        const next = rows[to]?.[Math.min(column + right, rows[to].length - 1)];
        if (!next) return;
        event.preventDefault();
        event.stopPropagation();
        next.focus();
      });
    }),
  );
}

/**
 * Elements with the same data-matrix light up together: under the pointer, in focus, and after a
 * tap until the next one.
 */
export function lightTogether(root) {
  let pinned = null;
  const named = (target) => target.closest?.("[data-matrix]")?.dataset.matrix ?? null;
  const light = (name) => {
    for (const each of root.querySelectorAll("[data-matrix]")) each.classList.toggle("lit", each.dataset.matrix === name);
  };
  for (const event of ["pointerover", "focusin"]) root.addEventListener(event, ({ target }) => light(named(target) ?? pinned));
  for (const event of ["pointerleave", "focusout"]) root.addEventListener(event, () => light(pinned));
  root.addEventListener("click", ({ target }) => {
    if (target.closest("button:not(.matrix-symbol), label, input, select")) return;
    pinned = named(target) === pinned ? null : named(target);
    light(named(target) ?? pinned);
  });
}
