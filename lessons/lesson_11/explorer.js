import { element, roomy, roving } from "../page/dom.js";
import { END, Reader, START, TAKES } from "../page/reader.js";
import { levelsOf, paint, VIEWS } from "../page/views.js";

// Every head of a model, small, and one of them large. small.py records numformer's own forward of
// each model; here the recording is repeated on what a reader chooses or types.

const [WIDE, HIGH, LEFT, RIGHT, TOP] = [360, 22, 118, 232, 26];
const LONGEST = "w".repeat(14); // as long as the longest word or piece that is shown whole

class Explorer {
  constructor(data, simulation) {
    Object.assign(this, { data, simulation, readers: {}, own: null });
    this.made = ["source", "written"].map(() => element("dd"));
    const facts = ["It reads", "It writes"].map((name, n) => element("div", {}, element("dt", {}, name), this.made[n]));
    this.title = roomy("h4", {}, data.heads.map((each) => this.named(each)));
    this.note = roomy("p", { class: "note" }, Object.values(data.notes).flat());
    const one = element("div", { class: "one" }, this.title.element, this.note.element, this.lines());
    this.element = element("div", { class: "explorer" }, this.form(), element("dl", { class: "facts" }, ...facts), this.grid(), one);
  }

  reader(name) {
    return (this.readers[name] ??= new Reader(this.data.models[name], this.data.length));
  }

  named([kind, layer, head]) {
    return `${this.data.titles[kind]}, layer ${layer + 1}, head ${head + 1}`;
  }

  /** The form into which a reader types. */
  form() {
    this.typed = element("input", { type: "text", "aria-label": "Your own sentence or word", maxlength: 200, placeholder: "a sentence of your own" });
    this.why = element("p", { class: "note why", "aria-live": "polite" });
    const onsubmit = (event) => (event.preventDefault(), this.take(this.typed.value));
    return element("form", { onsubmit }, element("div", { class: "ask" }, this.typed, element("button", { class: "play" }, "Read it")), this.why);
  }

  /** Let the chosen model read what was typed. */
  take(text) {
    const { sentence } = this.simulation.chosen;
    const { model } = this.data.texts[sentence];
    const { ids, why } = TAKES[model](this.reader(model), text);
    this.why.textContent = why;
    if (!ids) return false;
    this.own = { model, ids, sentence };
    this.set(this.arrays, this.simulation.chosen);
    return true;
  }

  grid() {
    const { heads, titles } = this.data;
    this.small = heads.map(([kind, layer, head], n) => {
      const canvas = element("canvas", { "aria-hidden": "true" });
      const label = `${n + 1}, ${this.named([kind, layer, head])}`;
      const button = element("button", { type: "button", class: "small", "aria-label": label, onclick: () => this.simulation.choose("head", n) }, canvas);
      return { button, canvas };
    });
    const kinds = Object.entries(titles).map(([kind, title]) => {
      const own = this.small.filter((_, n) => heads[n][0] === kind).map(({ button }) => button);
      const rows = [0, 1, 2].map((row) => own.slice(4 * row, 4 * row + 4));
      roving(rows);
      const lines = rows.map((row, n) => element("div", { class: "layer" }, element("span", {}, n + 1), ...row));
      return element("div", { class: "heads", role: "group", "aria-label": title }, element("h4", {}, title), ...lines);
    });
    return element("div", { class: "all-heads" }, ...kinds);
  }

  /** The words that look, the words that are looked at, and the lines between them. */
  lines() {
    const places = Array.from({ length: this.data.length }, (_, n) => n);
    this.between = element("g", { class: "between" });
    [this.left, this.right] = ["end", "begin"].map((anchor, side) => places.map(() => element("text", { x: side ? RIGHT + 6 : LEFT - 6, y: 4, class: `${anchor} ${side ? "key" : "query"}` })));
    const pick = (n) => this.simulation.choose("query", n);
    this.buttons = places.map((n) => {
      const onkeydown = (event) => ["Enter", " "].includes(event.key) && (event.preventDefault(), pick(n));
      const box = element("rect", { x: 0, y: -10, width: LEFT, height: HIGH - 1, rx: 4 });
      return element("g", { class: "word", role: "button", onclick: () => pick(n), onkeydown }, box, this.left[n]);
    });
    roving(this.buttons.map((button) => [button]));
    const heads = [element("text", { x: LEFT - 6, y: 10, class: "end label" }, "looks"), element("text", { x: RIGHT + 6, y: 10, class: "label" }, "is looked at")];
    return element("svg", { viewBox: `0 0 ${WIDE} ${TOP + HIGH * this.data.length}`, role: "group", "aria-label": "who looks at whom" }, ...heads, this.between, ...this.buttons, ...this.right);
  }

  /** Compute anew if another text, model or temperature is chosen. */
  compute(arrays, chosen) {
    if (this.own && this.own.sentence !== chosen.sentence) {
      [this.own, this.why.textContent] = [null, ""];
    }
    const { model, ids } = this.own ?? this.data.texts[chosen.sentence];
    const written = this.own ? null : arrays.written.filter((id) => id);
    const key = JSON.stringify([model, ids, chosen.temperature, written]);
    if (key === this.key) return;
    const reader = this.reader(model);
    reader.read(ids, this.data.temperatures[chosen.temperature]);
    if (written) reader.look(written.slice(0, -1));
    Object.assign(this, { key, model, ids, written: written ?? reader.write() });
    this.looked = reader.looked(this.written.length, ids.length + 1);
    this.data.heads.forEach(([kind, layer, head], n) => paint(this.small[n].canvas, this.looked[kind](layer, head), { low: 0, high: 1 }));
    const [read, wrote] = [[...ids, END], this.written].map((all) => all.map((id) => reader.shown(id)));
    this.words = { encoder: [read, read], decoder: [wrote, [reader.shown(START), ...wrote.slice(0, -1)]], cross: [wrote, read] };
    [this.made[0].textContent, this.made[1].textContent] = [ids, this.written].map((all) => reader.text(all));
  }

  set(arrays, chosen) {
    this.arrays = arrays;
    this.compute(arrays, chosen);
    if (this.own) this.simulation.controls.sentence.output.say("your own");
    const [kind, layer, head] = this.data.heads[chosen.head];
    const [[left, right], weights] = [this.words[kind], this.looked[kind](layer, head)];
    this.query = Math.min(chosen.query, left.length - 1);
    this.small.forEach(({ button }, n) => button.setAttribute("aria-pressed", n === chosen.head));
    this.title.say(this.named([kind, layer, head]));
    this.note.say(this.data.notes[this.model][chosen.head]);
    this.down = HIGH * Math.min(2, this.data.length / Math.max(left.length, right.length)); // few words stand further apart
    [...this.buttons, ...this.right].forEach((part, n) => part.setAttribute("transform", `translate(0 ${TOP + this.down * (n % this.data.length)})`));
    this.buttons.forEach((button, n) => {
      button.toggleAttribute("hidden", n >= left.length);
      button.setAttribute("aria-pressed", n === this.query);
      button.setAttribute("aria-label", `${n + 1}: ${left[n] ?? ""} looks`);
      this.left[n].textContent = short(left[n] ?? "");
    });
    this.percents = weights[this.query].map((weight) => Math.floor(100 * weight + 0.5));
    this.right.forEach((text, n) => (text.textContent = n < right.length ? `${short(right[n])}${this.percents[n] ? ` ${this.percents[n]} %` : ""}` : ""));
    const lines = weights.flatMap((row, t) => row.flatMap((weight, s) => (weight >= this.data.seen ? { weight, t, s } : [])));
    this.between.replaceChildren(...lines.map((line) => this.line(line)));
    this.sides = [left, right];
  }

  line({ weight, t, s }) {
    const [from, to] = [t, s].map((n) => TOP + this.down * n);
    const picked = t === this.query;
    return element("path", { d: `M${LEFT},${from} C${LEFT + 45},${from} ${RIGHT - 45},${to} ${RIGHT},${to}`, class: picked ? "picked" : "", style: `opacity: ${picked ? 0.25 + 0.75 * weight : 0.45 * weight}; stroke-width: ${1 + 4 * weight}` });
  }

  shown() {
    const [left, right] = this.sides;
    const levels = this.small.map(({ canvas }) => levelsOf(canvas).flat().reduce((sum, level) => sum + level));
    const [query, lines] = [this.buttons.findIndex((button) => button.getAttribute("aria-pressed") === "true"), this.between.children.length];
    return { left, right, query, percents: this.percents, lines, levels, written: this.made[1].textContent, note: this.note.said.textContent };
  }
}

const short = (word) => (word.length > LONGEST.length ? `${word.slice(0, LONGEST.length - 1)}…` : word);

VIEWS.explorer = Explorer;
