import { element } from "./dom.js";
import { Replay } from "./replay.js";
import { levelsOf, paint, VIEWS } from "./views.js";

// Simulations: controls, the arrays of what they are set to, and views that show these. Where a
// control is live, the lines of numformer that compute them are repeated here (replay.js);
// otherwise all arrays were computed when the page was built.

const buttons = (id, data, inputs, label) => {
  const labels = inputs.map((input, n) => element("label", {}, input, label(n)));
  return element("fieldset", { class: "choice" }, element("legend", {}, data.label), element("div", { class: "choices" }, ...labels));
};
const radios = (id, options, chosen) =>
  options.map((_, n) => element("input", { type: "radio", name: id, value: n, onchange: () => chosen(n) }));

/** One of several options: buttons, thumbnails, a slider that may run by itself, or a pad. */
class Control {
  constructor(data, simulation) {
    Object.assign(this, { data, simulation, id: `${simulation.id}-${data.name}`, small: [], inputs: [], ranges: [] });
    this.note = element("div", { class: "note" });
    this.output = element("output");
    const attributes = { class: "control", "data-control": data.name, hidden: data.kind === "steps" };
    this.element = element("div", attributes, this[data.kind](), this.note);
  }

  choose(index) {
    this.simulation.choose(this.data.name, index);
  }

  choice(label = (n) => element("span", {}, this.data.options[n].label)) {
    this.inputs = radios(this.id, this.data.options, (n) => this.choose(n));
    return buttons(this.id, this.data, this.inputs, label);
  }

  thumbnails() {
    this.small = this.data.options.map(() => element("canvas", { "aria-hidden": "true" }));
    return this.choice((n) => element("span", { class: "thumbnail" }, this.small[n], this.data.options[n].label));
  }

  range(label, count, chosen) {
    return element("input", { type: "range", min: 0, max: count - 1, step: 1, "aria-label": label, oninput: chosen });
  }

  slider() {
    const { label, options, plays } = this.data;
    this.ranges = [this.range(label, options.length, () => this.choose(Number(this.ranges[0].value)))];
    this.button = plays ? element("button", { type: "button", class: "play", onclick: () => this.play() }, "▶ Play") : null;
    return element("div", { class: "range" }, element("span", { class: "label" }, label), this.output, ...this.ranges, this.button);
  }

  /** A stepper sets it. */
  steps() {
    return null;
  }

  /** Two sliders, across and up, of the point that can be dragged in a chart. */
  pad() {
    const { across, label } = this.data;
    const chosen = () => this.choose(Number(this.ranges[1].value) * across.length + Number(this.ranges[0].value));
    this.ranges = ["across", "up"].map((way) => this.range(`${label}, ${way}`, across.length, chosen));
    return element("div", { class: "range" }, element("span", { class: "label" }, label), this.output, ...this.ranges);
  }

  /** Choose the point of a pad that is nearest. */
  to(x, y) {
    const { across } = this.data;
    const nearest = (at) => across.reduce((best, each, n) => (Math.abs(each - at) < Math.abs(across[best] - at) ? n : best), 0);
    this.choose(nearest(y) * across.length + nearest(x));
  }

  play() {
    const last = this.data.options.length - 1;
    const stop = () => {
      this.timer = clearInterval(this.timer);
      this.button.textContent = "▶ Play";
    };
    if (this.timer) return stop();
    if (this.simulation.chosen[this.data.name] === last) this.choose(0);
    this.button.textContent = "❚❚ Pause";
    this.timer = setInterval(() => {
      const next = Math.min(last, this.simulation.chosen[this.data.name] + 1);
      this.choose(next);
      if (next === last) stop();
    }, 700);
  }

  set(index) {
    const { options, across, of, name } = this.data;
    const { label, note } = options[index];
    this.note.innerHTML = note;
    this.output.textContent = label;
    if (this.inputs.length) this.inputs[index].checked = true;
    this.ranges.forEach((range, n) => {
      range.value = !across ? index : n ? Math.floor(index / across.length) : index % across.length;
      range.setAttribute("aria-valuetext", label);
    });
    const { data } = this.simulation.views.find((view) => view.data.name === of) ?? {};
    this.small.forEach((canvas, n) => paint(canvas, this.simulation.arrays({ [name]: n })[of], data));
  }
}

/** A matrix of numbers that the reader types, with some to begin with. */
class Entries {
  constructor(data, simulation) {
    Object.assign(this, { data, simulation });
    this.note = element("div", { class: "note" });
    this.entries = data.rows.map((row, i) =>
      data.columns.map((column, j) => {
        const label = `${data.symbol.plain} of ${row}, entry ${column}`;
        return element("input", { type: "number", step: data.step, "aria-label": label, "data-entry": `${i},${j}`, oninput: () => this.typed() });
      }),
    );
    const id = `${simulation.id}-${data.name}`;
    this.inputs = radios(id, data.options, (n) => this.simulation.choose(data.name, data.values[n]));
    const cells = (i) => this.entries[i].map((entry) => element("td", {}, entry));
    const rows = data.rows.map((row, i) => element("tr", {}, element("th", { scope: "row" }, row), ...cells(i)));
    const caption = element("caption", { html: `${data.symbol.math} <span>type any entry</span>` });
    const choice = buttons(id, data, this.inputs, (n) => element("span", {}, data.options[n].label));
    const parts = [choice, element("table", {}, caption, element("tbody", {}, ...rows)), this.note];
    this.element = element("div", { class: "control entries", "data-control": data.name }, ...parts);
  }

  /** An entry that is no number yet, as "-", counts as 0 until it is one. */
  typed() {
    this.simulation.choose(this.data.name, this.entries.map((line) => line.map((entry) => entry.valueAsNumber || 0)));
  }

  set(matrix) {
    const begun = this.data.values.findIndex((value) => String(value) === String(matrix));
    this.inputs.forEach((input, n) => (input.checked = n === begun));
    this.note.innerHTML = this.data.options[begun]?.note ?? "";
    this.entries.forEach((line, i) =>
      line.forEach((entry, j) => {
        if (document.activeElement !== entry || entry.valueAsNumber !== matrix[i][j]) entry.value = matrix[i][j];
      }),
    );
  }
}

class Simulation {
  constructor(figure) {
    figure.querySelector(".simulation-picture").hidden = true;
    const stage = figure.querySelector(".simulation-stage");
    stage.hidden = false;
    this.data = JSON.parse(figure.querySelector('script[type="application/json"]').textContent);
    this.id = this.data.name;
    this.chosen = Object.fromEntries(this.data.controls.map(({ name, start }) => [name, start]));
    this.replays = {};
    this.typed = {}; // what a view lets a reader change beside the controls
    const made = this.data.controls.map((each) => [each.name, new (each.kind === "entries" ? Entries : Control)(each, this)]);
    this.controls = Object.fromEntries(made);
    this.views = this.data.views.map((each) => new VIEWS[each.kind](each, this));
    const groups = { controls: Object.values(this.controls), views: this.views };
    for (const [name, parts] of Object.entries(groups)) {
      stage.append(element("div", { class: name }, ...parts.map((part) => part.element)));
    }
    this.code = figure.querySelector(".simulation-code code");
    this.update();
  }

  /** Set a control: to the option of an index, or entries to a matrix. */
  choose(name, chosen) {
    this.chosen[name] = chosen;
    this.update();
  }

  /** The arrays of what is chosen, or of what is with these `changes`. */
  arrays(changes = {}) {
    const { pool, table, controls } = this.data;
    const at = { ...this.chosen, ...changes };
    const sizes = Object.fromEntries(controls.map(({ name, options }) => [name, options.length]));
    const found = Object.entries(table).map(([name, { axes, index }]) => [name, index[axes.reduce((place, axis) => place * sizes[axis] + at[axis], 0)]]);
    return table[""] ? this.computed(found[0][1], at) : Object.fromEntries(found.map(([name, place]) => [name, pool[place]]));
  }

  /** The arrays of what is chosen, computed anew by one of the recordings. */
  computed(place, at) {
    const replay = (this.replay = this.replays[place] ??= new Replay(this.data.pool[place]));
    for (const { name, live, kind, values } of this.data.controls) {
      if (live) replay.set(`given ${name}`, kind === "entries" ? at[name] : values[at[name]]);
    }
    for (const [name, values] of Object.entries(this.typed)) replay.set(`given ${name}`, values);
    replay.run();
    const names = Object.keys(replay.names).filter((name) => !name.startsWith("given "));
    return Object.fromEntries(names.map((name) => [name, rounded(replay.get(name))]));
  }

  update() {
    const arrays = this.arrays();
    for (const [name, control] of Object.entries(this.controls)) control.set(this.chosen[name]);
    for (const view of this.views) view.set(arrays, this.chosen);
    const rows = (matrix) => `np.array([${matrix.map((line) => `[${line.join(", ")}]`).join(", ")}], float)`;
    const code = (kind, options, chosen) => (kind === "entries" ? rows(chosen) : options[chosen].code);
    const chosen = this.data.controls.map(({ name, kind, options }) => [`${name} = `, code(kind, options, this.chosen[name])]);
    const lines = this.code.innerHTML.split("\n").map((line) => {
      const text = element("div", { html: line }).textContent;
      const control = chosen.find(([begin]) => text.startsWith(begin));
      return control ? control.join("") : line;
    });
    this.code.innerHTML = lines.join("\n");
  }

  /** What stands on the page: of every view, and of thumbnails by the name of their control. */
  shown() {
    const small = Object.entries(this.controls).filter(([, { small }]) => small?.length);
    const thumbnails = small.map(([name, control]) => [name, control.small.map(levelsOf)]);
    return { views: this.views.map((view) => view.shown()), thumbnails: Object.fromEntries(thumbnails) };
  }
}

/** Numbers to 6 decimals, as those that were computed when the page was built; -Infinity as null. */
const rounded = (array) =>
  Array.isArray(array) ? array.map(rounded) : array === -Infinity ? null : Math.round(1e6 * array) / 1e6 || 0;

for (const figure of document.querySelectorAll("figure[data-simulation]")) figure.simulation = new Simulation(figure);
