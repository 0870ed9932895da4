import { element, pile, roomy } from "./dom.js";
import { Replay } from "./replay.js";
import { levelsOf, paint, VIEWS } from "./views.js";

// Simulations: controls, the arrays for what they are set to, and views that show these arrays. If a
// control is live, the lines of numformer that compute the arrays are repeated here (replay.js);
// otherwise all arrays were computed when the page was built. If the lines are one step of many,
// several steps are done in each frame. Numbers glide to their new values.

const GLIDE = 260; // milliseconds at most
const SPEEDS = [1, 2, 4, 0.5]; // of a slider that plays
const TRIED = 12; // options of a live control, to see how long numbers get
const FRAME = 12; // milliseconds of each frame that may go into steps

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
    this.note = pile(data.options.map(({ note }) => note));
    this.output = roomy("output", {}, data.options.map(({ label }) => label));
    this.speed = SPEEDS[0];
    const attributes = { class: "control", "data-control": data.name, hidden: data.kind === "steps" };
    this.element = element("div", attributes, this[data.kind](), this.note.element);
  }

  choose(index, played = false) {
    this.simulation.choose(this.data.name, index, played);
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
    const button = (text, onclick) => (plays ? element("button", { type: "button", class: "play", onclick }, text) : null);
    this.button = button("▶ Play", () => this.play());
    this.faster = button("1 ×", () => {
      this.speed = SPEEDS[(SPEEDS.indexOf(this.speed) + 1) % SPEEDS.length];
      this.faster.textContent = `${this.speed} ×`;
    });
    this.faster?.setAttribute("aria-label", "Speed");
    return element("div", { class: "range" }, element("span", { class: "label" }, label), this.output.element, ...this.ranges, this.button, this.faster);
  }

  /** The stepper is the only control of its steps. */
  steps() {
    return null;
  }

  /** Two sliders, across and up, for the point that can be dragged in a chart. */
  pad() {
    const { across, label } = this.data;
    const chosen = () => this.choose(Number(this.ranges[1].value) * across.length + Number(this.ranges[0].value));
    this.ranges = ["across", "up"].map((way) => this.range(`${label}, ${way}`, across.length, chosen));
    return element("div", { class: "range" }, element("span", { class: "label" }, label), this.output.element, ...this.ranges);
  }

  /** Choose the point of a pad that is nearest to (x, y). */
  to(x, y) {
    const { across } = this.data;
    const nearest = (at) => across.reduce((best, each, n) => (Math.abs(each - at) < Math.abs(across[best] - at) ? n : best), 0);
    this.choose(nearest(y) * across.length + nearest(x));
  }

  play() {
    const last = this.data.options.length - 1;
    const { style } = this.simulation.controlsPlace.parentElement;
    const stop = () => {
      this.timer = clearTimeout(this.timer);
      style.removeProperty("--pace");
      this.button.textContent = "▶ Play";
    };
    if (this.timer) return stop();
    if (this.simulation.chosen[this.data.name] === last) this.choose(0);
    this.button.textContent = "❚❚ Pause";
    const on = () => {
      style.setProperty("--pace", `${700 / this.speed}ms`); // so that what moves does not stand still
      const next = Math.min(last, this.simulation.chosen[this.data.name] + 1);
      this.choose(next, true);
      if (next === last) return stop();
      this.timer = setTimeout(on, 700 / this.speed);
    };
    this.timer = setTimeout(on, 700 / this.speed);
  }

  set(index) {
    const { options, across, of, name } = this.data;
    const { label, note } = options[index];
    this.note.show(note);
    this.output.say(label);
    if (this.inputs.length) this.inputs[index].checked = true;
    this.ranges.forEach((range, n) => {
      range.value = !across ? index : n ? Math.floor(index / across.length) : index % across.length;
      range.setAttribute("aria-valuetext", label);
    });
    const { data } = this.simulation.views.find((view) => view.data.name === of) ?? {};
    this.small.forEach((canvas, n) => paint(canvas, this.simulation.arrays({ [name]: n })[of], data));
  }
}

/** A matrix whose numbers the reader types; the options are matrices to begin with. */
class Entries {
  constructor(data, simulation) {
    Object.assign(this, { data, simulation });
    this.note = pile(data.options.map(({ note }) => note));
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
    const caption = element("caption", { html: `${data.symbol.math} <span>change any entry</span>` });
    const choice = buttons(id, data, this.inputs, (n) => element("span", {}, data.options[n].label));
    const parts = [choice, element("table", {}, caption, element("tbody", {}, ...rows)), this.note.element];
    this.element = element("div", { class: "control entries", "data-control": data.name }, ...parts);
  }

  /** An entry that is no number yet, as "-", counts as 0 until it is one. */
  typed() {
    this.simulation.choose(this.data.name, this.entries.map((line) => line.map((entry) => entry.valueAsNumber || 0)));
  }

  set(matrix) {
    const begun = this.data.values.findIndex((value) => String(value) === String(matrix));
    this.inputs.forEach((input, n) => (input.checked = n === begun));
    this.note.show(this.data.options[begun]?.note);
    this.entries.forEach((line, i) =>
      line.forEach((entry, j) => {
        if (document.activeElement !== entry || entry.valueAsNumber !== matrix[i][j]) entry.value = matrix[i][j];
      }),
    );
  }
}

/** Give a pad its options, the points of its grid. */
const spread = (pad) => {
  pad.values = pad.across.flatMap((y) => pad.across.map((x) => [x, y]));
  pad.options = pad.values.map(([x, y]) => ({ label: `(${x}, ${y})`, note: "", code: `np.array([${x}, ${y}])` }));
};

class Simulation {
  constructor(figure) {
    figure.querySelector(".simulation-picture").hidden = true;
    const stage = figure.querySelector(".simulation-stage");
    stage.hidden = false;
    this.data = JSON.parse(figure.querySelector('script[type="application/json"]').textContent);
    this.id = this.data.name;
    for (const control of this.data.controls) if (control.kind === "pad") spread(control);
    this.chosen = Object.fromEntries(this.data.controls.map(({ name, start }) => [name, start]));
    Object.assign(this, { replays: {}, collected: {}, done: 0 });
    this.typed = {}; // what a reader can change in a view, beside the controls
    const made = this.data.controls.map((each) => [each.name, new (each.kind === "entries" ? Entries : Control)(each, this)]);
    this.controls = Object.fromEntries(made);
    this.views = this.data.views.map((each) => new VIEWS[each.kind](each, this));
    this.tried = null;
    const groups = { controls: Object.values(this.controls), views: this.views };
    for (const [name, parts] of Object.entries(groups)) {
      stage.append((this[`${name}Place`] = element("div", { class: name }, ...parts.map((part) => part.element))));
    }
    this.code = figure.querySelector(".simulation-code code");
    this.update();
    this.linked(figure);
    window.addEventListener("hashchange", () => this.linked(figure));
  }

  /** Set a control to the option at an index, or entries to a matrix; unless `played`, a reader did. */
  choose(name, chosen, played = false) {
    this.chosen[name] = chosen;
    this.update(!played);
    clearTimeout(this.telling);
    this.telling = setTimeout(() => this.tell(), 400);
  }

  /** Put what is chosen into the address, so that a link leads to it: #NAME?control=index. */
  tell() {
    const differ = this.data.controls.filter(({ name, start }) => String(this.chosen[name]) !== String(start));
    const said = new URLSearchParams(differ.map(({ name }) => [name, this.chosen[name]]));
    if (location.protocol !== "about:") { // in a notebook it has no address of its own
      history.replaceState(null, "", `#${this.id}?${said}`);
    }
  }

  /** Choose what the address says. */
  linked(figure) {
    const [id, said] = location.hash.slice(1).split("?");
    if (id !== this.id || said === undefined) return;
    for (const [name, text] of new URLSearchParams(said)) {
      const { kind, options, rows, columns } = this.data.controls.find((each) => each.name === name) ?? {};
      const numbers = text.split(",").map(Number);
      if (kind === "entries" && numbers.length === rows.length * columns.length && numbers.every(Number.isFinite)) {
        this.chosen[name] = rows.map((_, n) => numbers.slice(n * columns.length, (n + 1) * columns.length));
      } else if (options?.[text] && kind !== "entries") this.chosen[name] = Number(text);
    }
    this.update();
    figure.scrollIntoView();
  }

  /** Every array that a name can stand for; if arrays are computed here, those of some options. */
  every(name) {
    const { pool, table, controls } = this.data;
    if (this.data.repeats) return []; // what steps of training give is not known before
    if (!table[""]) return [...new Set(table[name].index)].map((place) => pool[place]);
    const some = ({ kind, values }) => (kind === "entries" ? [...values, typed(values[0])] : values.map((_, n) => n)).filter((_, n) => n % Math.ceil(values.length / TRIED) === 0);
    const states = [{}, ...controls.filter(({ live }) => live).flatMap((each) => some(each).map((value) => ({ [each.name]: value })))];
    this.tried ??= pool.flatMap((_, place) => states.map((state) => this.computed(place, { ...this.chosen, ...state })));
    return this.tried.map((arrays) => arrays[name]);
  }

  /** The names of the arrays that a control changes. */
  changes({ name, kind, options, start }) {
    const others = kind === "entries" ? [typed(start)] : options.map((_, n) => n).slice(0, TRIED);
    const texts = (state) => Object.entries(this.arrays(state)).map(([of, array]) => [of, JSON.stringify(array)]);
    const before = Object.fromEntries(texts({}));
    return new Set(others.flatMap((other) => texts({ [name]: other }).flatMap(([of, text]) => (text === before[of] ? [] : of))));
  }

  /** The arrays for what is chosen, with these `changes`. */
  arrays(changes = {}) {
    const { pool, table, controls } = this.data;
    const at = { ...this.chosen, ...changes };
    const sizes = Object.fromEntries(controls.map(({ name, options }) => [name, options.length]));
    const found = Object.entries(table).map(([name, { axes, index }]) => [name, index[axes.reduce((place, axis) => place * sizes[axis] + at[axis], 0)]]);
    return table[""] ? this.computed(found[0][1], at) : Object.fromEntries(found.map(([name, place]) => [name, pool[place]]));
  }

  /** The arrays for what is chosen, computed by one of the recordings. */
  computed(place, at) {
    const replay = (this.replay = this.replays[place] ??= new Replay(this.data.pool[place]));
    const { controls, repeats, collected } = this.data;
    if (repeats && !this.done) replay.reset();
    for (const { name, live, kind, values } of controls) {
      if (live) replay.set(`given ${name}`, kind === "entries" ? at[name] : values[at[name]]);
    }
    for (const [name, values] of Object.entries(this.typed)) replay.set(`given ${name}`, values);
    if (!repeats) replay.run();
    else if (!this.done) this.collected = Object.fromEntries(collected.map((name) => [name, []]));
    for (const end = performance.now() + (this.hurried ? Infinity : FRAME); this.done < repeats && performance.now() < end; ) {
      replay.set("given step", (this.done += 1));
      replay.run();
      for (const name of collected) this.collected[name].push(replay.flat(name)[0]);
    }
    const names = Object.keys(replay.names).filter((name) => !name.startsWith("given "));
    return Object.fromEntries(names.map((name) => [name, rounded(this.collected[name] ?? replay.get(name))]));
  }

  /** Do all steps that are left, at once. */
  finish() {
    this.hurried = true;
    if (this.done < this.data.repeats) this.show();
    this.hurried = false;
  }

  /** Show the arrays, and mark what a reader has changed. If steps are left to do, go on. */
  show(byReader = false) {
    cancelAnimationFrame(this.frame);
    const arrays = this.arrays();
    if (this.data.repeats) {
      for (const view of this.views) view.set(arrays, this.chosen);
      if (this.done < this.data.repeats) this.frame = requestAnimationFrame(() => this.show());
      return;
    }
    this.settle?.();
    if (byReader && this.now) for (const view of this.views) view.changed?.(this.now, arrays, this.chosen);
    this.glide(this.now, arrays);
  }

  update(byReader = true) {
    for (const [name, control] of Object.entries(this.controls)) control.set(this.chosen[name]);
    this.done = 0;
    this.show(byReader);
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

  /**
   * Put controls where they are used. `slots` has the names of the controls for each slot, and each
   * slot keeps room for them. A button shows all controls in their old place.
   */
  share(slots) {
    const [place, moved] = [this.controlsPlace, new Set([...slots.values()].flat())];
    if (!moved.size) return;
    place.append(element("button", { type: "button", class: "play all-controls", "aria-expanded": "false" }, "All controls"));
    place.lastChild.onclick = ({ target }) => {
      target.setAttribute("aria-expanded", place.classList.toggle("all"));
      target.textContent = place.classList.contains("all") ? "Fewer controls" : "All controls";
      this.use(this.slot);
    };
    for (const [slot, names] of slots) {
      slot.replaceChildren(...names.map((name) => element("div", { class: "pile", "data-for": name }, this.ghost(name))));
    }
    this.use = (slot) => {
      this.slot = slot;
      for (const name of moved) {
        const there = place.classList.contains("all") ? null : slot.querySelector(`[data-for="${name}"]`);
        (there ?? place).append(this.controls[name].element);
        this.controls[name].element.classList.toggle("unused", !there);
      }
      place.append(place.querySelector(".all-controls"));
    };
  }

  /** A copy that keeps room for a control in a place where it may be put. */
  ghost(name) {
    const made = this.controls[name].element.cloneNode(true);
    for (const part of [made, ...made.querySelectorAll("*")]) for (const of of ["name", "data-control", "data-entry"]) part.removeAttribute(of);
    made.classList.add("away");
    return made;
  }

  /** Let the numbers move to those of other arrays, faster if changes follow each other quickly. */
  glide(from, to) {
    const begun = performance.now();
    const time = matchMedia("(prefers-reduced-motion: reduce)").matches ? 0 : Math.min(GLIDE, 0.8 * (begun - this.begun));
    const show = (arrays) => this.views.forEach((view) => view.set(arrays, this.chosen));
    this.begun = begun;
    this.now = to;
    this.settle = () => (cancelAnimationFrame(this.gliding), (this.settle = null), show(to));
    const step = (now) => {
      const share = (now - begun) / time;
      if (share >= 1) return this.settle();
      show(Object.fromEntries(Object.entries(to).map(([name, array]) => [name, between(from[name], array, Math.max(0, share) ** 0.6)])));
      this.gliding = requestAnimationFrame(step);
    };
    from && time > 30 ? step(begun) : this.settle();
  }

  /** What the page shows once all is at rest: in every view, and in the thumbnails of controls. */
  shown() {
    this.finish();
    this.settle?.();
    const small = Object.entries(this.controls).filter(([, { small }]) => small?.length);
    const thumbnails = small.map(([name, control]) => [name, control.small.map(levelsOf)]);
    return { views: this.views.map((view) => view.shown()), thumbnails: Object.fromEntries(thumbnails) };
  }
}

/** What a reader might type instead: numbers that are not round and have many digits. */
const typed = (rows) => rows.map((row) => row.map((x) => -Math.abs(x) - 0.37));

/**
 * An array on its way to another; if that has more or fewer parts, these come from the parts that
 * stood there. Whole numbers, which may be ids, do not move.
 */
function between(from, to, share) {
  if (from === to) return to;
  if (Array.isArray(to)) return from?.length ? to.map((part, n) => between(from[Math.floor((n * from.length) / to.length)], part, share)) : to;
  const moves = [from, to].every((x) => typeof x === "number") && !(Number.isInteger(from) && Number.isInteger(to));
  return moves ? from + share * (to - from) : to;
}

/** Numbers rounded to 6 decimals, like those computed with the page; -Infinity becomes null. */
const rounded = (array) =>
  Array.isArray(array) ? array.map(rounded) : array === -Infinity ? null : Math.round(1e6 * array) / 1e6 || 0;

for (const figure of document.querySelectorAll("figure[data-simulation]")) figure.simulation = new Simulation(figure);
