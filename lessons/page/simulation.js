import { element } from "./dom.js";
import { levelsOf, paint, VIEWS } from "./views.js";

// Simulations: controls, the arrays of what they are set to, and views that show these. All arrays
// were computed by numformer when the page was built; where they are linear in a reader's entries,
// those of single entries are added up here.

/** One of several options: buttons, thumbnails, a slider that may run by itself, or a pad. */
class Control {
  constructor(data, simulation) {
    Object.assign(this, { data, simulation, id: `${simulation.id}-${data.name}` });
    this.note = element("div", { class: "note" });
    this.element = element("div", { class: "control", "data-control": data.name }, ...this[data.kind](), this.note);
  }

  choose(index) {
    this.simulation.choose(this.data.name, index);
  }

  choice(label = ({ label }) => element("span", {}, label)) {
    this.inputs = this.data.options.map((_, n) =>
      element("input", { type: "radio", name: this.id, value: n, onchange: () => this.choose(n) }),
    );
    const labels = this.data.options.map((option, n) => element("label", {}, this.inputs[n], label(option, n)));
    return [element("fieldset", { class: "choice" }, element("legend", {}, this.data.label), element("div", { class: "choices" }, ...labels))];
  }

  thumbnails() {
    this.small = this.data.options.map(() => element("canvas", { "aria-hidden": "true" }));
    return this.choice(({ label }, n) => element("span", { class: "thumbnail" }, this.small[n], label));
  }

  slider(label = this.data.label) {
    this.range = element("input", {
      type: "range", id: this.id, min: 0, max: this.data.options.length - 1, step: 1,
      oninput: () => this.choose(Number(this.range.value)),
    });
    this.output = element("output", { for: this.id });
    const play = element("button", { type: "button", class: "play", onclick: () => this.play() }, "▶ Play");
    this.button = this.data.plays ? play : null;
    return [element("div", { class: "range" }, element("label", { for: this.id }, label), this.output, this.range, this.button)];
  }

  /** Two sliders, across and up, of the point that can be dragged in a plane. */
  pad() {
    const { across, label } = this.data;
    const range = (axis, name) =>
      element("input", {
        type: "range", id: `${this.id}-${name}`, min: 0, max: across.length - 1, step: 1, "aria-label": `${label}, ${name}`,
        oninput: () => this.choose(Number(this.ranges[1].value) * across.length + Number(this.ranges[0].value)),
      });
    this.ranges = ["across", "up"].map((name, axis) => range(axis, name));
    this.output = element("output");
    return [element("div", { class: "range" }, element("span", { class: "label" }, label), this.output, ...this.ranges)];
  }

  /** The nearest point of a pad. */
  to(x, y) {
    const { across } = this.data;
    const nearest = (at) => across.reduce((best, each, n) => (Math.abs(each - at) < Math.abs(across[best] - at) ? n : best), 0);
    this.choose(nearest(y) * across.length + nearest(x));
  }

  play() {
    const last = this.data.options.length - 1;
    const stop = () => {
      clearInterval(this.timer);
      this.timer = null;
      this.button.textContent = "▶ Play";
    };
    if (this.timer) return stop();
    if (this.simulation.chosen[this.data.name] === last) this.choose(0);
    this.button.textContent = "❚❚ Pause";
    this.timer = setInterval(() => {
      const next = this.simulation.chosen[this.data.name] + 1;
      if (next <= last) this.choose(next);
      if (next >= last) stop();
    }, 700);
  }

  set(index) {
    const { options, across } = this.data;
    this.note.innerHTML = options[index]?.note ?? "";
    if (this.inputs) this.inputs[index].checked = true;
    if (this.range) this.range.value = index;
    if (this.ranges) [this.ranges[0].value, this.ranges[1].value] = [index % across.length, Math.floor(index / across.length)];
    if (this.output) this.output.textContent = options[index].label;
    (this.ranges ?? [this.range]).forEach((range) => range?.setAttribute("aria-valuetext", options[index].label));
    this.small?.forEach((canvas, n) => {
      const array = this.simulation.arrays({ [this.data.name]: n })[this.data.of];
      paint(canvas, array, this.simulation.views.find(({ data }) => data.name === this.data.of).data);
    });
  }

  shown() {
    return this.small ? this.small.map(levelsOf) : null;
  }
}

/** A matrix of numbers that the reader chooses, with presets. */
class Entries {
  constructor(data, simulation) {
    Object.assign(this, { data, simulation });
    this.note = element("div", { class: "note" });
    this.selects = data.rows.map((row, i) =>
      data.columns.map((column, j) =>
        element(
          "select",
          { "aria-label": `${data.plain} of ${row}, entry ${column}`, "data-entry": `${i},${j}`, onchange: () => this.own() },
          ...data.values.map((value) => element("option", { value }, String(value).replace("-", "−"))),
        ),
      ),
    );
    const id = `${simulation.id}-${data.name}`;
    this.inputs = data.presets.map((_, n) => element("input", { type: "radio", name: id, value: n, onchange: () => this.preset(n) }));
    const labels = data.presets.map(({ label }, n) => element("label", {}, this.inputs[n], element("span", {}, label)));
    const rows = data.rows.map((row, i) => element("tr", {}, element("th", { scope: "row" }, row), ...this.selects[i].map((select) => element("td", {}, select))));
    this.element = element(
      "div",
      { class: "control entries", "data-control": data.name },
      element("fieldset", { class: "choice" }, element("legend", {}, data.label), element("div", { class: "choices" }, ...labels)),
      element("table", {}, element("caption", { html: `${data.symbol} <span>choose each entry</span>` }), element("tbody", {}, ...rows)),
      this.note,
    );
  }

  preset(n) {
    this.note.innerHTML = this.data.presets[n].note;
    this.simulation.enter(this.data.presets[n].value);
  }

  own() {
    this.note.innerHTML = "";
    for (const input of this.inputs) input.checked = false;
    this.simulation.enter(this.selects.map((line) => line.map((select) => Number(select.value))));
  }

  set(entries) {
    const is = (value) => JSON.stringify(value) === JSON.stringify(entries);
    this.data.presets.forEach(({ value }, n) => (this.inputs[n].checked = is(value)));
    this.selects.forEach((line, i) => line.forEach((select, j) => (select.value = entries[i][j])));
  }
}

export class Simulation {
  constructor(figure, number) {
    figure.querySelector(".simulation-picture").hidden = true;
    const stage = figure.querySelector(".simulation-stage");
    stage.hidden = false;
    this.figure = figure;
    this.data = JSON.parse(figure.querySelector('script[type="application/json"]').textContent);
    this.id = `${this.data.name}-${number}`;
    const entries = this.data.controls.find(({ kind }) => kind === "entries");
    this.entered = entries?.presets[0].value;
    const choices = this.data.controls.filter((each) => each !== entries);
    this.chosen = Object.fromEntries(choices.map(({ name, start }) => [name, start]));
    this.controls = Object.fromEntries(
      this.data.controls.map((each) => [each.name, each === entries ? new Entries(each, this) : new Control(each, this)]),
    );
    this.views = this.data.views.map((each) => new VIEWS[each.kind](each, this));
    const panel = Object.values(this.controls).map((control) => control.element);
    stage.append(
      element("div", { class: "controls" }, ...panel),
      element("div", { class: "views" }, ...this.views.map((view) => view.element)),
    );
    this.code = figure.querySelector(".simulation-code code");
    this.update();
  }

  choose(name, index) {
    this.chosen[name] = index;
    this.update();
  }

  enter(entries) {
    this.entered = entries;
    this.update();
  }

  /** The arrays of what is chosen, or of what is with these `changes`. */
  arrays(changes = {}) {
    const { pool, table, linear, controls } = this.data;
    const at = { ...this.chosen, ...changes };
    const sizes = Object.fromEntries(controls.map(({ name, options }) => [name, options?.length]));
    const found = {};
    for (const [name, { axes, index }] of Object.entries(table)) {
      const array = pool[index[axes.reduce((place, axis) => place * sizes[axis] + at[axis], 0)]];
      found[name] = linear.includes(name) ? added(array, this.entered.flat()) : array;
    }
    return found;
  }

  update() {
    const arrays = this.arrays();
    for (const [name, control] of Object.entries(this.controls)) control.set(this.chosen[name] ?? this.entered);
    for (const view of this.views) view.set(arrays, this.chosen);
    this.python();
  }

  /** Write what is chosen into the Python below: a line `name = …` for each control. */
  python() {
    const chosen = Object.fromEntries(
      this.data.controls.map(({ name, options }) => [
        name,
        options ? options[this.chosen[name]].code : `np.array([${this.entered.map((line) => `[${line.join(", ")}]`).join(", ")}], float)`,
      ]),
    );
    const lines = this.code.innerHTML.split("\n");
    this.code.innerHTML = lines
      .map((line) => {
        const text = element("div", { html: line }).textContent;
        const name = Object.keys(chosen).find((each) => text.startsWith(`${each} = `));
        return name ? `${name} = ${chosen[name]}` : line;
      })
      .join("\n");
  }

  /** What stands on the page: of every view, and of thumbnails by the name of their control. */
  shown() {
    const small = Object.entries(this.controls).filter(([, control]) => control.small);
    return {
      views: this.views.map((view) => view.shown()),
      thumbnails: Object.fromEntries(small.map(([name, control]) => [name, control.shown()])),
    };
  }
}

/** The sum of arrays of one shape, each times its amount, to 6 decimals. */
function added(units, amounts) {
  const sum = (parts) =>
    Array.isArray(parts[0])
      ? parts[0].map((_, n) => sum(parts.map((part) => part[n])))
      : Math.round(1e6 * parts.reduce((total, part, n) => total + amounts[n] * part, 0)) / 1e6 || 0;
  return sum(units);
}

document.querySelectorAll("figure[data-simulation]").forEach((figure, number) => {
  figure.simulation = new Simulation(figure, number);
});
