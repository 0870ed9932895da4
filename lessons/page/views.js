import { amount, element, figure, roomy, roving, seen, signs, turned } from "./dom.js";
import { MatrixTable } from "./matrix_table.js";
import { Stepper } from "./stepper.js";

// How simulations show arrays. A view is made from what views.py tells the page about it, and from
// its simulation. `set(arrays, chosen)` shows arrays; `shown()` reads from the page what it shows,
// for tests. Nothing here computes: the numbers come from numformer.

const LEFT = 52, BOTTOM = 40, TOP = 22; // the room of a chart's axes, as in views.py
const STROKES = ["", "6 3", "2 3", "8 3 2 3", ...Array(7).fill("")]; // so that lines differ in more than colour
const tenth = (x) => Math.round(10 * x + 1e-7) / 10;
const pairs = (text) => text.split(" ").map((point) => point.split(",").map(Number));

class Matrices {
  constructor(data, simulation) {
    this.data = data;
    const arrow = () => element("span", { class: "arrow", "aria-hidden": "true" });
    const all = data.of.flatMap(({ name }) => (data.after.includes(name) ? ["→", name] : [name]));
    this.groups = (data.groups.length ? data.groups : [all]).map((names) => {
      const tables = names.map((name) => name !== "→" && new MatrixTable(data.of.find((of) => of.name === name), simulation.every(name)));
      const place = element("div", { class: "matrices" }, ...tables.map((table) => table?.element ?? arrow()));
      return { place, there: tables.filter(Boolean) };
    });
    this.element = element("div", { class: "groups pile" }, ...this.groups.map(({ place }) => place));
  }

  changed(before, after) {
    for (const table of this.there) table.mark(before[table.of.name], after[table.of.name], [before, after].map((arrays) => arrays[table.of.lit]));
  }

  set(arrays, chosen) {
    const group = this.groups[this.data.groups.length && arrays[this.data.group]];
    this.there = group.there;
    seen(this.groups.map(({ place }) => place), group.place);
    for (const table of this.there) {
      const { name } = table.of;
      table.set(arrays[name], arrays[table.of.lit]);
      table.outline("picked", (row) => this.data.marked.includes(name) && row === chosen[this.data.picked]);
    }
  }

  shown() {
    return Object.fromEntries(this.there.map((table) => [table.of.name, table.shown()]));
  }
}

class Heatmap {
  constructor(data, simulation) {
    this.data = data;
    this.canvas = element("canvas", { tabindex: 0, role: "img" });
    [this.cursor, this.mark] = ["cursor", "mark"].map((name) => element("div", { class: name }));
    this.sides = ["beside", "above"].map((name) => element("div", { class: name, "aria-hidden": "true" }));
    const side = (words) => (typeof words !== "string" || !words ? [...words] : [...new Set(simulation.every(words).flat())].map((id) => data.vocabulary[id]));
    const [row, column] = [side(data.row_names), side(data.column_names)].map(longest);
    const [down, across] = [[row, "000"], [column, "000"]].map(longest);
    this.says = roomy("p", { class: "readout", "aria-live": "polite" }, [`${data.rows} ${down}, ${data.columns} ${across}: −0.00000`]);
    this.sides[0].dataset.all = side(data.row_names).join("\n");
    const stack = element("div", { class: "stack" }, this.canvas, data.row ? this.mark : null, this.cursor);
    const words = [element("span", { class: "rows" }, `${data.rows} ↓`), element("span", { class: "columns" }, `${data.columns} →`)];
    this.element = element("div", { class: "heatmap" }, ...words, ...this.sides, stack, this.says.element);
    this.at = [0, 0];
    this.canvas.addEventListener("keydown", (event) => {
      const turn = turned(event);
      if (!turn) return;
      event.preventDefault();
      this.read(this.at[0] + turn[0], this.at[1] + turn[1]);
    });
    const point = (event) => {
      const box = this.canvas.getBoundingClientRect();
      const [down, across] = [(event.clientY - box.top) / box.height, (event.clientX - box.left) / box.width];
      this.read(Math.floor(down * this.array.length), Math.floor(across * this.array[0].length));
    };
    this.canvas.addEventListener("pointermove", point);
    this.canvas.addEventListener("click", (event) => (point(event), data.row && simulation.choose(data.row, this.at[0])));
  }

  set(arrays, chosen) {
    const { name, row, rows, columns, vocabulary } = this.data;
    this.array = arrays[name];
    paint(this.canvas, this.array, this.data);
    this.names = [this.data.row_names, this.data.column_names].map((words) =>
      typeof words === "string" && words ? arrays[words].map((id) => vocabulary[id]) : [...words],
    );
    this.sides.forEach((side, n) => side.replaceChildren(...this.names[n].map((word) => element("span", {}, word))));
    this.canvas.setAttribute("aria-label", `${this.array.length} ${rows}, ${this.array[0].length} ${columns}; arrow keys read entries`);
    this.row = row ? chosen[row] : null;
    this.mark.style.cssText = `top: ${(100 * this.row) / this.array.length}%; height: ${100 / this.array.length}%`;
    this.read(...this.at);
  }

  read(row, column) {
    const counts = [this.array.length, this.array[0].length];
    const [r, c] = (this.at = [row, column].map((at, n) => Math.max(0, Math.min(counts[n] - 1, at))));
    const [down, across] = [100 / counts[0], 100 / counts[1]];
    this.cursor.style.cssText = `top: ${r * down}%; left: ${c * across}%; height: ${down}%; width: ${across}%`;
    const [of, by] = this.at.map((at, n) => this.names[n][at] ?? at);
    this.says.say(`${this.data.rows} ${of}, ${this.data.columns} ${by}: ${figure(this.array[r][c])}`);
  }

  shown() {
    const names = this.sides.map((side) => [...side.children].map((word) => word.textContent));
    return { levels: levelsOf(this.canvas), names, row: this.row };
  }
}

const longest = (texts) => texts.reduce((long, text) => (text.length > long.length ? text : long), "");

/**
 * Colour a canvas, one pixel for each entry: `high` is opaque, `low` is clear. If `low` is below 0,
 * numbers below 0 have a colour of their own, and 0 is clear.
 */
export function paint(canvas, array, { low, high }) {
  [canvas.height, canvas.width] = [array.length, array[0].length];
  const [positive, negative] = signs();
  const context = canvas.getContext("2d", { willReadFrequently: true });
  const image = context.createImageData(canvas.width, canvas.height);
  array.flat().forEach((value, n) => {
    const size = low < 0 ? Math.abs(value) / Math.max(-low, high) : (value - low) / (high - low);
    const colour = low < 0 && value < 0 ? negative : positive;
    image.data.set([...colour, Math.floor(255 * Math.max(0, Math.min(1, size)) + 0.5)], 4 * n);
  });
  context.putImageData(image, 0, 0);
}

/** How strong the colour of each pixel of a canvas is; negative for the colour of numbers below 0. */
export function levelsOf(canvas) {
  const { width, height } = canvas;
  const { data } = canvas.getContext("2d").getImageData(0, 0, width, height);
  const level = (at) => data[at + 3] * (data[at] > data[at + 2] ? -1 : 1) || 0;
  const row = (n) => Array.from({ length: width }, (_, column) => level(4 * (n * width + column)));
  return Array.from({ length: height }, (_, n) => row(n));
}

const MARKS = { line: "polyline", area: "polygon", dots: "circle", arrows: "line", work: "rect" };

class Chart {
  constructor(data, simulation) {
    Object.assign(this, { data, simulation });
    const { x, y, of, marker, colours } = data;
    const [width, height] = data.size;
    this.row = tenth(Math.abs(height / (y.high - y.low))); // the height of a piece of work
    const line = (attributes) => element("line", { class: "axis", ...attributes });
    const tick = (at, label) => element("g", {}, line({ x1: at, x2: at, y1: height, y2: height + 4 }), element("text", { x: at, y: height + 16, class: "middle" }, label));
    const grid = (at, label) => element("g", {}, line({ x1: LEFT, x2: LEFT + width, y1: at, y2: at, class: "grid" }), element("text", { x: LEFT - 5, y: at + 4, class: "end" }, label));
    const stroke = (n) => ({ class: `drawn ${of[n].form} colour-${colours[n]}`, "stroke-dasharray": of[n].form === "line" ? STROKES[colours[n]] : null });
    this.groups = of.map((_, n) => element("g", stroke(n)));
    this.head = `head-${simulation.id}-${simulation.data.views.indexOf(data)}`;
    const arrow = element("marker", { id: this.head, viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" }, element("path", { d: "M0,0 L8,4 L0,8 z", fill: "context-stroke" }));
    this.rule = line({ y1: 0, y2: height, class: "rule" });
    // What is to come lies behind a curtain, which the marker opens.
    this.curtain = element("rect", { class: "curtain", x: LEFT, width: of.some(({ form }) => form === "work") ? width : 0, height });
    const lines = marker ? of.filter(({ form }) => form === "line") : [];
    this.markers = of.map((each, n) => lines.includes(each) && element("g", stroke(n), element("circle", { class: "marker", r: 4.5 })));
    const widest = (values) => longest(values.map(figure));
    const most = lines.map(({ name, label }) => `${label} ${widest(simulation.every(name).flat())}`);
    this.says = roomy("p", { class: "readout", "aria-live": "polite" }, marker ? [[`${x.label} ${widest(data.at)}`, ...most].join(", ")] : []);
    this.svg = element(
      "svg",
      { viewBox: `0 ${-TOP} ${LEFT + width + 8} ${height + BOTTOM + TOP}`, role: "img", "aria-label": [`${y.label} against ${x.label}`, ...of.flatMap(({ label }) => label || [])].join(", ") },
      element("defs", {}, arrow),
      ...x.ticks.map(({ at, label }) => tick(LEFT + width * at, label)),
      ...y.ticks.map(({ at, label }) => grid(height * (1 - at), label)),
      line({ x1: LEFT, x2: LEFT + width, y1: height, y2: height }),
      element("text", { x: LEFT + width / 2, y: height + BOTTOM - 6, class: "middle label" }, x.label),
      element("text", { x: 0, y: 6 - TOP, class: "label" }, y.label),
      ...this.groups,
      ...(marker ? [this.curtain, ...this.markers.filter(Boolean), this.rule] : []),
    );
    const sample = (n) => element("svg", { viewBox: "0 0 28 8", "aria-hidden": "true" }, element("g", stroke(n), element("line", { x1: 2, x2: 26, y1: 4, y2: 4 })));
    const key = of.flatMap(({ label }, n) => (label ? [element("li", {}, sample(n), label)] : []));
    this.element = element("div", { class: data.square ? "chart square" : "chart" }, this.svg, element("ul", { class: "key" }, ...key), marker ? this.says.element : null);
    const moved = (event) => {
      const box = this.svg.getBoundingClientRect();
      const scale = box.width / (LEFT + width + 8);
      const at = [(event.clientX - box.left) / scale - LEFT, (event.clientY - box.top) / scale - TOP];
      this.pointed(at[0] / width, 1 - at[1] / height);
    };
    if (!marker && !data.pad) return;
    this.svg.classList.add("dragged");
    // A finger on the chart may want to scroll the page. So it moves the point of a pad only by its
    // handle, and a marker only by moving sideways; a tap counts when it ends.
    this.svg.addEventListener("pointerdown", (event) => {
      if (event.pointerType === "touch" && !event.target.closest(".handle")) return;
      this.svg.setPointerCapture(event.pointerId);
      moved(event);
    });
    this.svg.addEventListener("pointermove", (event) => event.buttons && (marker || event.pointerType !== "touch" || event.target.closest(".handle")) && moved(event));
    this.svg.addEventListener("click", moved);
    if (data.pad) this.svg.append((this.handle = element("circle", { class: "handle", r: 26 })));
  }

  /** Move the marker, or the point of a pad, to a pointer at these shares of the two axes. */
  pointed(across, up) {
    const { x, y, at, marker, pad } = this.data;
    const value = (axis, share) => axis.low + share * (axis.high - axis.low);
    if (pad) return this.simulation.controls[pad].to(value(x, across), value(y, up));
    const far = at.map((each) => Math.abs(shareOf(x, each) - across));
    this.simulation.choose(marker, far.indexOf(Math.min(...far)));
  }

  place(point) {
    const { x, y, size } = this.data;
    return [tenth(LEFT + size[0] * shareOf(x, point[0])), tenth(size[1] * (1 - shareOf(y, point[1])))];
  }

  set(arrays, chosen) {
    const { of, x, at, marker } = this.data;
    this.mark = marker ? chosen[marker] : null;
    const drawn = of.map(({ name, form, at: over }) => {
      const array = Array.isArray(arrays[name][0]) || form === "line" ? arrays[name] : [arrays[name]];
      const points = { line: () => array.map((value, i) => [over[i], value]), work: () => array.flatMap(([row, begin, end]) => [[begin, row], [end, row]]) };
      return { array, places: (points[form]?.() ?? array).map((point) => this.place(point)) };
    });
    const radius = ({ sizes }, i) => (sizes ? tenth(3 + 11 * arrays[sizes][i]) : 4.5);
    const dots = of.flatMap((each, n) => (each.form === "dots" ? drawn[n].places.map(([x, y], i) => ({ x, y, r: radius(each, i), text: each.names[i] })) : []));
    const texts = dots.some(({ text }) => text) ? beside(dots, LEFT + this.data.size[0]) : [];
    of.forEach((each, n) => {
      const { form } = each;
      const { array, places } = drawn[n];
      const [zeroX, zeroY] = this.place([0, 0]);
      const one = ([x, y], i) =>
        form === "arrows"
          ? element("line", { x1: zeroX, y1: zeroY, x2: x, y2: y, "marker-end": `url(#${this.head})` })
          : element("circle", { cx: x, cy: y, r: radius(each, i) });
      const path = () => element(MARKS[form], { points: places.map((place) => place.join(",")).join(" ") });
      const piece = (_, i) => {
        const [[x, y], [until]] = places.slice(2 * i, 2 * i + 2);
        return element("rect", { x, y, width: tenth(until - x), height: this.row });
      };
      const marks = form === "work" ? array.map(piece) : MARKS[form].startsWith("poly") ? [path()] : places.map(one);
      this.groups[n].replaceChildren(...marks, ...each.names.map(() => texts.shift()));
      if (this.markers[n]) this.markers[n].firstChild.style.transform = `translate(${places[this.mark].join("px, ")}px)`;
    });
    if (this.handle) {
      const { across } = this.simulation.controls[this.data.pad].data;
      const index = chosen[this.data.pad];
      const [cx, cy] = this.place([across[index % across.length], across[Math.floor(index / across.length)]]);
      for (const [name, value] of Object.entries({ cx, cy })) this.handle.setAttribute(name, value);
    }
    if (!marker) return;
    this.curtain.style.transform = `scaleX(${1 - shareOf(x, at[this.mark])})`;
    this.rule.style.transform = `translateX(${this.place([at[this.mark], this.data.y.low])[0]}px)`;
    const each = of.filter(({ form }) => form === "line").map(({ name, label }) => `${label} ${figure(arrays[name][this.mark])}`);
    this.says.say([`${x.label} ${figure(at[this.mark])}`, ...each].join(", "));
  }

  shown() {
    const drawn = this.data.of.map(({ name, form, sizes }, n) => {
      const marks = [...this.groups[n].querySelectorAll(MARKS[form])];
      const piece = (mark) => ["x", "y", "width"].map((each) => Number(mark.getAttribute(each)));
      const ends = ([x, y, width]) => [[x, y], [tenth(x + width), y]];
      const read = (names) => marks.map((mark) => names.map((each) => Number(mark.getAttribute(each))));
      const at = { line: () => pairs(marks[0].getAttribute("points")), dots: () => read(["cx", "cy"]), arrows: () => read(["x2", "y2"]), work: () => marks.map(piece).flatMap(ends) };
      return [name, { at: (at[form] ?? at.line)(), sizes: sizes ? read(["r"]).flat() : null }];
    });
    return { drawn: Object.fromEntries(drawn), mark: this.mark };
  }
}

/** The names of dots as texts, each on the side of its dot where it covers least of what is there. */
function beside(dots, right) {
  const there = dots.map(({ x, y, r }) => [x - r, y - r, x + r, y + r]);
  const common = ([a, b, c, d], [e, f, g, h]) => Math.max(0, Math.min(c, g) - Math.max(a, e)) * Math.max(0, Math.min(d, h) - Math.max(b, f));
  return dots.filter(({ text }) => text).map(({ x, y, r, text }) => {
    const [away, wide] = [0.7 * r + 4, 7 * text.length];
    const boxes = [[1, -1], [1, 1], [-1, -1], [-1, 1]].map(([across, down]) => {
      const [left, top] = [across > 0 ? x + away : x - away - wide, down > 0 ? y + away : y - away - 12];
      return [left, top, left + wide, top + 12];
    });
    const cost = (box) => there.reduce((sum, other, n) => sum + common(box, other) * (n < dots.length ? 1 : 99), box[2] > right + 12 ? 999 : 0);
    const box = boxes.reduce((best, each) => (cost(each) < cost(best) ? each : best));
    there.push(box);
    return element("text", { x: box[0], y: box[3] - 3 }, text);
  });
}

/** Where a value stands on an axis, 0 at its beginning and 1 at its end. */
function shareOf({ low, high, log }, value) {
  const of = (x) => (log ? Math.log10(x) : x);
  return Math.max(0, Math.min(1, (of(value) - of(low)) / (of(high) - of(low))));
}

const [WIDE, HIGH, LYING] = [132, 40, 800]; // a block's width and height; the least width for a horizontal diagram

class Diagram {
  constructor(data, simulation) {
    this.data = data;
    this.edges = data.edges.map(() => element("line", { class: "edge" }));
    this.blocks = data.blocks.map(({ name, label }, n) => {
      const pick = () => data.pick && simulation.choose(data.pick, n);
      const pressed = (event) => ["Enter", " "].includes(event.key) && (event.preventDefault(), pick());
      return element(
        "g",
        { class: "block", "data-block": name, role: data.pick ? "button" : null, "aria-label": label, onclick: pick, onkeydown: pressed },
        element("rect", { x: -WIDE / 2, y: -HIGH / 2, width: WIDE, height: HIGH, rx: 7 }),
        element("text", { y: data.values ? -3 : 4, class: "middle" }, label),
        data.values ? element("text", { y: 14, class: "middle value" }) : null,
      );
    });
    if (data.pick) roving(this.blocks.map((block) => [block]));
    this.svg = element("svg", { role: "group", "aria-label": "the parts and what flows between them" }, ...this.edges, ...this.blocks);
    this.element = element("div", { class: "diagram" }, this.svg);
    this.lay(false);
    if (data.turns) new ResizeObserver(() => this.lay(this.element.clientWidth >= LYING)).observe(this.element);
  }

  /** Place the blocks from top to bottom, or, if `lying`, from left to right. */
  lay(lying) {
    const spots = this.data.blocks.map(({ column, row }) => (lying ? [row, column] : [column, row]));
    const least = [0, 1].map((n) => Math.min(...spots.map((spot) => spot[n])));
    const middles = spots.map(([x, y]) => [WIDE / 2 + 6 + (x - least[0]) * 168, HIGH / 2 + 8 + (y - least[1]) * 66]);
    const places = Object.fromEntries(this.data.blocks.map(({ name }, n) => [name, middles[n]]));
    this.blocks.forEach((block, n) => block.setAttribute("transform", `translate(${middles[n]})`));
    this.edges.forEach((edge, n) =>
      this.data.edges[n].forEach((name, end) => ["x", "y"].forEach((axis, of) => edge.setAttribute(`${axis}${end + 1}`, places[name][of]))),
    );
    const [width, height] = [WIDE, HIGH].map((size, n) => Math.max(...middles.map((middle) => middle[n])) + size / 2 + 8);
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.svg.style.maxWidth = `${width}px`;
  }

  set(arrays) {
    const { blocks, at, way, values } = this.data;
    const active = blocks[arrays[at]].name;
    this.svg.dataset.way = way ? arrays[way] : 1;
    this.blocks.forEach((block, n) => {
      block.classList.toggle("active", blocks[n].name === active);
      if (values) block.querySelector(".value").textContent = figure(arrays[values][n]);
    });
    const end = Number(this.svg.dataset.way) > 0 ? 1 : 0;
    this.edges.forEach((edge, n) => edge.classList.toggle("active", this.data.edges[n][end] === active));
  }

  shown() {
    const texts = [...this.svg.querySelectorAll(".value")].map((value) => value.textContent);
    const lit = this.data.edges.filter((_, n) => this.edges[n].classList.contains("active"));
    return { at: this.svg.querySelector(".block.active").dataset.block, texts, way: Number(this.svg.dataset.way), lit };
  }
}

/** Clock faces; a hand turns to its new direction by the shorter way. */
class Clocks {
  constructor(data) {
    this.data = data;
    this.names = Object.keys(data.hands);
    const hand = (n) => element("g", { class: `hand drawn colour-${n}` }, element("line", {}), element("circle", { r: 3.5 }));
    const ticks = Array.from({ length: 12 }, (_, n) => element("line", { class: "axis", y1: -50, y2: -46, transform: `rotate(${30 * n})` }));
    const made = data.labels.map((label) => {
      const [hands, value] = [this.names.map((_, n) => hand(n)), element("b")];
      const face = element("svg", { viewBox: "-53 -53 106 106", role: "img", "aria-label": `a clock, ${label}, with hands ${Object.values(data.hands).join(", ")}` }, element("circle", { class: "face", r: 50 }), ...ticks.map((tick) => tick.cloneNode()), ...hands);
      return { hands, value, element: element("div", { class: "clock" }, face, element("span", {}, label), value) };
    });
    this.hands = made.map(({ hands }) => hands);
    this.values = made.map(({ value }) => value);
    this.angles = {};
    const key = Object.values(data.hands).map((label, n) => element("li", { class: `colour-${n}` }, label));
    this.element = element("div", { class: "clocks" }, element("div", { class: "faces" }, ...made.map((face) => face.element)), element("ul", { class: "key" }, ...key));
  }

  set(arrays) {
    const { values, reach } = this.data;
    this.values.forEach((value, n) => (value.textContent = figure(arrays[values][n])));
    this.hands.forEach((hands, face) =>
      hands.forEach((hand, n) => {
        const [x, y] = arrays[this.names[n]][face].map((at) => (48 * at) / arrays[reach]);
        const goal = (180 / Math.PI) * Math.atan2(x, y);
        const before = this.angles[[face, n]] ?? goal;
        const angle = (this.angles[[face, n]] = before + ((((goal - before + 180) % 360) + 360) % 360) - 180);
        const [line, tip] = hand.children;
        hand.dataset.angle = angle;
        hand.style.transform = `rotate(${angle}deg)`;
        line.setAttribute("y2", -Math.hypot(x, y));
        tip.setAttribute("cy", -Math.hypot(x, y));
      }),
    );
  }

  shown() {
    const tip = (hand) => {
      const angle = (Math.PI / 180) * hand.dataset.angle;
      const size = -hand.firstChild.getAttribute("y2");
      return [Math.sin(angle), Math.cos(angle)].map((share) => tenth(size * share));
    };
    const tips = this.names.map((name, n) => [name, this.hands.map((hands) => tip(hands[n]))]);
    return { tips: Object.fromEntries(tips), values: this.values.map((value) => value.textContent) };
  }
}

class Figures {
  constructor(data, simulation) {
    this.data = data;
    const value = (name) => roomy("dd", {}, simulation.every(name).map((array) => this.text(name, array)));
    this.values = Object.fromEntries(Object.keys(data.of).map((name) => [name, value(name)]));
    const lines = Object.entries(data.of).map(([name, label]) => element("div", {}, element("dt", {}, label), this.values[name].element));
    this.element = element("dl", { class: "figures" }, ...lines);
  }

  text(name, array) {
    const { spelled, vocabulary, amounts } = this.data;
    const shown = amounts.includes(name) ? amount : figure;
    return [array].flat().map((x) => (spelled.includes(name) ? vocabulary[x] : shown(x))).join(" ");
  }

  set(arrays) {
    for (const [name, value] of Object.entries(this.values)) value.say(this.text(name, arrays[name]));
    for (const [name, right] of Object.entries(this.data.right)) {
      const [given, wanted] = [name, right].map((each) => [arrays[each]].flat());
      const words = given.map((x, n) => element(x === wanted[n] ? "span" : "mark", {}, this.text(name, x)));
      this.values[name].said.replaceChildren(...words.flatMap((word, n) => (n ? [" ", word] : [word])));
    }
  }

  shown() {
    const texts = Object.entries(this.values).map(([name, { said }]) => [name, said.textContent]);
    const marked = (name) => [...this.values[name].said.children].flatMap((word, n) => (word.localName === "mark" ? [n] : []));
    const wrong = Object.keys(this.data.right).map((name) => [name, marked(name)]);
    return { ...Object.fromEntries(texts), ...(wrong.length ? { wrong: Object.fromEntries(wrong) } : {}) };
  }
}

export const VIEWS = { stepper: Stepper, matrices: Matrices, heatmap: Heatmap, chart: Chart, diagram: Diagram, clocks: Clocks, figures: Figures };
