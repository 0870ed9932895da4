import { element, figure, roving, signs } from "./dom.js";
import { MatrixTable } from "./matrix_table.js";
import { Replay } from "./replay.js";
import { VIEWS } from "./views.js";

// A whole model as a map of its blocks. The arrays that are shown come from numformer's recorded
// step. The page computes that step again with a weight moved, or with the gradient let through on
// one path only.

const [FAR, FRAME, NUDGE, SHOWN] = [300, 20, 1e-5, 6]; // steps, milliseconds, and how many paths are spelt out
const three = [0, 1, 2];
const tenth = (x) => Math.floor(10 * x + 1e-7 + 0.5) / 10;
const signed = (x) => (Math.abs(x) < 1e-4 && x ? x.toExponential(2) : x.toFixed(6)).replaceAll("-", "−");
const button = (text, onclick, more = {}) => element("button", { type: "button", onclick, ...more }, text);
const facts = (lines) => element("dl", { class: "facts" }, ...Object.entries(lines).map(([name, parts]) => element("div", {}, element("dt", {}, name), element("dd", {}, ...[parts].flat()))));
const drawing = (viewBox, label, ...parts) => element("svg", { viewBox, role: "group", "aria-label": label }, ...parts);
const label = (x, y, kind, text) => element("text", { x, y, class: `${kind} label` }, text);

class Whole {
  constructor(data, simulation) {
    Object.assign(this, { data, simulation, masks: data.masks, losses: [], state: data.state });
    [this.parts, this.parameters] = [data.parts, data.parameters].map((all) => Object.fromEntries(all.map((each) => [each.name, each])));
    this.picked = { name: "source.embedding.weight", row: 4, column: 0 };
    [this.trainer, this.probe] = [new Replay(data.training), new Replay(simulation.data.pool[0])];
    [this.words, this.pairs] = ["words", "pairs"].map((name) => element("div", { class: name }));
    const map = element("div", { class: "map" }, this.map(), this.words);
    const beside = element("div", { class: "beside-map" }, this.summary(), this.attention(), this.training(), this.weight());
    this.element = element("div", { class: "whole" }, map, beside, this.pairs);
    this.become();
  }

  /** The pair and what the model makes of it; each symbol is a button that changes it. */
  summary() {
    const turn = (n) => {
      const [{ pair }, worth] = [this.simulation.chosen, 3 ** (2 - n)];
      this.simulation.choose("pair", pair + (Math.floor(pair / worth) % 3 === 2 ? -2 : 1) * worth);
    };
    this.symbols = three.map((n) => button("", () => turn(n), { class: "symbol", title: "another symbol" }));
    [this.wanted, this.predicted, this.loss] = three.map(() => element("output"));
    return facts({ "Source: press a symbol": this.symbols, Right: this.wanted, "Most probable": this.predicted, Loss: this.loss });
  }

  map() {
    this.edges = this.data.edges.map((edge, n) => element("path", { class: `flow ${edge.road || "on"}`, d: edge.line, "data-edge": n }));
    this.blocks = this.data.parts.map((part) => {
      const [{ x, y, label: name }, { wide, high }, open] = [part, this.data.size, () => this.choose(part.name)];
      const onkeydown = (event) => ["Enter", " "].includes(event.key) && (event.preventDefault(), open());
      const box = element("rect", { x: x - wide / 2, y: y - high / 2, width: wide, height: high, rx: 7 });
      const attributes = { class: "block", role: "button", "aria-label": name, "data-block": part.name, onclick: open, onkeydown };
      return element("g", attributes, box, element("text", { x, y: y + 4, class: "middle" }, name));
    });
    roving(this.blocks.map((block) => [block]));
    return (this.svg = drawing(this.data.size.box, "the blocks of the model, encoder left, and what flows between them", ...this.edges, ...this.blocks));
  }

  /** Open a block: at work backward if the page now shows that way, else forward. */
  choose(name) {
    const back = this.stage[0] === "backward" ? "backward" : "forward";
    const at = this.data.stages.findIndex((stage) => stage[0] === back && stage[1] === name);
    this.simulation.choose("stage", at < 0 ? this.data.stages.length - 1 : at);
  }

  /** Who looks where, as a table for each attention; a cell is a button that masks it. */
  attention() {
    this.looks = this.data.attentions.map(({ name, weights }, n) => {
      const cell = (row, column) => {
        const mask = () => this.become({ masks: this.masks.map((all, m) => all.map((line, t) => line.map((open, at) => (m === n && t === row && at === column ? 1 - open : open)))) });
        const made = button("", mask, { class: "look", "aria-label": `${name}: hide position ${column + 1} from position ${row + 1}` });
        made.append(...[0, 1].map(() => element("span", { class: "head" })));
        return made;
      };
      const cells = three.map((row) => three.map((column) => cell(row, column)));
      const names = [0, 1].map(() => three.map(() => element("th")));
      const rows = cells.map((line, row) => element("tr", {}, names[0][row], ...line.map((each) => element("td", {}, each))));
      const body = element("tbody", {}, element("tr", {}, element("td"), ...names[1]), ...rows);
      return { name, weights, cells, names, element: element("table", { class: "looks" }, element("caption", {}, name), body) };
    });
    const note = "Attention in percent, two heads. Press a cell to mask it.";
    return element("div", { class: "attentions" }, element("p", { class: "note" }, note), ...this.looks.map((look) => look.element));
  }

  training() {
    this.train = button("", () => (this.running ? this.become({ running: false }) : this.start()), { class: "play" });
    const step = button("One step on this pair", () => this.become({ state: [...this.simulation.replay.flat("given after")] }), { class: "play" });
    const { masks, state } = this.data;
    const again = button("Start again", () => this.become({ losses: [], masks, state, running: false }), { class: "play" });
    this.curve = element("polyline", { points: "" });
    this.count = label(300, 75, "end", "");
    const line = (y, kind) => element("line", { x1: 0, x2: 300, y1: y, y2: y, class: kind });
    const parts = [label(0, -3, "", "loss, from 3 to 0"), line(60, "axis"), line(58, "rule"), label(300, 54, "end", "0.1")];
    const chart = drawing("-2 -14 304 92", "the loss while training", ...parts, element("g", { class: "drawn colour-0" }, this.curve), this.count);
    this.weights = element("canvas", { width: 149, height: 8, role: "img", "aria-label": "all weights, blue above 0 and orange below" });
    return element("div", { class: "train" }, element("div", { class: "buttons" }, this.train, step, again), chart, element("p", { class: "note" }, "All 1,192 weights:"), this.weights);
  }

  /** Train on all pairs, as many steps in a frame as there is time for. */
  start() {
    const { trainer, losses } = this;
    const until = losses.length + FAR;
    const frame = () => {
      if (!this.running || losses !== this.losses) return;
      for (const name of ["state", "masks"]) trainer.set(`given ${name}`, this[name]);
      const begun = performance.now();
      do {
        trainer.run();
        trainer.flat("given state").set(trainer.flat("after"));
      } while (losses.push(trainer.flat("loss")[0]) < until && performance.now() - begun < FRAME);
      this.become({ state: [...trainer.flat("after")], running: losses.length < until });
      requestAnimationFrame(frame);
    };
    this.running = true;
    frame();
  }

  /** Take new weights or masks, compute and show. While it trains, numbers do not glide. */
  become(what = {}) {
    Object.assign(this, what, { known: null });
    this.simulation.typed = { state: this.state, masks: this.masks };
    this.train.textContent = this.running ? "❚❚ Pause" : "▶ Train on all 27 pairs";
    if (this.running) this.set((this.simulation.now = this.simulation.arrays()), this.simulation.chosen);
    else if (this.stage) this.simulation.update();
  }

  weight() {
    const typed = ({ target }) => Number.isFinite(target.valueAsNumber) && this.become({ state: this.state.with(this.index, target.valueAsNumber) });
    this.title = element("h4");
    this.entry = element("input", { type: "number", step: 0.01, "aria-label": "the picked weight", oninput: typed });
    [this.numbers, this.note, this.paths] = [element("div"), element("p", { class: "note" }), element("ol", { class: "paths" })];
    const line = element("div", { class: "buttons" }, this.title, this.entry);
    return element("div", { class: "weight" }, line, this.numbers, this.note, this.paths);
  }

  /** Where the picked weight stands among all. */
  get index() {
    const { begin, shape } = this.parameters[this.picked.name];
    return begin + this.picked.row * (shape[1] ?? 0) + this.picked.column;
  }

  /** The step once more with these changes -> its loss, and the gradient of the picked weight. */
  tried(changes) {
    const { values } = this.simulation.data.controls.find(({ name }) => name === "pair");
    const given = { pair: values[this.simulation.chosen.pair], state: this.state, masks: this.masks, gates: this.gates(1), ...changes };
    for (const [name, numbers] of Object.entries(given)) this.probe.set(`given ${name}`, numbers);
    this.probe.run();
    return { loss: this.probe.flat("loss")[0], gradient: this.probe.flat("gradients")[this.index] };
  }

  /** All gates: those of a path open, the `others` as given. */
  gates(others, path = []) {
    return this.data.edges.flatMap(({ gate }, n) => (gate === null ? [] : path.includes(n) ? 1 : others));
  }

  /** The gradient of the picked weight, the finite difference, and what each path contributes. */
  traced() {
    const at = this.index;
    const [up, down] = [NUDGE, -NUDGE].map((by) => this.tried({ state: this.state.with(at, this.state[at] + by) }).loss);
    const direct = this.tried({ gates: this.gates(0) }).gradient; // what no gate can close
    const contributed = (path) => {
      const gates = this.gates(0, path);
      return gates.includes(1) ? this.tried({ gates }).gradient - direct : direct;
    };
    const paths = this.parameters[this.picked.name].uses.flatMap((block) => this.from(block).map((path) => ({ block, path, value: contributed(path) })));
    paths.sort((a, b) => Math.abs(b.value) - Math.abs(a.value));
    return { gradient: this.tried({}).gradient, difference: (up - down) / (2 * NUDGE), paths };
  }

  /** All paths from a block to the loss, as numbers of edges. */
  from(block) {
    if (block === "loss") return [[]];
    return this.data.edges.flatMap((edge, n) => (edge.from === block ? this.from(edge.to).map((rest) => [n, ...rest]) : []));
  }

  /** Write what was found about the picked weight. */
  tell() {
    const { name, row, column } = this.picked;
    for (const { table, parameter } of this.tables) table.outline("used", (r, c) => parameter === name && r === row && c === column);
    this.title.textContent = `${name.replaceAll(".layers.0", "").replaceAll(".sublayer", "")} [${row}, ${column}]`;
    if (document.activeElement !== this.entry) this.entry.value = Number(this.state[this.index].toFixed(6));
    const key = `${name} ${row} ${column} ${this.simulation.chosen.pair}`;
    if (this.running || this.known?.key === key) return;
    const { gradient, difference, paths } = (this.known = { key, ...this.traced() });
    const far = Math.abs(gradient - difference).toExponential(0).replace("-", "−");
    this.numbers.replaceChildren(facts({ "Gradient, by backward": signed(gradient), "Slope of the loss, with the weight moved": signed(difference), "They differ by": far, "Adam moves it to": signed(this.simulation.replay.flat("given after")[this.index]) }));
    const rest = paths.slice(SHOWN).reduce((sum, { value }) => sum + value, 0);
    const more = paths.length > SHOWN ? ` All but the largest ${SHOWN} add up to ${signed(rest)}.` : "";
    this.note.textContent = `This gradient is the sum over ${paths.length} path${paths.length > 1 ? "s" : ""} from the loss to the weight.${more} Point at a path to see it on the map.`;
    const largest = Math.max(1e-12, Math.abs(paths[0].value));
    this.paths.replaceChildren(...paths.slice(0, SHOWN).map(({ block, path, value }) => {
      const words = path.map((n) => this.data.edges[n].words).filter(Boolean).reverse();
      const style = `--share: ${(100 * Math.abs(value)) / largest}%`;
      const line = button("", () => this.light(path), { class: value < 0 ? "minus" : "plus", style });
      line.append(element("b", {}, signed(value)), ` ${[...words, `at ${this.parts[block].label}`].join(", ")}`);
      for (const event of ["pointerenter", "focus"]) line.addEventListener(event, () => this.light(path));
      for (const event of ["pointerleave", "blur"]) line.addEventListener(event, () => this.light([]));
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
  }

  /** Show what a block opens to. */
  show({ say, equation, code, lesson, label, tables }) {
    this.tables = [];
    const pairs = tables.map(({ of, names, head }) => {
      const parameter = names[0] in this.parameters ? names[0] : null;
      const boxes = of.map((each, n) => {
        const table = new MatrixTable(each);
        this.tables.push({ table, parameter, head, name: parameter ? ["weights", "gradients"][n] : names[n], back: n > 0 });
        const pick = ({ target: { dataset } }) => parameter && dataset.row && this.pick(parameter, Number(dataset.row), Number(dataset.column));
        roving(table.cells);
        table.element.classList.toggle("pickable", parameter !== null);
        table.element.addEventListener("click", pick);
        table.element.addEventListener("keydown", (event) => event.key === "Enter" && pick(event));
        return table.element;
      });
      return element("div", { class: "pair" }, ...boxes);
    });
    const link = element(lesson.page ? "a" : "span", { href: lesson.page || null }, `Lesson ${lesson.number}: ${lesson.title}`);
    const lines = element("details", {}, element("summary", {}, "The library's lines, forward and backward"), element("div", { html: code }));
    this.words.replaceChildren(element("h4", {}, label), element("div", { html: say }), element("div", { class: "equation", tabindex: 0, html: equation }), element("p", {}, link), lines);
    this.pairs.replaceChildren((this.scale = element("p", { class: "note" })), ...pairs);
  }

  set(arrays, chosen) {
    const [way, name] = (this.stage = this.data.stages[chosen.stage]);
    if (this.part !== name) this.show(this.parts[(this.part = name)]);
    const flow = arrays[way === "forward" ? "flow" : "dflow"];
    this.svg.dataset.way = way;
    this.edges.forEach((edge, n) => {
      edge.style.strokeWidth = tenth(1 + (7 * flow[n]) / Math.max(...flow, 1e-6));
      edge.classList.toggle("active", this.data.edges[n].to === name);
    });
    for (const block of this.blocks) block.classList.toggle("active", block.dataset.block === name);
    this.fill(arrays);
    const right = arrays["saved:loss:targets"].map((id) => this.data.names[id]);
    const [word, begun] = [right.toReversed(), ["⟨s⟩", right[0], right[1]]];
    this.symbols.forEach((symbol, n) => (symbol.textContent = word[n]));
    const best = arrays.probabilities.map((row) => this.data.names[row.indexOf(Math.max(...row))]);
    [this.wanted.textContent, this.predicted.textContent, this.loss.textContent] = [right.join(" "), best.join(" "), figure(arrays.loss)];
    this.looks.forEach((look, n) => this.look(look, arrays[look.weights][0], this.masks[n], n ? begun : word, n === 1 ? begun : word));
    this.paint(arrays.weights);
    const [count, far] = [this.losses.length, Math.max(FAR, this.losses.length)];
    this.curve.setAttribute("points", this.losses.map((loss, n) => `${tenth((300 * n) / far)},${tenth(60 - 20 * Math.min(3, loss))}`).join(" "));
    this.count.textContent = count ? `step ${count}: ${figure(this.losses.at(-1))} over all pairs` : `${far} steps`;
    this.tell();
  }

  /** The matrices of the open block, gradients times a power of ten that makes them readable. */
  fill(arrays) {
    const matrices = this.tables.map(({ table, name, parameter, head }) => {
      if (!parameter) return head === null ? arrays[name] : arrays[name][0][head];
      const { begin } = this.parameters[parameter];
      return table.cells.map((line, row) => arrays[name].slice(begin + row * line.length, begin + (row + 1) * line.length));
    });
    const gradients = matrices.filter((_, n) => this.tables[n].back).flat(Infinity).map(Math.abs);
    const power = [0, 1, 2, 3].find((by) => Math.max(0, ...gradients) * 10 ** by >= 1) ?? 4;
    this.tables.forEach(({ table, back }, n) => table.set(back ? matrices[n].map((row) => row.map((x) => x * 10 ** power)) : matrices[n]));
    this.scale.textContent = gradients.length && power ? `Gradients are shown times ${10 ** power}.` : "";
  }

  look({ cells, names }, heads, mask, rows, columns) {
    [rows, columns].forEach((symbols, axis) => symbols.forEach((symbol, n) => (names[axis][n].textContent = symbol)));
    cells.forEach((line, row) => line.forEach((cell, column) => {
      cell.setAttribute("aria-pressed", mask[row][column] === 0);
      [...cell.children].forEach((span, head) => {
        span.textContent = Math.floor(100 * heads[head][row][column] + 0.5);
        span.style.setProperty("--weight", heads[head][row][column]);
      });
    }));
  }

  paint(weights) {
    const [positive, negative] = signs();
    const colours = weights.flatMap((value) => [...(value < 0 ? negative : positive), 255 * Math.abs(value)]);
    this.weights.getContext("2d").putImageData(new ImageData(Uint8ClampedArray.from(colours), 149), 0, 0);
  }

  shown() {
    const heads = ({ cells }) => [0, 1].map((head) => cells.map((line) => line.map((cell) => Number(cell.children[head].textContent))));
    return {
      block: this.svg.querySelector(".block.active").dataset.block,
      way: this.svg.dataset.way,
      lit: this.edges.flatMap((edge, n) => (edge.classList.contains("active") ? n : [])),
      widths: this.edges.map((edge) => Number(edge.style.strokeWidth)),
      tables: Object.fromEntries(this.tables.map(({ table }) => [table.of.name, table.shown().cells])),
      loss: this.loss.textContent,
      predicted: this.predicted.textContent.split(" "),
      attention: this.looks.map(heads),
    };
  }
}

VIEWS.whole = Whole;
