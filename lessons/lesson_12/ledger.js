import { amount, element, figure } from "../page/dom.js";
import { VIEWS } from "../page/views.js";

// The parts of a model as rows, each with its parameters and its operations. Below them stands what
// their sums mean, above them the presets, which set many controls at once.

const whole = (value) => Math.round(value).toLocaleString("en-US");
const SAID = { total: whole, rule: (value) => `${figure(100 * value)} %` };

class Ledger {
  constructor(data, simulation) {
    this.data = data;
    this.presets = Object.entries(data.presets).map(([label, preset]) => {
      const set = () => {
        Object.assign(simulation.chosen, preset);
        simulation.choose(...Object.entries(preset)[0]);
      };
      return { preset, button: element("button", { type: "button", onclick: set }, label) };
    });
    const cell = (kind) => element("td", { class: kind });
    this.rows = data.parts.map((part) => ({ part, cells: [cell("parameters"), cell("operations")] }));
    const head = ["part", "parameters", "operations"].map((name) => element("th", { scope: "col" }, name));
    const body = this.rows.map(({ part, cells }) => element("tr", {}, element("th", { scope: "row" }, part), ...cells));
    this.sums = Object.keys(data.sums).map((name) => [name, element("dd")]);
    const sums = this.sums.map(([name, value]) => element("div", {}, element("dt", {}, data.sums[name]), value));
    this.element = element(
      "div",
      { class: "ledger" },
      element("div", { class: "presets", role: "group", "aria-label": "Presets" }, ...this.presets.map(({ button }) => button)),
      element("table", {}, element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...body)),
      element("dl", {}, ...sums),
    );
  }

  set(arrays, chosen) {
    for (const { preset, button } of this.presets) {
      button.setAttribute("aria-pressed", Object.entries(preset).every(([name, at]) => chosen[name] === at));
    }
    this.rows.forEach(({ cells }, n) => {
      ["parameters", "operations"].forEach((name, column) => {
        cells[column].textContent = (column ? amount : whole)(arrays[name][n]);
        cells[column].style.setProperty("--share", arrays[`of_${name}`][n]);
      });
    });
    for (const [name, value] of this.sums) value.textContent = (SAID[name] ?? amount)(arrays[name]);
  }

  shown() {
    const pressed = this.presets.flatMap(({ button }, n) => (button.getAttribute("aria-pressed") === "true" ? [n] : []));
    const sums = Object.fromEntries(this.sums.map(([name, value]) => [name, value.textContent]));
    return { rows: this.rows.map(({ cells }) => cells.map((cell) => cell.textContent)), sums, pressed };
  }
}

VIEWS.ledger = Ledger;
