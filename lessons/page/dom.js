// What every part of a page uses: elements, numbers as text, and marks that the keyboard reaches.

const SVG = ["svg", "g", "path", "line", "rect", "circle", "polyline", "polygon", "text", "marker", "defs", "title"];

/** element("button", { class: "x", onclick: f }, "text", child): an element, of SVG by its tag. */
export function element(tag, attributes = {}, ...children) {
  const made = SVG.includes(tag)
    ? document.createElementNS("http://www.w3.org/2000/svg", tag)
    : document.createElement(tag);
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
export function written(value, whole = false) {
  if (value === null) return "−∞";
  const text = whole || value === 0 ? String(value) : value.toFixed(2);
  return Number(text) === 0 ? text.replace("-", "") : text.replace("-", "−");
}

/** A number as it is read out: up to three digits that say something. */
export const told = (value) => String(Number(value.toPrecision(3))).replace("-", "−");

/**
 * Let the arrow keys move through marks that lie in rows: one of them is in the tab order at a
 * time. `reached(mark)` is called with each that gets the focus or is pointed at, and with null.
 */
export function roving(rows, reached = () => {}) {
  let at = [0, 0];
  const go = (row, column) => {
    rows[at[0]][at[1]].tabIndex = -1;
    at = [row, column];
    rows[row][column].tabIndex = 0;
  };
  rows.forEach((line, row) =>
    line.forEach((mark, column) => {
      mark.setAttribute("tabindex", row || column ? -1 : 0);
      mark.addEventListener("focus", () => (go(row, column), reached(mark)));
      mark.addEventListener("blur", () => reached(null));
      mark.addEventListener("pointerenter", () => reached(mark));
      mark.addEventListener("pointerleave", () => reached(null));
      mark.addEventListener("keydown", (event) => {
        const [down, right] =
          { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key] ?? [];
        const next = rows[row + down]?.[Math.min(column + right, rows[row + down].length - 1)];
        if (!next || event.altKey || event.ctrlKey || event.metaKey) return;
        event.preventDefault();
        event.stopPropagation();
        next.focus();
      });
    }),
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
