import { element, figure } from "../page/dom.js";
import { VIEWS } from "../page/views.js";

// Machines in a ring, each with a gradient that is cut into chunks. A chunk has a stripe for each
// machine whose share is in it. What was sent last lies on the arrow along which it went.

const NAMES = "abcdef";

class Ring {
  constructor(data) {
    this.data = data;
    const about = "machines in a ring, the chunks of each, and what was sent last";
    this.tip = element("marker", { id: "sent", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" }, element("path", { d: "M0,0 L8,4 L0,8 z" }));
    this.svg = element("svg", { viewBox: data.box.join(" "), role: "img", "aria-label": about });
    this.element = element("div", { class: "ring" }, this.svg);
  }

  set(arrays) {
    const { values, shares, changed, moves, positions, size } = this.data;
    const now = [values, shares, changed, moves].map((name) => arrays[name]);
    if (JSON.stringify(now) === this.state) return; // or what is moving would start again
    this.state = JSON.stringify(now);
    const [numbers, whose, marks, ways] = now;
    const at = positions[numbers.length];
    const [wide, high, title] = size;
    const tall = (high - title) / numbers.length;

    const cell = (kind, x, y, [across, down], stripes, name, text) => {
      const stripe = (n) => element("rect", { class: `stripe machine-${n}`, x: x + (n * across) / stripes.length, y, width: across / stripes.length, height: down });
      const parts = stripes.flatMap((there, n) => (there ? stripe(n) : []));
      const middle = y + down / 2 + 4.5;
      const made = element("g", { class: kind }, element("rect", { class: "ground", x, y, width: across, height: down }), ...parts);
      made.append(element("rect", { class: "edge", x, y, width: across, height: down }));
      made.append(element("text", { x: x + 5, y: middle, class: "name" }, name), element("text", { x: x + across - 6, y: middle, class: "end number" }, text));
      return made;
    };
    const machine = ([x, y], r) => {
      const [left, top] = [x - wide / 2, y - high / 2];
      const chunk = (value, c) => cell(`chunk${marks[r][c] ? " changed" : ""}`, left, top + title + c * tall, [wide, tall], whose[r][c], NAMES[c], figure(value));
      const head = element("rect", { class: `head machine-${r}`, x: left, y: top, width: wide, height: title });
      return element("g", { class: "machine" }, head, element("text", { x, y: top + title - 4.5, class: "middle" }, `machine ${r + 1}`), ...numbers[r].map(chunk));
    };
    const way = ([from, to]) => {
      const [[x1, y1], [x2, y2]] = [at[from], at[to]];
      const inside = Math.min(wide / 2 / Math.abs(x2 - x1), high / 2 / Math.abs(y2 - y1));
      const along = (share) => [x1 + share * (x2 - x1), y1 + share * (y2 - y1)];
      const [begin, end] = [along(inside), along(1 - inside)];
      return element("line", { class: "way", x1: begin[0], y1: begin[1], x2: end[0], y2: end[1], "marker-end": "url(#sent)" });
    };
    const packet = ([from, to, chunk, value, ...stripes]) => {
      const [x, y] = [0, 1].map((n) => (at[from][n] + at[to][n]) / 2);
      const [dx, dy] = [at[from][0] - x, at[from][1] - y];
      const whole = chunk === numbers.length;
      const made = cell("packet", x - 20, y - 9, [40, 18], stripes.slice(0, numbers.length), whole ? "" : NAMES[chunk], whole ? "all" : figure(value));
      made.setAttribute("style", `--from: ${dx}px ${dy}px`);
      return made;
    };
    this.svg.replaceChildren(element("defs", {}, this.tip), ...ways.map(way), ...at.map(machine), ...ways.map(packet));
  }

  shown() {
    const read = (part) => [[...part.querySelectorAll("text")].map((text) => text.textContent).join(""), ...[...part.querySelectorAll(".stripe")].map((stripe) => Number(stripe.classList[1].slice(8)))];
    const chunks = [...this.svg.querySelectorAll(".machine")].map((machine) => [...machine.querySelectorAll(".chunk")]);
    return {
      chunks: chunks.map((all) => all.map(read)),
      changed: chunks.map((all) => all.map((chunk) => Number(chunk.classList.contains("changed")))),
      packets: [...this.svg.querySelectorAll(".packet")].map(read),
    };
  }
}

VIEWS.ring = Ring;
