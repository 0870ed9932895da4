import { element, written } from "../page/dom.js";
import { VIEWS } from "../page/views.js";

// The views of lesson 10 (views.py): the bars of a choice, and the tree of a beam.

const tenth = (x) => Math.round(10 * x + 1e-7) / 10;
const wide = (share) => `${tenth(100 * share)}%`;
const percent = (part, side) => Number(part.style[side].replace("%", ""));

class Bars {
  constructor(data, simulation) {
    this.data = data;
    this.rows = simulation.arrays()[data.names].map(() => {
      const [before, after] = ["before", "after"].map((kind) => element("i", { class: kind }));
      const [name, value, count] = ["name", "value", "count"].map((kind) => element("span", { class: kind }));
      const row = element("li", {}, name, element("span", { class: "track" }, before, after), value, count);
      return { row, name, before, after, value, count };
    });
    this.pieces = this.rows.map(() => element("i"));
    this.pointer = element("b", { class: "pointer" });
    const line = element("div", { class: "line", role: "img", "aria-label": "all that can be drawn, side by side from 0 to 1, and the number that was drawn" }, ...this.pieces, this.pointer);
    const { name, options } = simulation.data.controls.find((each) => each.name === data.again);
    const draw = () => simulation.choose(name, (simulation.chosen[name] + 1) % options.length);
    const button = element("button", { type: "button", class: "play", onclick: draw }, "Draw again");
    const top = element("div", { class: "throw" }, button, line);
    this.element = element("div", { class: "bars" }, top, element("ol", {}, ...this.rows.map(({ row }) => row)));
  }

  set(arrays) {
    const { names, before, after, counts, latest, number, vocabulary } = this.data;
    let begin = 0;
    this.rows.forEach(({ row, name, ...parts }, n) => {
      const share = arrays[after][n];
      name.textContent = vocabulary[arrays[names][n]];
      [parts.before.style.width, parts.after.style.width] = [wide(arrays[before][n]), wide(share)];
      parts.value.textContent = written(share);
      parts.count.textContent = Math.round(arrays[counts][n]);
      row.classList.toggle("latest", n === Math.round(arrays[latest]));
      row.classList.toggle("cut", share === 0);
      [this.pieces[n].style.left, this.pieces[n].style.width] = [wide(begin), wide(share)];
      this.pieces[n].classList.toggle("latest", n === Math.round(arrays[latest]));
      begin += share;
    });
    this.pointer.style.left = wide(arrays[number]);
  }

  shown() {
    const of = (kind) => this.rows.map((row) => row[kind]);
    return {
      names: of("name").map((name) => name.textContent),
      before: of("before").map((bar) => percent(bar, "width")),
      after: of("after").map((bar) => percent(bar, "width")),
      texts: of("value").map((value) => value.textContent),
      counts: of("count").map((count) => Number(count.textContent)),
      latest: of("row").findIndex((row) => row.classList.contains("latest")),
      line: this.pieces.map((piece) => percent(piece, "width")),
      number: percent(this.pointer, "left"),
    };
  }
}

const [GONE, DROPPED, OPEN, BEST] = [0, 1, 2, 3];
const KINDS = { [DROPPED]: "dropped", [OPEN]: "open", [BEST]: "best" };
const [ACROSS, DOWN, WIDE, HIGH, TOP] = [92, 48, 80, 36, 24]; // sizes of a place and of its box; the height of the step numbers

class Tree {
  constructor(data, simulation) {
    this.data = data;
    const [first] = simulation.every(data.state);
    const [steps, places] = [first.length, first[0].length];
    this.high = places * DOWN;
    this.nodes = first.map((line) =>
      line.map(() => {
        const box = element("rect", { x: -WIDE / 2, y: -HIGH / 2, width: WIDE, height: HIGH, rx: 6 });
        const text = (y, kind) => element("text", { y, class: `middle ${kind}` });
        const [word, log_p] = [text(-3, "word"), text(13, "log-p")];
        return { word, log_p, group: element("g", { class: "node" }, box, word, log_p), edge: element("path", { pathLength: 1 }) };
      }),
    );
    const numbers = first.map((_, step) => element("text", { x: ACROSS * (step + 0.5), y: 14, class: "middle label" }, step + 1));
    this.edges = element("g", {}, ...this.nodes.flat().map(({ edge }) => edge));
    const all = this.nodes.flat().map(({ group }) => group);
    const about = "the hypotheses of the beam, a column for each step, the best at the top";
    this.svg = element("svg", { width: steps * ACROSS, height: TOP + this.high, role: "img", "aria-label": about }, ...numbers, this.edges, ...all);
    this.element = element("div", { class: "tree", tabindex: 0 }, this.svg);
  }

  set(arrays) {
    const { words, log_p, parents, ends, state, vocabulary } = this.data;
    const down = this.high / arrays[state][0].filter(Boolean).length; // few hypotheses stand further apart
    const middle = (step, place) => [ACROSS * (step + 0.5), TOP + down * (place + 0.5)];
    this.nodes.forEach((line, row) =>
      line.forEach((node, column) => {
        const kind = arrays[state][row][column];
        const end = arrays[ends][row][column];
        const [x, y] = middle(row, column);
        node.group.style.transform = `translate(${x}px, ${y}px)`;
        node.group.setAttribute("class", `node ${KINDS[kind] ?? "gone"}`);
        node.edge.setAttribute("class", (row && KINDS[kind]) || "gone");
        node.kind = kind;
        node.word.textContent = kind ? `${vocabulary[arrays[words][row][column]]}${end ? ` ⊣ ${written(end)}` : ""}` : "";
        node.log_p.textContent = kind ? written(arrays[log_p][row][column]) : "";
        if (!kind || !row) return;
        const parent = arrays[parents][row][column];
        const [before, above] = middle(row - 1, parent);
        node.edge.setAttribute("d", `M${before + WIDE / 2},${above} L${x - WIDE / 2},${y}`);
        node.edge.dataset.edge = `${parent},${row},${column}`;
      }),
    );
    const last = arrays[state].findLastIndex((line) => line.some(Boolean));
    if (last !== this.last) {
      this.last = last; // keep the latest step in sight, and the steps before it
      this.element.scrollLeft = (last + 1) * ACROSS - this.element.clientWidth;
    }
  }

  shown() {
    const text = ({ word, log_p }) => [word, log_p].map((part) => part.textContent).filter(Boolean).join(" ");
    const edges = [...this.edges.querySelectorAll(":not(.gone)")].map((edge) => edge.dataset.edge.split(",").map(Number));
    return { texts: this.nodes.map((line) => line.map(text)), state: this.nodes.map((line) => line.map(({ kind }) => kind)), edges };
  }
}

VIEWS.bars = Bars;
VIEWS.tree = Tree;
