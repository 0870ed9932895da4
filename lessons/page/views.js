import { element, roving, told } from "./dom.js";
import { MatrixTable } from "./matrix_table.js";
import { Stepper } from "./stepper.js";

// What simulations show arrays with. A view is made of what views.py told the page of it and the
// simulation that it belongs to; `set(arrays, chosen)` shows arrays, and `shown()` tells, from what
// stands on the page, what they were. Nothing here computes: the numbers come from numformer.

const WIDTH = 460, HEIGHT = 260, LEFT = 52, BOTTOM = 40; // of a chart, as in views.py
const STROKES = ["", "6 3", "2 3", "8 3 2 3"];
const tenth = (x) => Math.round(10 * x + 1e-7) / 10;

/** Matrices as tables, side by side; the entries that changed stand out for a moment. */
class Matrices {
  constructor(data) {
    this.data = data;
    this.tables = data.of.map((of) => new MatrixTable(of));
    const arrow = () => element("span", { class: "arrow", "aria-hidden": "true" });
    this.element = element(
      "div",
      { class: "matrices" },
      ...this.tables.flatMap((table) => [data.after.includes(table.of.name) ? arrow() : null, table.element]),
    );
  }

  set(arrays, chosen) {
    for (const table of this.tables) {
      table.set(arrays[table.of.name]);
      const picked = this.data.marked.includes(table.of.name) ? chosen[this.data.picked] : null;
      table.outline("picked", (row) => row === picked);
    }
  }

  shown() {
    return Object.fromEntries(this.tables.map((table) => [table.of.name, table.shown()]));
  }
}

/** A matrix as colours, one pixel an entry; arrow keys and the pointer read entries out. */
class Heatmap {
  constructor(data, simulation) {
    this.data = data;
    this.canvas = element("canvas", { tabindex: 0, role: "img" });
    this.cursor = element("div", { class: "cursor", hidden: true });
    this.mark = element("div", { class: "mark", hidden: !data.row });
    this.says = element("p", { class: "readout", "aria-live": "polite" });
    const stack = element("div", { class: "stack" }, this.canvas, this.mark, this.cursor);
    const rows = element("span", { class: "rows" }, `${data.rows} ↓`);
    this.element = element("div", { class: "heatmap" }, rows, stack, element("span", {}, `${data.columns} →`), this.says);
    this.at = [0, 0];
    const to = (row, column) => {
      this.at = [Math.max(0, Math.min(this.array.length - 1, row)), Math.max(0, Math.min(this.array[0].length - 1, column))];
      this.read();
    };
    this.canvas.addEventListener("keydown", (event) => {
      const turn = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
      if (!turn) return;
      event.preventDefault();
      event.stopPropagation();
      to(this.at[0] + turn[0], this.at[1] + turn[1]);
    });
    const point = (event) => {
      const box = this.canvas.getBoundingClientRect();
      const share = [(event.clientY - box.top) / box.height, (event.clientX - box.left) / box.width];
      to(Math.floor(share[0] * this.array.length), Math.floor(share[1] * this.array[0].length));
      return this.at[0];
    };
    this.canvas.addEventListener("pointermove", point);
    this.canvas.addEventListener("click", (event) => data.row && simulation.choose(data.row, point(event)));
  }

  set(arrays, chosen) {
    this.array = arrays[this.data.name];
    paint(this.canvas, this.array, this.data);
    this.canvas.setAttribute("aria-label", `${this.array.length} ${this.data.rows}, ${this.array[0].length} ${this.data.columns}; arrow keys read entries`);
    this.row = this.data.row ? chosen[this.data.row] : null;
    this.mark.style.cssText = `top: ${(100 * this.row) / this.array.length}%; height: ${100 / this.array.length}%`;
    this.at = [Math.min(this.at[0], this.array.length - 1), Math.min(this.at[1], this.array[0].length - 1)];
    this.read();
  }

  read() {
    const [row, column] = this.at;
    const [down, across] = [100 / this.array.length, 100 / this.array[0].length];
    this.cursor.hidden = false;
    this.cursor.style.cssText = `top: ${row * down}%; left: ${column * across}%; height: ${down}%; width: ${across}%`;
    this.says.textContent = `${this.data.rows} ${row}, ${this.data.columns} ${column}: ${told(this.array[row][column])}`;
  }

  shown() {
    return { levels: levelsOf(this.canvas), row: this.row };
  }
}

/** Colour a canvas, one pixel for each entry; what is `high` is opaque, what is `low` clear. */
export function paint(canvas, array, { low, high }) {
  [canvas.height, canvas.width] = [array.length, array[0].length];
  const context = canvas.getContext("2d");
  const image = context.createImageData(canvas.width, canvas.height);
  array.flat().forEach((value, n) => {
    const share = Math.max(0, Math.min(1, (value - low) / (high - low)));
    image.data.set([59, 130, 196, Math.floor(255 * share + 0.5)], 4 * n);
  });
  context.putImageData(image, 0, 0);
}

/** How strong the colour of each pixel of a canvas is. */
export function levelsOf(canvas) {
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  return Array.from({ length: canvas.height }, (_, row) =>
    Array.from({ length: canvas.width }, (_, column) => data[4 * (row * canvas.width + column) + 3]),
  );
}

const shareOf = ({ low, high, log }, value) => {
  const of = (x) => (log ? Math.log10(x) : x);
  return Math.max(0, Math.min(1, (of(value) - of(low)) / (of(high) - of(low))));
};
const acrossOf = (axis, value) => LEFT + (WIDTH - LEFT) * shareOf(axis, value);
const upOf = (axis, value) => (HEIGHT - BOTTOM) * (1 - shareOf(axis, value));

/** Curves over a common axis, with a marker whose place on each of them is read out. */
class Curves {
  constructor(data, simulation) {
    this.data = data;
    const names = Object.keys(data.of);
    const line = (attributes) => element("line", { class: "axis", ...attributes });
    const bottom = HEIGHT - BOTTOM;
    const ticks = [
      ...data.x.ticks.map(({ at, label }) => {
        const x = LEFT + (WIDTH - LEFT) * at;
        return element("g", {}, line({ x1: x, x2: x, y1: bottom, y2: bottom + 4 }), element("text", { x, y: bottom + 16, class: "middle" }, label));
      }),
      ...data.y.ticks.map(({ at, label }) => {
        const y = bottom * (1 - at);
        return element("g", {}, line({ x1: LEFT, x2: WIDTH, y1: y, y2: y, class: "grid" }), element("text", { x: LEFT - 5, y: y + 4, class: "end" }, label));
      }),
    ];
    this.lines = names.map((_, n) => element("polyline", { class: `curve colour-${n}`, "stroke-dasharray": STROKES[n] }));
    this.marks = names.map((_, n) => element("circle", { class: `mark colour-${n}`, r: 4.5 }));
    this.rule = line({ y1: 0, y2: bottom, class: "rule" });
    this.says = element("p", { class: "readout", "aria-live": "polite" });
    const marks = data.marker ? [this.rule, ...this.marks] : [];
    const svg = element(
      "svg",
      { viewBox: `0 -8 ${WIDTH + 8} ${HEIGHT + 8}`, role: "img", "aria-label": `${data.y.label} against ${data.x.label}` },
      ...ticks,
      line({ x1: LEFT, x2: WIDTH, y1: bottom, y2: bottom }),
      element("text", { x: (LEFT + WIDTH) / 2, y: HEIGHT - 4, class: "middle label" }, data.x.label),
      element("text", { x: 0, y: 4, class: "label" }, data.y.label),
      ...this.lines,
      ...marks,
    );
    svg.addEventListener("click", (event) => {
      if (!data.marker) return;
      const box = svg.getBoundingClientRect();
      const x = ((event.clientX - box.left) / box.width) * (WIDTH + 8);
      const far = data.at.map((at) => Math.abs(acrossOf(data.x, at) - x));
      simulation.choose(data.marker, far.indexOf(Math.min(...far)));
    });
    const key = names.map((name, n) =>
      element("li", {}, element("svg", { viewBox: "0 0 28 8", width: 28, height: 8, "aria-hidden": "true" }, element("line", { x1: 0, x2: 28, y1: 4, y2: 4, class: `curve colour-${n}`, "stroke-dasharray": STROKES[n] })), data.of[name]),
    );
    this.element = element("div", { class: "chart" }, svg, element("ul", { class: "key" }, ...key), this.says);
  }

  set(arrays, chosen) {
    const { at, x, y, of, marker } = this.data;
    Object.keys(of).forEach((name, n) => {
      const points = arrays[name].map((value, i) => [tenth(acrossOf(x, at[i])), tenth(upOf(y, value))]);
      this.lines[n].setAttribute("points", points.map((point) => point.join(",")).join(" "));
      if (marker) [this.marks[n].cx.baseVal.value, this.marks[n].cy.baseVal.value] = points[chosen[marker]];
    });
    if (!marker) return;
    this.mark = chosen[marker];
    for (const end of ["x1", "x2"]) this.rule.setAttribute(end, acrossOf(x, at[this.mark]));
    const each = Object.entries(of).map(([name, label]) => `${label} ${told(arrays[name][this.mark])}`);
    this.says.textContent = `${x.label} ${told(at[this.mark])}: ${each.join(", ")}`;
  }

  shown() {
    const numbers = (line) => line.getAttribute("points").split(" ").map((point) => point.split(",").map(Number));
    return {
      lines: Object.fromEntries(Object.keys(this.data.of).map((name, n) => [name, numbers(this.lines[n])])),
      mark: this.data.marker ? this.mark : null,
    };
  }
}

/** Points, arrows and areas in a plane; the point of a pad is dragged, or moved by arrow keys. */
class Plane {
  static side = 320;

  constructor(data, simulation) {
    this.data = data;
    const { side } = Plane;
    const axis = (attributes) => element("line", { class: "axis", ...attributes });
    this.groups = data.of.map((of) => element("g", { class: `points ${of.form} colour-${of.colour}` }));
    const arrow = element("marker", { id: `head-${simulation.id}`, viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" }, element("path", { d: "M0,0 L8,4 L0,8 z", fill: "context-stroke" }));
    this.head = `url(#head-${simulation.id})`;
    this.svg = element(
      "svg",
      { viewBox: `0 0 ${side} ${side}`, role: "group", "aria-label": "a plane" },
      element("defs", {}, arrow),
      axis({ x1: 0, x2: side, y1: side / 2, y2: side / 2 }),
      axis({ x1: side / 2, x2: side / 2, y1: 0, y2: side }),
      element("text", { x: side - 4, y: side / 2 - 5, class: "end label" }, data.x),
      element("text", { x: side / 2 + 5, y: 12, class: "label" }, data.y),
      ...this.groups,
    );
    this.element = element("div", { class: "plane" }, this.svg);
    if (data.pad) this.drag(simulation);
  }

  drag(simulation) {
    const move = (event) => {
      const box = this.svg.getBoundingClientRect();
      const { reach } = this.data;
      const at = [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
      simulation.controls[this.data.pad].to(reach * (2 * at[0] - 1), reach * (1 - 2 * at[1]));
    };
    this.svg.classList.add("dragged");
    this.svg.addEventListener("pointerdown", (event) => {
      this.svg.setPointerCapture(event.pointerId);
      move(event);
    });
    this.svg.addEventListener("pointermove", (event) => event.buttons && move(event));
  }

  set(arrays) {
    const half = Plane.side / 2;
    this.data.of.forEach((of, n) => {
      const array = arrays[of.name];
      const points = (Array.isArray(array[0]) ? array : [array]).map(([x, y]) => [
        tenth(half * (1 + x / this.data.reach)),
        tenth(half * (1 - y / this.data.reach)),
      ]);
      const sizes = of.weights ? arrays[of.weights].map((weight) => tenth(3 + 11 * weight)) : null;
      const marks = points.map(([x, y], i) => {
        if (of.form === "arrows") return element("line", { x1: half, y1: half, x2: x, y2: y, "marker-end": this.head });
        return element("circle", { cx: x, cy: y, r: sizes ? sizes[i] : 5 });
      });
      const area = element("polygon", { points: points.map((point) => point.join(",")).join(" ") });
      const labels = of.labels.map((label, i) => element("text", { x: points[i][0] + 7, y: points[i][1] - 7 }, label));
      this.groups[n].replaceChildren(...(of.form === "area" ? [area] : marks), ...labels);
      this.groups[n].dataset.shown = JSON.stringify({ at: points, sizes });
    });
  }

  shown() {
    return Object.fromEntries(
      this.data.of.map((of, n) => {
        const group = this.groups[n];
        const [area] = group.querySelectorAll("polygon");
        const at = area
          ? area.getAttribute("points").split(" ").map((point) => point.split(",").map(Number))
          : [...group.querySelectorAll("circle, line")].map((mark) =>
              (mark.tagName === "line" ? ["x2", "y2"] : ["cx", "cy"]).map((name) => Number(mark.getAttribute(name))),
            );
        const sizes = of.weights ? [...group.querySelectorAll("circle")].map((mark) => Number(mark.getAttribute("r"))) : null;
        return [of.name, { at, sizes }];
      }),
    );
  }
}

/** Pieces of work in rows over time; what has ended by now is filled. */
class Timeline {
  constructor(data) {
    this.data = data;
    this.rowHeight = 22;
    this.svg = element("svg", { viewBox: `0 0 ${WIDTH} ${data.rows.length * this.rowHeight + BOTTOM}`, role: "img", "aria-label": `work in ${data.rows.length} rows over ${data.x}` });
    this.element = element("div", { class: "chart timeline" }, this.svg);
  }

  set(arrays, chosen) {
    const { of, rows, until, now, x } = this.data;
    const [width, high] = [(WIDTH - 80) / until, this.rowHeight];
    this.now = chosen[now];
    this.pieces = arrays[of].map(([row, begin, end]) => {
      const state = end <= this.now ? "done" : begin < this.now ? "doing" : "open";
      return element("rect", { class: state, x: 80 + width * begin, y: row * high + 2, width: width * (end - begin) - 1, height: high - 4, "data-piece": JSON.stringify([row, begin, end]) });
    });
    const line = 80 + width * this.now;
    this.svg.replaceChildren(
      ...rows.map((name, row) => element("text", { x: 74, y: row * high + 15, class: "end" }, name)),
      ...this.pieces,
      element("line", { class: "rule", x1: line, x2: line, y1: 0, y2: rows.length * high }),
      element("text", { class: "middle label", x: (WIDTH + 80) / 2, y: rows.length * high + 24 }, `${x}: ${this.now}`),
    );
  }

  shown() {
    return {
      states: this.pieces.map((piece) => piece.getAttribute("class")),
      pieces: this.pieces.map((piece) => JSON.parse(piece.dataset.piece)),
      now: this.now,
    };
  }
}

/** Blocks and the edges between them; the one at work stands out, and a block can be picked. */
class Diagram {
  constructor(data, simulation) {
    this.data = data;
    const [wide, high, apart, below] = [132, 40, 168, 66];
    const middle = ({ column, row }) => [wide / 2 + 6 + column * apart, high / 2 + 8 + row * below];
    const named = Object.fromEntries(data.blocks.map((block) => [block.name, block]));
    const edges = data.edges.map(([from, to]) => {
      const [[x1, y1], [x2, y2]] = [middle(named[from]), middle(named[to])];
      return element("line", { class: "edge", x1, y1, x2, y2, "data-edge": `${from} ${to}` });
    });
    this.values = data.blocks.map(() => element("text", { class: "middle value" }));
    this.blocks = data.blocks.map((block, n) => {
      const [x, y] = middle(block);
      for (const [name, at] of [["x", x], ["y", y + 14]]) this.values[n].setAttribute(name, at);
      const made = element(
        "g",
        { class: "block", "data-block": block.name, role: data.pick ? "button" : null, "aria-label": block.label },
        element("rect", { x: x - wide / 2, y: y - high / 2, width: wide, height: high, rx: 7 }),
        element("text", { x, y: data.values ? y - 3 : y + 4, class: "middle" }, block.label),
        this.values[n],
      );
      if (data.pick) {
        const pick = () => simulation.choose(data.pick, n);
        made.addEventListener("click", pick);
        made.addEventListener("keydown", (event) => ["Enter", " "].includes(event.key) && (event.preventDefault(), pick()));
      }
      return made;
    });
    if (data.pick) roving(this.blocks.map((block) => [block]));
    const size = [Math.max(...data.blocks.map((b) => b.column)) * apart + wide + 12, Math.max(...data.blocks.map((b) => b.row)) * below + high + 16];
    this.svg = element("svg", { viewBox: `0 0 ${size.join(" ")}`, role: "group", "aria-label": "the parts and what flows between them", style: `max-width: ${size[0]}px` }, ...edges, ...this.blocks);
    this.element = element("div", { class: "diagram" }, this.svg);
  }

  set(arrays) {
    const { blocks, at, way, values } = this.data;
    const active = blocks[arrays[at]].name;
    this.svg.dataset.way = way ? arrays[way] : 1;
    this.blocks.forEach((block, n) => {
      block.classList.toggle("active", blocks[n].name === active);
      if (values) this.values[n].textContent = arrays[values][n].toFixed(2).replace("-", "−");
    });
    for (const edge of this.svg.querySelectorAll(".edge")) {
      const [from, to] = edge.dataset.edge.split(" ");
      edge.classList.toggle("active", (Number(this.svg.dataset.way) > 0 ? to : from) === active);
    }
  }

  shown() {
    return {
      at: this.svg.querySelector(".block.active").dataset.block,
      texts: this.data.values ? this.values.map((value) => value.textContent) : null,
      way: Number(this.svg.dataset.way),
    };
  }
}

export const VIEWS = { stepper: Stepper, matrices: Matrices, heatmap: Heatmap, curves: Curves, plane: Plane, timeline: Timeline, diagram: Diagram };
