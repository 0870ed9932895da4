import { element } from "./dom.js";
import { levelsOf, paint, VIEWS } from "./views.js";

// Simulations: controls, the arrays of what they are set to, and views that show these. All arrays
// were computed by numformer when the page was built; where they are linear in a reader's entries,
// those of single entries are added up here.

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

/** A matrix of numbers that the reader chooses, with presets. */
class Entries {
  constructor(data, simulation) {
    Object.assign(this, { data, simulation });
    this.note = element("div", { class: "note" });
    this.selects = data.rows.map((row, i) =>
      data.columns.map((column, j) => {
        const options = data.values.map((value) => element("option", { value }, String(value).replace("-", "−")));
        const label = `${data.symbol.plain} of ${row}, entry ${column}`;
        return element("select", { "aria-label": label, "data-entry": `${i},${j}`, onchange: () => this.own() }, ...options);
      }),
    );
    const id = `${simulation.id}-${data.name}`;
    this.inputs = radios(id, data.presets, (n) => this.enter(data.presets[n].value, data.presets[n].note));
    const cells = (i) => this.selects[i].map((select) => element("td", {}, select));
    const rows = data.rows.map((row, i) => element("tr", {}, element("th", { scope: "row" }, row), ...cells(i)));
    const caption = element("caption", { html: `${data.symbol.math} <span>choose each entry</span>` });
    const choice = buttons(id, data, this.inputs, (n) => element("span", {}, data.presets[n].label));
    const parts = [choice, element("table", {}, caption, element("tbody", {}, ...rows)), this.note];
    this.element = element("div", { class: "control entries", "data-control": data.name }, ...parts);
  }

  own() {
    this.enter(this.selects.map((line) => line.map((select) => Number(select.value))), "");
  }

  enter(entries, note) {
    this.note.innerHTML = note;
    this.simulation.entered = entries;
    this.simulation.update();
  }

  set(_, entries) {
    this.data.presets.forEach(({ value }, n) => (this.inputs[n].checked = String(value) === String(entries)));
    this.selects.forEach((line, i) => line.forEach((select, j) => (select.value = entries[i][j])));
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
    this.entered = this.data.controls.find(({ kind }) => kind === "entries")?.presets[0].value;
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

  choose(name, index) {
    this.chosen[name] = index;
    this.update();
  }

  /** The arrays of what is chosen, or of what is with these `changes`. */
  arrays(changes = {}) {
    const { pool, table, linear, controls } = this.data;
    const at = { ...this.chosen, ...changes };
    const sizes = Object.fromEntries(controls.map(({ name, options }) => [name, options?.length]));
    const found = Object.entries(table).map(([name, { axes, index }]) => {
      const array = pool[index[axes.reduce((place, axis) => place * sizes[axis] + at[axis], 0)]];
      return [name, linear.includes(name) ? added(array, this.entered.flat()) : array];
    });
    return Object.fromEntries(found);
  }

  update() {
    const arrays = this.arrays();
    for (const [name, control] of Object.entries(this.controls)) control.set(this.chosen[name], this.entered);
    for (const view of this.views) view.set(arrays, this.chosen);
    const rows = () => `np.array([${this.entered.map((line) => `[${line.join(", ")}]`).join(", ")}], float)`;
    const code = (name, options) => (options ? options[this.chosen[name]].code : rows());
    const chosen = this.data.controls.map(({ name, options }) => [`${name} = `, code(name, options)]);
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

/** The sum of arrays of one shape, each times its amount, to 6 decimals. */
function added(units, amounts) {
  if (Array.isArray(units[0])) return units[0].map((_, n) => added(units.map((part) => part[n]), amounts));
  return Math.round(1e6 * units.reduce((total, part, n) => total + amounts[n] * part, 0)) / 1e6 || 0;
}

for (const figure of document.querySelectorAll("figure[data-simulation]")) figure.simulation = new Simulation(figure);
