import { ofEntry, ofRow } from "./attention_arithmetic.js";
import { choice, element, lightTogether, MatrixTable, pythonOf, short, simulate } from "../page/matrix.js";

// Steps through attention, forward and backward. No attention is computed here: for each mask and
// temperature numformer computed the forward pass, and the backward pass of every upstream
// gradient with a single 1. Backward is linear, so those of any other are sums of these.

const HOW =
  "Walk through the steps. At each, change one of the choices and watch which numbers answer. " +
  "Point at or tap a symbol, a matrix or a name in the code: all three light up. Point at or tap " +
  "an entry of a result to see what it is made of.";

class Stepper {
  constructor(figure, data, number) {
    Object.assign(this, { figure, data, steps: data.steps });
    this.id = `attention-stepper-${number}`;
    this.headers = {
      queries: data.tokens,
      keys: data.tokens,
      features: data.features,
      entries: data.entries,
      sum: ["sum"],
      average: ["average"],
    };
    this.state = {
      step: 0,
      query: data.picked,
      mask: data.masks[0].id,
      temperature: data.temperatures.findIndex((each) => each.value === 1),
      doutput: data.doutput,
      preset: data.presets[0].id,
    };
    this.build();
    this.go(0, false);
  }

  // The numbers of the reader's choice.
  values() {
    const { mask, temperature, doutput } = this.state;
    const all = { ...this.data.forward[mask][temperature], doutput };
    const amounts = doutput.flat();
    for (const [name, units] of Object.entries(this.data.backward[mask][temperature])) {
      all[name] = units[0].map((line, row) =>
        line.map((_, column) => {
          const sum = amounts.reduce((s, amount, n) => s + amount * units[n][row][column], 0);
          return Math.round(sum * 1e6) / 1e6 || 0;
        }),
      );
    }
    return all;
  }

  // What stands there at every step.
  build() {
    const stage = this.figure.querySelector(".simulation-stage");
    this.announcement = element("p", { class: "unseen", "aria-live": "polite" });
    const forward = this.steps.filter((step) => !step.inverts).map((step) => step.id);
    const inverted = [...new Set(this.steps.map((step) => step.inverts))].filter((id) => id);
    const column = (id) => `--column: ${forward.indexOf(id) + 1}`;
    // Where there is little room, a column is as wide as its name.
    const widths = this.steps.filter((step) => !step.inverts).map(({ name }) => name.length + 2);
    const columns = widths.map((width) => `minmax(0, ${width}fr)`).join(" ");
    this.dots = this.steps.map((step, n) =>
      element(
        "button",
        {
          type: "button",
          class: "dot",
          "data-go": step.id,
          "aria-label": `${n + 1}, ${step.part}: ${step.title}`,
          style: column(step.id),
          onclick: () => this.go(n),
        },
        element("span", {}, step.name),
      ),
    );
    const dotsOf = (id) => this.dots.filter((_, n) => this.steps[n].inverts === id);
    const track = (name, title, ...content) =>
      element(
        "div",
        { class: `track ${name}`, role: "group", "aria-label": name },
        element("span", { class: "track-name" }, title),
        ...content,
      );
    const button = (name, turn, ...text) =>
      element(
        "button",
        { type: "button", class: name, onclick: () => this.go(this.state.step + turn) },
        ...text,
      );
    const word = (text) => element("span", { class: "word" }, text);
    this.words = element("div", { class: "step-words" });
    this.numbers = element("div", { class: "step-numbers" });
    this.previous = button("previous", -1, "←", word(" Previous"));
    this.next = button("next", 1, word("Next "), "→");
    this.place = element("span", { class: "place" });
    stage.append(
      element("p", { class: "how" }, HOW),
      element(
        "nav",
        { class: "steps", "aria-label": "Steps", style: `--columns: ${columns}` },
        track("forward", "Forward →", ...dotsOf("")),
        track(
          "backward",
          "← Backward",
          ...inverted.map((id) =>
            element("div", { class: "mirror", style: column(id) }, ...dotsOf(id)),
          ),
          element("span", { class: "track-gap" }, "no step back: a hidden entry has weight 0"),
        ),
      ),
      element("div", { class: "bench" }, this.words, this.controls(), this.numbers),
      element("div", { class: "turn" }, this.previous, this.place, this.next),
      this.announcement,
    );
    stage.addEventListener("keydown", (event) => {
      const turn = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!turn || event.altKey || event.ctrlKey || event.metaKey) return;
      if (event.target.closest("input, select, pre")) return;
      event.preventDefault();
      const onDot = event.target.closest(".dot");
      this.go(this.state.step + turn);
      if (onDot) this.dots[this.state.step].focus();
    });
    lightTogether(stage);
    this.python = pythonOf(this.figure);
  }

  controls() {
    const { data, state } = this;
    const set = (changes) => {
      Object.assign(state, changes);
      if (state.preset !== "own") state.doutput = this.preset(state.preset);
      this.update(true);
    };
    this.maskNote = element("p", { class: "note" });
    this.temperatureNote = element("p", { class: "note" });
    this.temperature = element("output", { for: `${this.id}-temperature` });
    this.slider = element("input", {
      type: "range",
      id: `${this.id}-temperature`,
      min: 0,
      max: data.temperatures.length - 1,
      step: 1,
      value: state.temperature,
      oninput: (event) => set({ temperature: Number(event.target.value) }),
    });
    this.upstream = this.upstreamControls(set);
    this.summary = element("summary");
    this.choices = element(
      "div",
      { class: "options" },
      choice(
        "Picked token",
        `${this.id}-query`,
        "query",
        data.tokens.map((token, n) => [n, token]),
        state.query,
        (query) => set({ query }),
      ),
      element(
        "div",
        { class: "temperature" },
        element("label", { for: `${this.id}-temperature` }, "Temperature"),
        this.temperature,
        this.slider,
        this.temperatureNote,
      ),
      element(
        "div",
        {},
        choice(
          "Mask",
          `${this.id}-mask`,
          "mask",
          data.masks.map((each) => [each.id, each.name]),
          state.mask,
          (mask) => set({ mask }),
        ),
        this.maskNote,
      ),
      this.upstream,
    );
    const open = !matchMedia("(max-width: 60rem)").matches;
    return element("details", { class: "controls", open }, this.summary, this.choices);
  }

  upstreamControls(set) {
    const { data, state } = this;
    this.presetNote = element("div", { class: "note" });
    this.entries = data.doutput.map((line, row) =>
      line.map((_, column) =>
        element(
          "select",
          {
            "aria-label": `dO of ${data.tokens[row]}, entry ${data.entries[column]}`,
            "data-entry": `${row},${column}`,
            onchange: (event) => {
              const doutput = state.doutput.map((each) => [...each]);
              doutput[row][column] = Number(event.target.value);
              set({ doutput, preset: "own" });
            },
          },
          ...[3, 2, 1, 0, -1, -2, -3].map((n) => element("option", { value: n }, short(n))),
        ),
      ),
    );
    this.presets = choice(
      "Upstream gradient",
      `${this.id}-preset`,
      "preset",
      data.presets.map((each) => [each.id, each.name]),
      state.preset,
      (preset) => set({ preset }),
    );
    return element(
      "div",
      { class: "upstream" },
      this.presets,
      element(
        "table",
        { class: "entries" },
        element("caption", { html: `${data.matrices.doutput.symbol} <span>choose each entry</span>` }),
        element(
          "tbody",
          {},
          ...this.entries.map((line, row) =>
            element(
              "tr",
              {},
              element("th", { scope: "row" }, data.tokens[row]),
              ...line.map((select) => element("td", {}, select)),
            ),
          ),
        ),
      ),
      this.presetNote,
    );
  }

  preset(name) {
    const { doutput } = this.data;
    if (name === "ones") return doutput.map((line) => line.map(() => 1));
    if (name === "given") return doutput;
    return doutput.map((line, row) => line.map((x) => (row === this.state.query ? x : 0)));
  }

  go(to, byReader = true) {
    if (to < 0 || to >= this.steps.length) return;
    this.state.step = to;
    const step = this.steps[to];
    this.figure.dataset.step = step.id;
    this.dots.forEach((dot, n) => {
      dot.classList.toggle("passed", n < to);
      if (n === to) dot.setAttribute("aria-current", "step");
      else dot.removeAttribute("aria-current");
    });
    const focused = document.activeElement;
    this.previous.disabled = to === 0;
    this.next.disabled = to === this.steps.length - 1;
    if (focused.disabled) (to ? this.previous : this.next).focus(); // or the keyboard loses its place
    this.place.textContent = `${to + 1} of ${this.steps.length}`;
    this.show(step);
    this.update(false);
    if (!byReader) return;
    this.announcement.textContent = `Step ${to + 1} of ${this.steps.length}, ${step.part}: ${step.title}`;
    if (this.words.getBoundingClientRect().top < 0) {
      this.words.scrollIntoView({ block: "start" });
    }
  }

  // What stands there at this step.
  show(step) {
    this.tables = {};
    const matrix = (name) => {
      const about = this.data.matrices[name];
      const made = new MatrixTable({
        ...about,
        name,
        rows: this.headers[about.rows],
        columns: this.headers[about.columns],
        note: this.axes(name),
        words: name === "allowed" ? (may) => (may ? "yes" : "no") : null,
      });
      this.tables[name] = made;
      return made.element;
    };
    this.worked = element("div", { class: "worked" });
    const matrices = element(
      "div",
      { class: "matrices" },
      step.inputs.length ? element("div", { class: "from" }, ...step.inputs.map(matrix)) : null,
      element(
        "div",
        { class: "to" },
        step.inputs.length ? element("span", { class: "arrow", "aria-hidden": "true" }) : null,
        ...step.results.map(matrix),
      ),
    );
    this.result = step.results.at(-1);
    this.answer = element("p");
    this.words.replaceChildren(
      element(
        "header",
        {},
        element("p", { class: "kicker" }, `${step.part} · ${step.name}`),
        element("h4", {}, step.title),
        element("div", { html: step.say }),
        this.mirror(step),
      ),
      element(
        "details",
        { class: "ask" },
        element("summary", { html: step.ask }),
        element("div", { html: step.answer }),
        this.answer,
      ),
    );
    this.numbers.replaceChildren(
      matrices,
      this.worked,
      element(
        "div",
        { class: "rule" },
        element("div", { class: "equation", html: step.equation }),
        element(
          "div",
          { class: "library" },
          element("p", { class: "note" }, `numformer, in ${step.of}`),
          element("div", { html: step.code }),
          element("div", { class: "note", html: step.note }),
        ),
      ),
    );
    // The step about the upstream gradient is where it is chosen; later ones have it at hand.
    (step.id === "upstream" ? matrices : this.choices).append(this.upstream);
    for (const each of this.figure.querySelectorAll(".bench :is(pre, .equation, .inverted)")) {
      if (each.scrollWidth > each.clientWidth) each.tabIndex = 0; // so that keys can scroll it
    }
    const shown = this.tables[this.result].element;
    const point = (event) => {
      const cell = event.target.closest("td[data-row]");
      this.use(cell ? [Number(cell.dataset.row), Number(cell.dataset.column)] : null);
    };
    shown.addEventListener("pointerover", point);
    shown.addEventListener("pointerleave", () => this.use(null));
    shown.addEventListener("click", point);
  }

  axes(name) {
    const { rows, columns } = this.data.matrices[name];
    return ["sum", "average"].includes(columns) ? "one per query" : `${rows} × ${columns}`;
  }

  mirror(step) {
    if (!step.inverts) return null;
    const n = this.steps.findIndex((each) => each.id === step.inverts);
    return element(
      "p",
      { class: "undoes" },
      step.id === "upstream" ? "Starts where forward ended: " : "Goes back through step ",
      element(
        "button",
        { type: "button", class: "link", onclick: () => this.go(n) },
        `${n + 1}, ${this.steps[n].name}`,
      ),
      element("span", { class: "inverted", html: this.steps[n].equation }),
    );
  }

  // The numbers and all that hangs on the reader's choice.
  update(mark) {
    const { data, state } = this;
    const step = this.steps[state.step];
    this.now = this.values();
    for (const [name, table] of Object.entries(this.tables)) {
      table.set(this.now[name], mark);
      const axis = this.pickedAxis(name);
      table.outline("picked", (row) => axis === "row" && row === state.query);
      table.outline("picked-column", (_, column) => axis === "column" && column === state.query);
    }
    const temperature = data.temperatures[state.temperature];
    for (const name of ["query", "dquery"]) {
      if (this.tables[name]) {
        this.tables[name].note.textContent =
          temperature.value === 1 ? this.axes(name) : `of the query / ${temperature.value}`;
      }
    }
    const mask = data.masks.find((each) => each.id === state.mask);
    this.maskNote.textContent = mask.note;
    this.temperature.textContent = temperature.value;
    this.temperatureNote.textContent = temperature.note;
    this.slider.setAttribute("aria-valuetext", String(temperature.value));
    this.upstream.hidden = step.part === "forward";
    this.entries.forEach((line, row) =>
      line.forEach((select, column) => (select.value = state.doutput[row][column])),
    );
    for (const radio of this.presets.querySelectorAll("input")) {
      radio.checked = radio.value === state.preset;
    }
    this.presetNote.innerHTML = data.presets.find((each) => each.id === state.preset)?.note ?? "";
    this.summary.textContent = `Choices: ${data.tokens[state.query]} · mask: ${mask.name} · temperature ${temperature.value}`;
    this.answer.textContent = step.id === "inputs" ? this.best() : "";
    this.spell();
    const rows = state.doutput.map((line) => `[${line.join(", ")}]`);
    this.python({
      temperature: temperature.value,
      mask: mask.code,
      doutput: `np.array([${rows.join(", ")}], float)`,
    });
  }

  // The key that fits the picked token's query best, with its score.
  best() {
    const { data, now, state } = this;
    const scores = now.scores[state.query];
    const key = scores.indexOf(Math.max(...scores));
    const step = this.steps.find((each) => each.id === "scores");
    const worked = ofEntry(step, now, data.scale, state.query, key);
    return `For “${data.tokens[state.query]}” it is the key of “${data.tokens[key]}”: ${worked}.`;
  }

  // Where the picked token stands in a matrix: in its rows, or in its columns where a product
  // reads it by columns. A factor that takes part as a whole has no mark.
  pickedAxis(name) {
    const { worked } = this.steps[this.state.step];
    if (worked.kind === "product" && name !== this.result) {
      return name === worked.left[0] ? worked.left[1] : null;
    }
    return worked.kind === "product" || this.data.matrices[name].rows === "queries" ? "row" : null;
  }

  // Outline what an entry of the result is made of.
  use(entry) {
    const { worked } = this.steps[this.state.step];
    for (const [name, table] of Object.entries(this.tables)) {
      table.outline("used", (row, column) => {
        if (!entry || !worked.kind) return false;
        if (name === this.result) return row === entry[0] && column === entry[1];
        if (worked.kind === "product") {
          const side = [worked.left, worked.right].findIndex(([each]) => each === name);
          const axis = [worked.left, worked.right][side][1];
          return (axis === "row" ? row : column) === entry[side];
        }
        const wide = table.cells[0].length === 1 || (name === "masked" && worked.kind === "softmax");
        return row === entry[0] && (wide || column === entry[1]);
      });
    }
    this.spell(entry?.[0], entry?.[1]);
  }

  // The arithmetic of a row of the result, the picked one unless the reader points at another.
  spell(row = this.state.query, at = null) {
    const { data, now } = this;
    const step = this.steps[this.state.step];
    if (!step.worked.kind) {
      this.worked.replaceChildren();
      return;
    }
    const { plain, columns } = data.matrices[this.result];
    const token = data.tokens[row];
    const line = (name, text, isUsed) =>
      element(
        "div",
        { class: isUsed ? "used" : null },
        element("dt", {}, name),
        element("dd", {}, text),
      );
    const first = ofRow(step, now, row);
    this.worked.replaceChildren(
      element("p", { class: "note" }, `${plain}, the row of “${token}”, by hand:`),
      element(
        "dl",
        {},
        first ? line(`${first[0]} of ${token}`, first[1]) : null,
        ...this.headers[columns].map((name, column) =>
          line(`${token} · ${name}`, ofEntry(step, now, data.scale, row, column), column === at),
        ),
      ),
    );
  }
}

simulate("attention_stepper", (...all) => new Stepper(...all));
