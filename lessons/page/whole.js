import { element, figure, roving } from "./dom.js";
import { MatrixTable } from "./matrix_table.js";
import { Replay } from "./replay.js";
import { VIEWS } from "./views.js";

// A whole model as a map of its blocks. What is shown are arrays that numformer's recorded step
// made; what is computed here is that step again: with a weight moved, or with the gradient let
// through on one path alone.

const [WIDE, HIGH, ACROSS, UP, LEFT, TOP] = [158, 34, 278, 56, 130, 30];
const [FAR, STEPS, NUDGE, SHOWN] = [300, 3, 1e-5, 6]; // training, and how many paths are spelt out
const tenth = (x) => Math.floor(10 * x + 1e-7 + 0.5) / 10;
const place = ({ column, row }) => [LEFT + column * ACROSS, TOP + (7 - row) * UP];
const button = (text, onclick, more = {}) => element("button", { type: "button", onclick, ...more }, text);

class Whole {
  constructor(data, simulation) {
    Object.assign(this, { data, simulation, masks: data.masks, losses: [], open: {} });
    this.begin = data.state;
    this.parts = Object.fromEntries(data.parts.map((part) => [part.name, part]));
    this.parameters = Object.fromEntries(data.parameters.map((parameter) => [parameter.name, parameter]));
    this.size = (data.state.length - 1) / 3;
    this.picked = { name: "decoder.layers.0.cross_attention.sublayer.value.weight", row: 0, column: 0 };
    this.trainer = new Replay(data.training);
    this.probe = new Replay(simulation.data.pool[0]);
    this.panel = element("div", { class: "opened" });
    const beside = element("div", { class: "beside-map" }, this.told(), this.attention(), this.training(), this.weight());
    this.element = element("div", { class: "whole" }, element("div", { class: "map" }, this.map()), beside, this.panel);
    this.put(data.state);
  }

  /** The pair and what the model makes of it; each symbol is a button that changes it. */
  told() {
    const turn = (n) => {
      const { pair } = this.simulation.chosen;
      const digit = Math.floor(pair / 3 ** (2 - n)) % 3;
      this.simulation.choose("pair", pair + (((digit + 1) % 3) - digit) * 3 ** (2 - n));
    };
    this.symbols = [0, 1, 2].map((n) => button("", () => turn(n), { class: "symbol", title: "another symbol" }));
    [this.wanted, this.predicted, this.loss] = [1, 2, 3].map(() => element("output"));
    const line = (name, ...parts) => element("div", {}, element("dt", {}, name), element("dd", {}, ...parts));
    return element("dl", { class: "facts" }, line("Source", ...this.symbols), line("Right", this.wanted), line("Most probable", this.predicted), line("Loss", this.loss));
  }

  map() {
    this.edges = this.data.edges.map((edge, n) => element("path", { class: `flow ${edge.road || "on"}`, d: way(edge, this.parts), "data-edge": n }));
    this.blocks = this.data.parts.map((part) => {
      const [[x, y], open] = [place(part), () => this.choose(part.name)];
      const pressed = (event) => ["Enter", " "].includes(event.key) && (event.preventDefault(), open());
      const box = element("rect", { x: x - WIDE / 2, y: y - HIGH / 2, width: WIDE, height: HIGH, rx: 7 });
      const text = element("text", { x, y: y + 4, class: "middle" }, part.label);
      return element("g", { class: "block", role: "button", "aria-label": part.label, "data-block": part.name, onclick: open, onkeydown: pressed }, box, text);
    });
    roving(this.blocks.map((block) => [block]));
    const sides = ["encoder", "decoder"].map((side, n) => element("text", { x: LEFT + n * ACROSS, y: TOP + 7 * UP + 38, class: "middle label" }, side));
    return (this.svg = element("svg", { viewBox: `0 0 ${2 * LEFT + ACROSS} ${TOP + 7 * UP + 48}`, role: "group", "aria-label": "the blocks of the model and what flows between them" }, ...this.edges, ...this.blocks, ...sides));
  }

  /** Open a block: as it is at work forward, or on the way back where that is shown. */
  choose(name) {
    const back = this.stage?.[0] === "backward" ? "backward" : "forward";
    const at = (way) => this.data.stages.findIndex((stage) => stage[0] === way && stage[1] === name);
    this.simulation.choose("stage", name === "update" ? this.data.stages.length - 1 : at(back));
  }

  /** Who looks where, as a table for each attention; a cell is a button that masks it. */
  attention() {
    this.looks = this.data.attentions.map(({ name }) => ({ name }));
    this.looks.forEach((look, n) => {
      look.buttons = [0, 1, 2].map((row) => [0, 1, 2].map((column) => {
        const spans = [0, 1].map(() => element("span", { class: "head" }));
        const made = button("", () => this.mask(n, row, column), { class: "look" });
        made.append(...spans);
        return made;
      }));
      look.names = [0, 1].map(() => [0, 1, 2].map(() => element("th")));
      const rows = look.buttons.map((line, row) => element("tr", {}, look.names[0][row], ...line.map((each) => element("td", {}, each))));
      const head = element("tr", {}, element("td"), ...look.names[1]);
      look.element = element("table", { class: "looks" }, element("caption", {}, look.name), element("tbody", {}, head, ...rows));
    });
    return element("div", { class: "attentions" }, element("p", { class: "note" }, "Attention in percent, head 1 above head 2. Press a cell to mask it."), ...this.looks.map((look) => look.element));
  }

  mask(n, row, column) {
    this.masks = this.masks.map((mask, m) => mask.map((line, r) => line.map((open, c) => (m === n && r === row && c === column ? 1 - open : open))));
    this.changed();
  }

  training() {
    this.train = button("▶ Train on all 27 pairs", () => (this.running ? this.stop() : this.start()), { class: "play" });
    const step = button("One step on this pair", () => this.put(this.after), { class: "play" });
    const again = button("Start again", () => this.restart(), { class: "play" });
    this.curve = element("polyline", { points: "" });
    this.axis = element("text", { x: 300, y: 106, class: "end label" });
    const goal = element("line", { x1: 0, x2: 300, y1: 90 - 90 * 0.1 / 3, y2: 90 - 90 * 0.1 / 3, class: "rule" });
    const svg = element("svg", { viewBox: "-2 -14 304 124", role: "img", "aria-label": "the loss while training" }, element("text", { x: 0, y: -3, class: "label" }, "loss, 0 to 3"), element("line", { x1: 0, x2: 300, y1: 90, y2: 90, class: "axis" }), goal, element("text", { x: 300, y: 80, class: "end label" }, "0.1"), element("g", { class: "drawn colour-0" }, this.curve), this.axis);
    this.weights = element("canvas", { width: 149, height: 8, role: "img", "aria-label": "all weights, blue above 0 and orange below" });
    return element("div", { class: "train" }, element("div", { class: "buttons" }, this.train, step, again), svg, this.weights);
  }

  start() {
    this.running = true;
    this.train.textContent = "❚❚ Pause";
    const until = this.losses.length + FAR;
    const frame = () => {
      if (!this.running) return;
      this.taken(STEPS);
      this.losses.length < until ? requestAnimationFrame(frame) : this.stop();
    };
    frame();
  }

  /** So many steps of training on all pairs. */
  taken(count) {
    const { trainer } = this;
    trainer.set("given masks", this.masks);
    trainer.set("given state", this.state);
    for (let n = 0; n < count; n++) {
      trainer.run();
      this.losses.push(trainer.flat("loss")[0]);
      trainer.flat("given state").set(trainer.flat("after"));
    }
    this.put([...trainer.flat("after")]);
  }

  stop() {
    this.running = false;
    this.train.textContent = "▶ Train on all 27 pairs";
    this.changed();
  }

  restart() {
    this.stop();
    [this.losses, this.masks] = [[], this.data.masks];
    this.put(this.begin);
  }

  /** Let these be the weights, and the state of Adam. */
  put(state) {
    this.state = [...state];
    this.changed();
  }

  changed() {
    this.simulation.typed = { state: this.state, masks: this.masks };
    this.known = null;
    if (this.stage) this.simulation.update();
  }

  weight() {
    this.title = element("h4");
    this.entry = element("input", { type: "number", step: 0.01, "aria-label": "the picked weight", oninput: () => Number.isFinite(this.entry.valueAsNumber) && this.put(this.state.with(this.index(), this.entry.valueAsNumber)) });
    this.numbers = element("dl", { class: "facts" });
    this.paths = element("ol", { class: "paths" });
    this.note = element("p", { class: "note" });
    return element("div", { class: "weight" }, this.title, this.entry, this.numbers, this.note, this.paths);
  }

  index({ name, row, column } = this.picked) {
    const { begin, shape } = this.parameters[name];
    return begin + row * (shape[1] ?? 0) + column;
  }

  /** The step once more with these changes -> its loss, and the gradient of the picked weight. */
  tried(at, changes) {
    const { probe, simulation } = this;
    const pair = simulation.data.controls.find(({ name }) => name === "pair").values[simulation.chosen.pair];
    const gates = this.data.edges.filter(({ gate }) => gate !== null).map(() => 1);
    for (const [name, values] of Object.entries({ pair, state: this.state, masks: this.masks, gates, ...changes })) probe.set(`given ${name}`, values);
    probe.run();
    return { loss: probe.flat("loss")[0], gradient: probe.flat("gradients")[at] };
  }

  /** The gradient of the picked weight, the finite difference, and what each path contributes. */
  traced() {
    const at = this.index();
    const moved = [NUDGE, -NUDGE].map((by) => this.tried(at, { state: this.state.with(at, this.state[at] + by) }).loss);
    const shut = this.data.edges.filter(({ gate }) => gate !== null).map(() => 0);
    const direct = this.tried(at, { gates: shut }).gradient;
    const contributed = (path) => {
      const gates = [...shut];
      for (const n of path) if (this.data.edges[n].gate !== null) gates[this.data.edges[n].gate] = 1;
      return gates.includes(1) ? this.tried(at, { gates }).gradient - direct : direct;
    };
    const paths = this.parameters[this.picked.name].uses.flatMap((block) => this.from(block).map((path) => ({ block, path, value: contributed(path) })));
    paths.sort((a, b) => Math.abs(b.value) - Math.abs(a.value));
    return { gradient: this.tried(at, {}).gradient, difference: (moved[0] - moved[1]) / (2 * NUDGE), paths };
  }

  /** All paths from a block to the loss, as numbers of edges. */
  from(block) {
    if (block === "loss") return [[]];
    return this.data.edges.flatMap((edge, n) => (edge.from === block ? this.from(edge.to).map((rest) => [n, ...rest]) : []));
  }

  /** Write what was found of the picked weight. */
  tell() {
    if (this.running) return;
    const { name, row, column } = this.picked;
    this.title.textContent = `${name.replaceAll(".layers.0", "").replaceAll(".sublayer", "")} [${row}, ${column}]`;
    if (document.activeElement !== this.entry) this.entry.value = Number(this.state[this.index()].toFixed(6));
    const key = `${name} ${row} ${column} ${this.simulation.chosen.pair}`;
    if (this.known?.key === key) return;
    const { gradient, difference, paths } = (this.known = { key, ...this.traced() });
    const facts = { "Gradient, by backward": gradient, "Difference of two losses": difference, "They differ by": Math.abs(gradient - difference) };
    const digits = (label, value) => (label.startsWith("They") ? value.toExponential(0) : value.toFixed(6)).replaceAll("-", "−");
    this.numbers.replaceChildren(...Object.entries(facts).map(([label, value]) => element("div", {}, element("dt", {}, label), element("dd", {}, digits(label, value)))));
    const rest = paths.slice(SHOWN).reduce((sum, { value }) => sum + value, 0);
    const roads = paths.length === 1 ? "1 path" : `${paths.length} paths`;
    this.note.textContent = `The loss reaches it on ${roads}, which add up to the gradient${paths.length > SHOWN ? `; all but the largest ${SHOWN}: ${rest.toFixed(6).replace("-", "−")}` : ""}.`;
    const largest = Math.max(1e-12, ...paths.map(({ value }) => Math.abs(value)));
    this.paths.replaceChildren(...paths.slice(0, SHOWN).map(({ block, path, value }) => {
      const words = path.map((n) => this.data.edges[n].words).filter(Boolean).reverse();
      const text = [...words, `at ${this.parts[block].label}`].join(", ");
      const line = button("", () => {}, { class: value < 0 ? "minus" : "plus", style: `--share: ${(100 * Math.abs(value)) / largest}%` });
      line.append(element("b", {}, value.toFixed(6).replace("-", "−")), ` ${text}`);
      for (const [event, on] of [["pointerenter", true], ["focus", true], ["pointerleave", false], ["blur", false]]) line.addEventListener(event, () => this.light(on ? path : []));
      return element("li", {}, line);
    }));
  }

  light(path) {
    this.svg.classList.toggle("traced", path.length > 0);
    this.edges.forEach((edge, n) => edge.classList.toggle("path", path.includes(n)));
  }

  pick(name, row, column) {
    this.picked = { name, row, column };
    this.tell();
    this.mark();
  }

  mark() {
    for (const { table, parameter } of this.tables ?? []) table.outline("used", (row, column) => parameter && parameter === this.picked.name && row === this.picked.row && column === this.picked.column);
  }

  /** Put there what a block opens to. */
  show(part) {
    const { say, equation, code, lesson, label } = part;
    this.tables = [];
    const pairs = part.tables.map(({ of, names, head }) => {
      const parameter = names[0] in this.parameters ? names[0] : null;
      const made = of.map((each, n) => {
        const table = new MatrixTable(each);
        this.tables.push({ table, parameter, head, name: parameter ? ["weights", "gradients"][n] : names[n], back: n > 0 });
        if (!parameter) return table.element;
        const pick = ({ target }) => target.dataset.row && this.pick(parameter, Number(target.dataset.row), Number(target.dataset.column));
        table.rove(() => {});
        table.element.classList.add("pickable");
        table.element.addEventListener("click", pick);
        table.element.addEventListener("keydown", (event) => event.key === "Enter" && pick(event));
        return table.element;
      });
      return element("div", { class: "pair" }, ...made);
    });
    const link = lesson.page ? element("a", { href: lesson.page }, `Lesson ${lesson.number}: ${lesson.title}`) : element("span", {}, `Lesson ${lesson.number}: ${lesson.title}`);
    const lines = element("details", { class: "lines" }, element("summary", {}, "The library's lines, forward and backward"), element("div", { html: code }));
    const words = element("div", { class: "words" }, element("h4", {}, label), element("div", { html: say }), element("div", { class: "equation", html: equation }), element("p", {}, link), lines);
    this.scale = element("p", { class: "note" });
    this.panel.replaceChildren(words, element("div", { class: "pairs" }, this.scale, ...pairs));
  }

  /** The numbers of a matrix: a stretch of a vector, a head of an array, or an array. */
  matrix(arrays, { name, parameter, head }) {
    if (!parameter) return head === null ? arrays[name] : arrays[name][0][head];
    const { begin, shape } = this.parameters[parameter];
    const width = shape.at(-1);
    return Array.from({ length: shape.length > 1 ? shape[0] : 1 }, (_, row) => arrays[name].slice(begin + row * width, begin + (row + 1) * width));
  }

  set(arrays, chosen) {
    const [way, name] = (this.stage = this.data.stages[chosen.stage]);
    if (this.part !== name) this.show(this.parts[(this.part = name)]);
    const flow = arrays[way === "forward" ? "flow" : "dflow"];
    const largest = Math.max(...flow, 1e-6);
    this.svg.dataset.way = way;
    this.edges.forEach((edge, n) => {
      edge.style.strokeWidth = tenth(1 + (7 * flow[n]) / largest);
      edge.classList.toggle("active", this.data.edges[n].to === name);
    });
    for (const block of this.blocks) block.classList.toggle("active", block.dataset.block === name);
    const matrices = this.tables.map((each) => this.matrix(arrays, each));
    const gradients = matrices.filter((_, n) => this.tables[n].back).flat(Infinity).map(Math.abs);
    const power = [0, 1, 2, 3].find((by) => Math.max(0, ...gradients) * 10 ** by >= 1) ?? 4;
    const times = (matrix) => (Array.isArray(matrix) ? matrix.map(times) : matrix * 10 ** power);
    this.tables.forEach(({ table, back }, n) => table.set(back ? times(matrices[n]) : matrices[n]));
    this.scale.textContent = gradients.length && power ? `Gradients are shown times ${10 ** power}.` : "";
    this.after = this.simulation.replay ? [...this.simulation.replay.flat("after")] : this.state;
    const target = (n) => this.data.names[arrays["saved:loss:targets"][n]];
    const word = [2, 1, 0].map(target);
    this.symbols.forEach((symbol, n) => (symbol.textContent = word[n]));
    const best = arrays.probabilities.map((row) => this.data.names[row.indexOf(Math.max(...row))]);
    [this.wanted.textContent, this.predicted.textContent, this.loss.textContent] = [[0, 1, 2].map(target).join(" "), best.join(" "), figure(arrays.loss)];
    const begun = ["⟨s⟩", target(0), target(1)];
    this.looks.forEach((look, n) => {
      const rows = n === 0 ? word : begun;
      [rows, n === 1 ? begun : word].forEach((names, axis) => look.names[axis].forEach((th, at) => (th.textContent = names[at])));
      const [heads] = arrays[this.data.attentions[n].weights];
      look.buttons.forEach((line, row) => line.forEach((cell, column) => {
        const open = this.masks[n][row][column] === 1;
        cell.setAttribute("aria-pressed", !open);
        cell.setAttribute("aria-label", `${look.name}: ${rows[row]} may look at position ${column + 1}`);
        [...cell.children].forEach((span, head) => {
          span.textContent = Math.floor(100 * heads[head][row][column] + 0.5);
          span.style.setProperty("--weight", heads[head][row][column]);
        });
      }));
    });
    this.paint(arrays.weights);
    const [count, far] = [this.losses.length, Math.max(FAR, this.losses.length)];
    this.curve.setAttribute("points", this.losses.map((loss, n) => `${tenth((300 * n) / far)},${tenth(90 - 30 * Math.min(3, loss))}`).join(" "));
    this.axis.textContent = count ? `step ${count}: ${figure(this.losses.at(-1))} over all pairs` : `${far} steps`;
    this.mark();
    this.tell();
  }

  paint(weights) {
    const context = this.weights.getContext("2d");
    const image = context.createImageData(149, 8);
    weights.forEach((value, n) => image.data.set([...(value < 0 ? [217, 119, 43] : [59, 130, 196]), Math.min(255, 255 * Math.abs(value))], 4 * n));
    context.putImageData(image, 0, 0);
  }

  shown() {
    const tables = this.tables.map(({ table }) => [table.of.name, table.shown().cells]);
    const heads = (look, head) => look.buttons.map((line) => line.map((cell) => Number(cell.children[head].textContent)));
    return {
      block: this.svg.querySelector(".block.active").dataset.block,
      way: this.svg.dataset.way,
      widths: this.edges.map((edge) => Number(edge.style.strokeWidth)),
      tables: Object.fromEntries(tables),
      loss: this.loss.textContent,
      predicted: this.predicted.textContent.split(" "),
      attention: this.looks.map((look) => [heads(look, 0), heads(look, 1)]),
    };
  }
}

/** The line of an edge: up, beside other roads, around on the outer side, or across. */
function way({ from, to, road }, parts) {
  const [[x1, y1], [x2, y2]] = [place(parts[from]), place(parts[to])];
  const [half, high] = [WIDE / 2, HIGH / 2];
  if (parts[from].column !== parts[to].column) {
    const [out, side] = [x1 < x2 ? half : -half, { key: -7, value: 7 }[road] ?? 0];
    return `M${x1 + out},${y1 + side} C${x1 + 1.8 * out},${y1 + side} ${x2 - 1.8 * out},${y2 + side} ${x2 - out},${y2 + side}`;
  }
  if (road === "around") {
    const out = parts[from].column ? half : -half;
    const far = out + Math.sign(out) * 44;
    return `M${x1 + out},${y1} C${x1 + far},${y1} ${x2 + far},${y2} ${x2 + out},${y2}`;
  }
  const side = to === "cross" ? 0 : ({ query: -46, value: 46 }[road] ?? 0);
  return `M${x1 + side},${y1 - high} L${x2 + side},${y2 + high}`;
}

VIEWS.whole = Whole;
