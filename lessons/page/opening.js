import { element, signs } from "./dom.js";
import { END, Reader, SPACE, START, TAKES } from "./reader.js";
import { Replay } from "./replay.js";

// The opening of the home page: a translator reads, writes, and learns, in motion. This script runs
// twice: on the page it draws; in a worker, which it starts from its own text, it computes, so that
// no frame waits. All numbers come from numformer's recorded lines (lessons/opening.py).

const [LAYERS, HEADS, LENGTH, STATE] = [3, 4, 20, ["weights", "mean", "square", "steps"]];
const READ = ["encoder", "encoder streams"];
const WROTE = ["decoder", "cross", "decoder streams"];
const SHEETS = ["encoder streams", "decoder streams", "encoder streams back", "decoder streams back"];
const BEST = 5; // how many candidates are shown for a word
const SURE = 0.5; // the chance of every right word at which training ends
const STEP = 700; // milliseconds that a step of training is shown

/** In the worker: the model. What the page asks for is answered in parts, as soon as they are known. */
class Model {
  constructor(data) {
    this.reader = new Reader(data, LENGTH);
    this.learner = new Replay(data.learn);
    const begins = (id) => id === START || id === END || data.symbols[id].startsWith(SPACE);
    this.show = (id) => (begins(id) ? "" : "‑") + this.reader.shown(id); // a piece within a word
    this.forget();
  }

  /** Take the weights of the trained model, and let Adam begin anew. */
  forget() {
    for (const name of STATE) this.given(name).fill(0);
    this.given("weights").set(this.reader.numbers);
    return [];
  }

  given(name) {
    return this.learner.flat(`given ${name}`);
  }

  /** Read an English text and write the German, word by word. */
  *read(text) {
    const { reader } = this;
    const { ids, why } = TAKES.translator(reader, text);
    yield { why, refused: !ids, source: ids && [...ids, END].map(this.show) };
    if (!ids) return;
    this.ids = ids;
    for (const part of [reader.encode, reader.decode]) part.flat("given weights").set(this.given("weights"));
    reader.read(ids, 1);
    yield arrays(reader.encode, READ);
    const written = [];
    for (const id of reader.writing()) {
      const chances = reader.decode.flat("chances");
      const best = [...chances.keys()].sort((a, b) => chances[b] - chances[a]).slice(0, BEST);
      written.push(id);
      const word = { shown: this.show(id), chance: chances[id], best: best.map((each) => [this.show(each), chances[each]]) };
      const last = written.length === LENGTH || id === END;
      yield { ...arrays(reader.decode, WROTE), word, last, text: reader.text(written) };
    }
  }

  /** Read the German that would be right: the loss, and the gradients all the way back. */
  *back(text) {
    const { ids, why } = TAKES.translator(this.reader, text, "äöüß");
    yield { why, refused: !ids };
    if (!ids) return;
    this.goal = [...ids, END];
    const given = { source: [...this.ids, END], target: [START, ...ids], wanted: this.goal };
    for (const [name, all] of Object.entries(given)) this.learner.set(`given ${name}`, this.reader.padded(all));
    yield this.learned();
  }

  /** Let Adam's step count, and do the next. */
  *train() {
    for (const name of STATE) this.given(name).set(this.learner.flat(`${name} after`));
    yield this.learned();
  }

  learned() {
    const { learner, goal } = this;
    learner.run();
    const [chances, size] = [learner.flat("chances"), learner.names.chances[2]];
    const words = goal.map((id, t) => {
      const row = chances.subarray(t * size, (t + 1) * size);
      return { shown: this.show(id), chance: row[id], instead: this.show(row.indexOf(Math.max(...row))) };
    });
    const flows = ["encoder", "decoder", "cross", "encoder streams", "decoder streams"].map((name) => `${name} back`);
    const loss = learner.flat("loss")[0];
    return { ...arrays(learner, [...READ, ...WROTE, ...flows]), words, loss, steps: this.given("steps")[0], sure: words.every(({ chance }) => chance >= SURE) };
  }
}

const arrays = (replay, names) => Object.fromEntries(names.map((name) => [name, Float32Array.from(replay.flat(name))]));

const clamp = (x) => Math.min(1, Math.max(0, x));
const smooth = (x) => clamp(x) ** 2 * (3 - 2 * clamp(x));
const mix = (a, b, x) => a + (b - a) * x;
const within = (u, begin, end) => clamp((u - begin) / (end - begin));
const range = (count) => Array.from({ length: count }, (_, n) => n);
const percent = (chance) => `${Math.floor(100 * chance + 0.5)} %`;
const place = (layer, head, t, s) => ((layer * HEADS + head) * LENGTH + t) * LENGTH + s;
const [CELLS, WIDTH] = [20, 80]; // a vector of 80 numbers is drawn in rows of 20
const SEEN = 0.03; // attention below this has no line

/** The picture: where everything stands, and how it is drawn into a canvas. */
class Stage {
  constructor(canvas) {
    this.canvas = canvas;
    this.settled = element("canvas");
    this.pen = canvas.getContext("2d");
    this.settledPen = this.settled.getContext("2d");
  }

  /** Measure the canvas, and choose places for a source and a target of these lengths. */
  fit(source, target) {
    const { canvas, settled, pen, settledPen } = this;
    canvas.style.minHeight = `${(canvas.clientWidth < 640 ? 100 : 150) + 13 * (source + target)}px`; // or the words would overlap
    const [wide, high, sharp] = [canvas.clientWidth, canvas.clientHeight, Math.min(2, devicePixelRatio)];
    Object.assign(this, { wide, high, small: wide < 640, counts: { encoder: source, decoder: target } });
    for (const each of [canvas, settled]) [each.width, each.height] = [wide * sharp, high * sharp];
    for (const each of [pen, settledPen]) each.setTransform(sharp, 0, 0, sharp, 0, 0);
    const style = getComputedStyle(canvas);
    this.font = style.fontFamily;
    this.colour = Object.fromEntries(["ink", "soft", "line", "query", "key", "value", "forward", "backward", "wrong"].map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
    this.signs = signs();
    [this.words, this.strip] = this.small ? [62, 16] : [118, 40];
    this.look(this.near ?? 0);
  }

  /** How near the encoder is: at 1 it has the stage for itself, at 0 the decoder is below it. */
  look(near) {
    const { high, small, counts } = this;
    const [head, shelf, most] = small ? [18, 74, 26] : [24, 116, 34];
    const both = Math.min(most, (high - head - shelf - 8) / (counts.encoder + counts.decoder));
    const alone = Math.min(1.5 * most, (high - 2 * head) / counts.encoder);
    const spare = high - head - shelf - 8 - both * (counts.encoder + counts.decoder);
    this.near = near;
    this.out = mix(small ? 88 : 205, small ? 6 : 40, near);
    this.band = (this.wide - this.words - this.out - 4 * this.strip) / 3;
    this.pitch = { encoder: mix(both, alone, near), decoder: both };
    const top = { encoder: mix(head + 0.3 * spare, (high - alone * counts.encoder) / 2 + 6, near) };
    this.shelf = top.encoder + this.pitch.encoder * counts.encoder + (small ? 24 : 34) + 0.2 * spare;
    top.decoder = this.shelf + (small ? 50 : 82) + 0.2 * spare;
    this.top = top;
  }

  size(side) {
    return Math.max(11, Math.min(this.small ? 15 : 20, 0.72 * this.pitch[side]));
  }

  y(side, row) {
    return this.top[side] + this.pitch[side] * (row + 0.5);
  }

  /** Where the vectors stand that enter a layer, or leave the last one. */
  x(layer) {
    return this.words + layer * (this.strip + this.band);
  }

  /** Where a head of self-attention has its lane, or the network its place: [left, right]. */
  lane(side, layer, head) {
    const [begin, wide] = [this.x(layer) + this.strip, this.band];
    if (head === HEADS) return [begin + 0.84 * wide, begin + 0.98 * wide];
    const each = (side === "encoder" ? 0.8 : 0.42) / HEADS;
    return [begin + (0.03 + head * each) * wide, begin + (0.03 + (head + 0.86) * each) * wide];
  }

  /** Where a head of cross-attention meets the decoder's rows. */
  crossing(layer, head) {
    return this.x(layer) + this.strip + (0.53 + 0.085 * head) * this.band;
  }

  /** Where a vector waits on the shelf for the decoder. */
  slot(s) {
    const [left, right] = [this.small ? 18 : this.words, this.wide - (this.small ? 18 : this.out)];
    return left + ((right - left) * (s + 0.5)) / this.counts.encoder;
  }

  /** The word below it; where many are crowded, in two lines. */
  label(pen, word, s, more) {
    const room = 0.94 * (this.slot(1) - this.slot(0));
    const lines = room < (this.small ? 30 : 44) ? 2 : 1;
    const y = this.shelf + (this.small ? 8 : 10) + (lines - 1) * (s % 2 ? 5 : -5);
    this.fitted(pen, word, this.slot(s), y, room * lines, { align: "center", ...more });
  }

  text(pen, words, x, y, { alpha = 1, colour = "ink", align = "left", size = this.size("decoder"), weight = 400 } = {}) {
    pen.globalAlpha = clamp(alpha);
    pen.fillStyle = this.colour[colour];
    pen.font = `${weight} ${Math.round(2 * size) / 2}px ${this.font}`; // few sizes, so that their glyphs are kept
    [pen.textAlign, pen.textBaseline] = [align, "middle"];
    pen.fillText(words, x, y);
    pen.globalAlpha = 1;
  }

  /** Words that may take only so much room: they become narrower, never shorter. */
  fitted(pen, words, x, y, room, more = {}) {
    pen.font = `${more.weight ?? 400} ${more.size ?? this.size("decoder")}px ${this.font}`;
    const wide = pen.measureText(words).width;
    pen.save();
    pen.translate(x, y);
    pen.scale(Math.min(1, room / wide), 1);
    this.text(pen, words, 0, 0, more);
    pen.restore();
  }

  /** Vectors (layers + 1, LENGTH, 80) as a sheet of little pictures, blue above 0, orange below. */
  sheet(vectors) {
    const sheet = element("canvas", { width: (LAYERS + 1) * CELLS, height: (LENGTH * WIDTH) / CELLS });
    const image = new ImageData(sheet.width, sheet.height);
    for (let n = 0; n < (LAYERS + 1) * LENGTH; n++) {
      const vector = vectors.subarray(n * WIDTH, (n + 1) * WIDTH);
      const most = Math.max(1e-12, ...vector.map(Math.abs));
      for (let k = 0; k < WIDTH; k++) {
        const row = (n % LENGTH) * (WIDTH / CELLS) + Math.floor(k / CELLS);
        const at = 4 * (row * sheet.width + Math.floor(n / LENGTH) * CELLS + (k % CELLS));
        image.data.set(this.signs[vector[k] < 0 ? 1 : 0], at);
        image.data[at + 3] = 255 * Math.sqrt(Math.abs(vector[k]) / most);
      }
    }
    sheet.getContext("2d").putImageData(image, 0, 0);
    return sheet;
  }

  vector(pen, sheet, side, layer, row, x, y, alpha = 1) {
    if (!sheet || alpha <= 0) return;
    const [wide, high] = [this.strip, Math.min(this.small ? 10 : 16, 0.6 * this.pitch[side])];
    pen.globalAlpha = clamp(alpha);
    pen.imageSmoothingEnabled = false;
    pen.drawImage(sheet, layer * CELLS, row * 4, CELLS, 4, x, y - high / 2, wide, high);
    pen.globalAlpha = 1;
  }

  line(pen, points, colour, width, alpha) {
    [pen.strokeStyle, pen.lineWidth, pen.globalAlpha] = [colour, width, clamp(alpha)];
    pen.beginPath();
    for (const [x, y] of points) pen.lineTo(x, y);
    pen.stroke();
    pen.globalAlpha = 1;
  }

  spark(pen, x, y, size, colour) {
    pen.fillStyle = this.colour[colour];
    for (const [radius, alpha] of [[2.6, 0.18], [1, 1]]) {
      pen.globalAlpha = alpha;
      pen.beginPath();
      pen.arc(x, y, size * radius * (1 + 0.5 * this.near), 0, 7);
      pen.fill();
    }
    pen.globalAlpha = 1;
  }

  /** The stream of a row through a layer, as far as `front`; in the network it widens. */
  stream(pen, side, layer, row, { colour = "soft", width = 1, alpha = 0.3 } = {}) {
    const [begin, end, y] = [this.x(layer) + this.strip, this.x(layer + 1), this.y(side, row)];
    const [[left, right], bulge] = [this.lane(side, layer, HEADS), Math.min(9, 0.42 * this.pitch[side])];
    [pen.strokeStyle, pen.lineWidth, pen.globalAlpha] = [this.colour[colour], width, clamp(alpha)];
    pen.beginPath();
    pen.moveTo(begin, y);
    pen.lineTo(end, y);
    for (const way of [-1, 1]) {
      pen.moveTo(left, y);
      pen.bezierCurveTo(mix(left, right, 0.3), y + way * bulge, mix(left, right, 0.7), y + way * bulge, right, y);
    }
    pen.stroke();
    pen.globalAlpha = 1;
  }

  /** A colour that goes from what is looked at to what looks. */
  blend(pen, x0, y0, x1, y1) {
    const made = pen.createLinearGradient(x0, y0, x1, y1);
    made.addColorStop(0.1, this.colour.key);
    made.addColorStop(0.9, this.colour.query);
    return made;
  }

  /** Self-attention: in the lane of each head, a line from each row to each that looks at it. */
  lanes(pen, side, layer, rows, weights, { strength = 1, front = null, back = false } = {}) {
    for (const head of range(HEADS)) {
      const [left, right] = this.lane(side, layer, head);
      pen.strokeStyle = back ? this.colour.backward : this.blend(pen, left, 0, right, 0);
      const [at, sparks] = [front === null ? -1 : (front - left) / (right - left), []];
      for (const t of rows) {
        for (let s = 0; s < this.counts[side]; s++) {
          const weight = weights[place(layer, head, t, s)];
          if (weight < SEEN) continue;
          const [y0, y1] = [this.y(side, s), this.y(side, t)];
          if (at > 0 && at < 1) sparks.push([mix(y0, y1, smooth(at)), weight]);
          if (!strength) continue;
          [pen.globalAlpha, pen.lineWidth] = this.thick(weight, strength);
          pen.beginPath();
          pen.moveTo(left, y0);
          pen.bezierCurveTo(mix(left, right, 1 / 3), y0, mix(left, right, 2 / 3), y1, right, y1);
          pen.stroke();
        }
      }
      for (const [y, weight] of sparks) this.spark(pen, front, y, (this.small ? 0.8 : 1) * (0.5 + 2 * Math.sqrt(weight)), back ? "backward" : "value");
    }
    pen.globalAlpha = 1;
  }

  /** How opaque and how wide a line is. */
  thick(weight, strength) {
    return [strength * Math.min(1, 0.08 + 1.5 * weight), 0.6 + (this.small ? 2 : 4) * weight];
  }

  /** Cross-attention: lines from the shelf, where the source waits, to the rows that look at it. */
  cross(pen, layer, rows, weights, { strength = 1, drawn = () => 1, back = false } = {}) {
    const above = this.shelf + (this.small ? 18 : 24);
    for (const t of rows) {
      const y = this.y("decoder", t);
      const colour = back ? this.colour.backward : this.blend(pen, 0, above, 0, y);
      for (const head of range(HEADS)) {
        const [x, far] = [this.crossing(layer, head), drawn(head)];
        for (let s = 0; s < this.counts.encoder && far > 0; s++) {
          const weight = weights[place(layer, head, t, s)];
          if (weight < SEEN) continue;
          const along = (n) => ((back ? 24 - n * far : n * far) / 24);
          const points = range(25).map(along).map((v) => [mix(this.slot(s), x, smooth(v)), mix(above, y, v)]);
          const [alpha, width] = this.thick(weight, strength);
          if (strength) this.line(pen, points, colour, width, alpha);
          if (far < 1) this.spark(pen, ...points.at(-1), 0.5 + 2 * Math.sqrt(weight), back ? "backward" : "value");
        }
      }
    }
  }
}

/** The figure: what is known so far, the clock, and what a reader does. */
class Opening {
  constructor(figure, text) {
    Object.assign(this, { figure, turn: 0, clock: 0, speed: 1, segments: [], settledTo: 0, known: {}, words: [], losses: [] });
    const find = (selector) => figure.querySelector(selector);
    [this.english, this.german, this.why, this.says, this.writes, this.range] = ["[name=english]", "[name=german]", ".why", ".says", ".writes", "[type=range]"].map(find);
    [this.playing, this.trainButton, this.forgetButton] = ["play", "train", "forget"].map((name) => find(`[name=${name}]`));
    this.first = { english: this.english.value, german: this.german.value };
    this.stage = new Stage(find("canvas"));
    this.still = matchMedia("(prefers-reduced-motion: reduce)").matches;
    this.paused = this.still;
    this.known.source = [...this.english.value.match(/\w+|[.]/g), "⟨end⟩"]; // until the worker says it
    const submit = (form, act) => form.addEventListener("submit", (event) => (event.preventDefault(), act()));
    submit(this.english.form, () => this.read());
    submit(this.german.form, () => this.back());
    this.trainButton.addEventListener("click", () => this.train());
    this.forgetButton.addEventListener("click", () => (this.worker.postMessage([0, "forget"]), this.read()));
    this.playing.addEventListener("click", () => this.play());
    this.range.addEventListener("input", () => this.at(Number(this.range.value) * this.length, true));
    new IntersectionObserver(([{ isIntersecting }]) => (this.seen = isIntersecting)).observe(this.stage.canvas);
    new ResizeObserver(() => this.refit()).observe(this.stage.canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.recolour());
    const pointed = ({ offsetX, offsetY }) => (this.pointer = [offsetX, offsetY], this.paused && this.draw());
    for (const event of ["pointermove", "pointerdown"]) this.stage.canvas.addEventListener(event, pointed);
    this.stage.canvas.addEventListener("pointerleave", () => (this.pointer = null));
    this.begin([this.entering()]);
    this.refit();
    this.showPlaying();
    requestAnimationFrame((now) => this.frame(now));
    addEventListener("DOMContentLoaded", () => this.start(text));
  }

  /** Start the worker from this script's own text, since a page from a folder may load no other. */
  start(text) {
    this.worker = new Worker(URL.createObjectURL(new Blob([text], { type: "text/javascript" })));
    this.worker.onmessage = ({ data: [turn, part] }) => turn === this.turn && this.take(part);
    this.worker.postMessage(document.getElementById("translator").textContent);
    this.ask("read", this.english.value);
  }

  /** Ask the worker; what it still answers to earlier questions no longer counts. */
  ask(what, value) {
    this.stepped = Infinity;
    this.worker.postMessage([++this.turn, what, value]);
  }

  get length() {
    return this.segments.reduce((sum, { length }) => sum + length, 0);
  }

  /** Begin anew with these segments of time. */
  begin(segments, speed = 1) {
    Object.assign(this, { segments, speed, clock: 0, settledTo: 0, complete: false });
    this.stage.settledPen.clearRect(0, 0, 1e4, 1e4);
  }

  /** Let time pass again, if it was stopped. */
  wake() {
    this.paused = this.still;
    this.showPlaying();
  }

  read(speed = 1) {
    this.wake();
    this.asked = speed;
    this.ask("read", this.english.value);
  }

  back() {
    this.wake();
    Object.assign(this, { training: false, fresh: true, judged: this.german.value });
    this.ask("back", this.judged);
  }

  train() {
    this.wake();
    const more = this.losses.length && !this.fresh && this.judged === this.german.value;
    if (!more) this.back();
    this.training = true;
    if (more) this.ask("train");
  }

  become(mode) {
    this.mode = mode;
    this.trainButton.disabled = mode === "train";
  }

  /** Take a part of an answer. */
  take(part) {
    if ("why" in part) {
      this.why.textContent = part.why;
      if (part.refused) this.training = false;
      if (part.source) {
        this.become("read");
        this.training = false;
        Object.assign(this, { known: { source: part.source }, words: [], fresh: true });
        if (this.asked) this.begin([this.entering()], this.asked);
        this.asked ??= 1;
        this.refit();
      }
      return;
    }
    Object.assign(this.known, part);
    for (const name of SHEETS) {
      if (part[name]) this.known[`${name} drawn`] = this.stage.sheet(part[name]);
    }
    if (part.words) this.learned(part);
    else if (part.word) this.wrote(part);
    else this.segments.push(...range(LAYERS).map((layer) => this.encoding(layer)), this.remembering());
    if (this.still) this.at(this.length);
  }

  wrote({ word, last, text }) {
    this.words.push(word);
    if (this.words.length > this.stage.counts.decoder) this.refit();
    this.segments.push(this.writing(this.words.length - 1));
    if (!last) return;
    this.complete = true;
    const first = this.english.value === this.first.english;
    if (this.asked === 1) this.german.value = first ? this.first.german : text.replace(/ (?=[,.])/g, "");
    const again = "Point at a word to see where it looks. Is the German wrong? Correct it below, press Back to see which numbers are to blame, then Train.";
    const taught = `After ${this.taught} step${this.taught === 1 ? "" : "s"} on this one pair the model writes the right German. What has it forgotten meanwhile? Try another sentence.`;
    this.closing = this.asked > 1 ? taught : first ? this.figure.dataset.closing : again;
  }

  /** The normalised flows of the gradient, and what is shown of them. */
  learned({ words, loss, sure }) {
    const flows = ["encoder back", "decoder back", "cross back"].map((name) => this.known[name]);
    const most = Math.max(...flows.map((flow) => flow.reduce((so, x) => Math.max(so, x), 0)), 1e-12);
    for (const flow of flows) flow.forEach((x, n) => (flow[n] = (x / most) ** 0.7));
    this.lengths = Object.fromEntries(["encoder", "decoder"].map((side) => [side, lengths(this.known[`${side} streams back`])]));
    this.former = this.fresh ? words : this.words;
    Object.assign(this, { words, stepped: performance.now() });
    this.losses = this.fresh ? [loss] : [...this.losses, loss];
    this.fresh = false;
    this.become(this.training ? "train" : "back");
    if (this.training) {
      this.sure = sure;
      this.begin([this.picture(0.45), { length: 0.01, draw() {} }]);
      this.clock = this.length;
    } else {
      const layers = range(LAYERS).reverse();
      this.begin([this.picture(0.5), this.judging(), ...layers.map((layer) => this.decoderBack(layer)), this.returning(), ...layers.map((layer) => this.encoderBack(layer)), this.arriving()]);
      this.complete = true;
    }
    this.refit();
  }

  /** Measure again, and draw anew. */
  refit() {
    const { stage, known, words } = this;
    stage.fit(known.source.length, Math.max(known.source.length, words.length));
    this.settledTo = 0;
    this.draw();
  }

  recolour() {
    this.refit();
    for (const name of SHEETS) if (this.known[name]) this.known[`${name} drawn`] = this.stage.sheet(this.known[name]);
    this.refit();
  }

  /** Let the time be `clock`; a hand on the slider also stops it. */
  at(clock, stop = false) {
    this.clock = Math.min(clock, this.length);
    if (stop && !this.paused) this.play();
    this.draw();
  }

  /** Go on or stop; where motion is not wanted, one step. */
  play() {
    if (this.still) {
      let end = 0;
      for (const { length } of this.segments) if ((end += length) > this.clock + 1e-6) return this.at(end);
      return this.at(this.segments[0].length);
    }
    this.paused = !this.paused;
    this.showPlaying();
  }

  showPlaying() {
    this.playing.textContent = this.still ? "Next step ▸" : this.paused ? "▶ Play" : "❚❚ Pause";
  }

  frame(now) {
    const passed = Math.min(0.1, (now - (this.before ?? now)) / 1000);
    this.before = now;
    const moves = this.seen && !this.paused;
    if (this.mode === "train" && (this.still || moves) && now - this.stepped > STEP) this.nextStep();
    if (moves) {
      this.clock = Math.min(this.clock + passed * this.speed, this.length);
      this.idle = this.complete && this.clock === this.length ? (this.idle ?? 0) + passed : 0;
      this.draw();
    }
    requestAnimationFrame((next) => this.frame(next));
  }

  /** After a step of training: the next, or, if it is sure, the translation once more. */
  nextStep() {
    if (!this.sure) return this.ask("train");
    this.taught = this.known.steps;
    this.read(2);
  }

  /** Draw what is settled at this time, and the segment in progress. */
  draw() {
    const { stage, segments } = this;
    let [index, begin] = [0, 0];
    while (index < segments.length - 1 && begin + segments[index].length <= this.clock) begin += segments[index++].length;
    const u = clamp((this.clock - begin) / segments[index].length);
    const near = segments[index].near?.(u) ?? 0;
    if (near !== stage.near) {
      stage.look(near);
      this.settledTo = 0;
    }
    if (this.settledTo > index || !this.settledTo) {
      stage.settledPen.clearRect(0, 0, stage.wide, stage.high);
      this.settledTo = 0;
    }
    while (this.settledTo < index) segments[this.settledTo++].draw(stage.settledPen, 1);
    const { pen, wide, high, settled } = stage;
    pen.clearRect(0, 0, wide, high);
    if (index) pen.drawImage(settled, 0, 0, wide, high);
    segments[index].draw(pen, u);
    if (this.mode === "train") this.sweep(pen);
    else if (this.complete && this.clock === this.length) this.lookAgain(pen);
    this.say(this.mode === "read" && this.complete && this.clock === this.length ? this.closing : segments[index].say);
    this.spell(index, u);
    const far = Math.round((1000 * this.clock) / this.length);
    if (document.activeElement !== this.range && Math.abs(far - this.shown) > 4) this.range.value = (this.shown = far) / 1000;
    this.shown ??= far;
  }

  /** The German as far as it is written. */
  spell(index, u) {
    const whole = this.mode === "read" ? this.words.slice(0, Math.max(0, index - LAYERS - 2 + (u > 0.9))) : this.words;
    const text = whole.map(({ shown }) => shown).filter((shown) => shown !== "⟨end⟩").join(" ").replace(/ ‑| (?=[.,])/g, "");
    if (text !== this.spelt) this.writes.textContent = this.spelt = text;
  }

  say(words) {
    if (this.mode === "train") words = `Step ${this.known.steps}: forward, back, and every weight moves a little. The loss is now ${this.losses.at(-1).toFixed(3)}.`;
    if (words !== this.said) this.says.textContent = this.said = words;
  }

  // The segments: how long each takes, what is said, and how it is drawn when a share u of it is over.

  /** The sentence stands large, and its pieces fly to their places. */
  entering() {
    const draw = (pen, u) => {
      const { stage, known } = this;
      const size = stage.small ? 20 : 36;
      pen.font = `500 ${size}px ${stage.font}`;
      const room = stage.wide - 40;
      let lines = [[]], wide = 0;
      known.source.forEach((piece, n) => {
        const begins = !/^[‑.,]/.test(piece); // else it stands close to the piece before
        const [own, gap] = [pen.measureText(piece.replace("‑", "")).width, begins && wide ? 0.3 * size : 0];
        if (begins && wide + own > room) [lines, wide] = [[...lines, []], -gap];
        lines.at(-1).push([n, piece, (wide += gap), own]);
        wide += own;
      });
      lines.forEach((line, row) => {
        const [, , last, own] = line.at(-1);
        const left = (stage.wide - last - own) / 2;
        for (const [n, piece, x, width] of line) {
          const far = smooth(within(u, 0.22 + (0.3 * n) / known.source.length, 0.5 + (0.35 * n) / known.source.length));
          const to = stage.words - 8;
          const [x0, y0] = [left + x + width, 0.4 * stage.high + 1.4 * size * (row - (lines.length - 1) / 2)];
          const y1 = stage.y("encoder", n);
          const many = mix(size, stage.size("encoder"), far);
          if (far === 1) stage.fitted(pen, piece, to, y1, stage.words - 10, { align: "right", size: many });
          else stage.text(pen, far ? piece : piece.replace("‑", ""), mix(x0, to, far), mix(y0, y1, far), { size: many, align: "right", weight: 500, alpha: piece === "⟨end⟩" ? within(u, 0.1, 0.25) : 1 });
          stage.vector(pen, known["encoder streams drawn"], "encoder", 0, n, stage.x(0), y1, within(u, 0.85, 1) * (far === 1));
        }
      });
    };
    return { length: 1.5, near: () => 1, draw, say: "An English sentence, cut into pieces that the model knows. Each piece becomes 80 numbers." };
  }

  encoding(layer) {
    const says = [
      "Encoder: every word looks at every word, in four heads at once. A thick line means much attention.",
      "Layer 2 looks again, at what layer 1 has made of the words. Every column is a head, and looks in its own way.",
      "After layer 3, each word’s 80 numbers also tell of the words around it.",
    ];
    const draw = (pen, u) => {
      const { stage, known } = this;
      const rows = range(known.source.length);
      const front = mix(stage.x(layer) + stage.strip, stage.x(layer + 1), within(u, 0, 0.92));
      this.heading(pen, "encoder", layer, within(u, 0, 0.2));
      this.revealed(pen, 0, front, () => {
        for (const row of rows) stage.stream(pen, "encoder", layer, row);
        stage.lanes(pen, "encoder", layer, rows, known.encoder, { strength: mix(1, 0.62, within(u, 0.85, 1)) });
      });
      if (u < 0.92) {
        stage.lanes(pen, "encoder", layer, rows, known.encoder, { strength: 0, front });
        for (const row of rows) stage.spark(pen, front, stage.y("encoder", row), stage.small ? 1 : 1.5, "forward");
      }
      for (const row of rows) stage.vector(pen, known["encoder streams drawn"], "encoder", layer + 1, row, stage.x(layer + 1), stage.y("encoder", row), within(u, 0.9, 1));
    };
    return { length: 0.8, near: () => 1, draw, say: says[layer] };
  }

  /** The vectors go to the shelf between encoder and decoder. */
  remembering() {
    const draw = (pen, u) => this.moved(pen, (n, count) => smooth(within(u, (0.4 * n) / count, 0.6 + (0.4 * n) / count)), "encoder streams drawn");
    return { length: 0.9, near: (u) => 1 - smooth(within(u, 0, 0.7)), draw, say: "What the encoder found waits here for the decoder: 80 numbers for every piece of the sentence." };
  }

  /** The vectors on their way to the shelf; far(n, count) is how far each has come. */
  moved(pen, far, name, colour = "soft") {
    const { stage, known } = this;
    known.source.forEach((piece, n) => {
      const [way, x, y] = [far(n, known.source.length), stage.slot(n) - stage.strip / 2, stage.shelf - (stage.small ? 10 : 12)];
      if (way > 0) stage.vector(pen, known[name], "encoder", LAYERS, n, mix(stage.x(LAYERS), x, way), mix(stage.y("encoder", n), y, smooth(way)));
      stage.label(pen, piece, n, { alpha: within(way, 0.7, 1), colour });
    });
  }

  /** The decoder writes the word of a row. */
  writing(row) {
    const word = this.words[row];
    const draw = (pen, u) => {
      const { stage, known } = this;
      const [y, front] = [stage.y("decoder", row), mix(stage.words, stage.x(LAYERS), within(u, 0.08, 0.66))];
      const settling = mix(1, 0.5, within(u, 0.85, 1));
      this.input(pen, row, within(u, 0, 0.14));
      if (row === 0) range(LAYERS).forEach((layer) => this.heading(pen, "decoder", layer, within(u, 0.1, 0.3)));
      stage.vector(pen, known["decoder streams drawn"], "decoder", 0, row, stage.x(0), y, within(u, 0.06, 0.14));
      for (const layer of range(LAYERS)) {
        this.revealed(pen, 0, front, () => {
          stage.stream(pen, "decoder", layer, row);
          stage.lanes(pen, "decoder", layer, [row], known.decoder, { strength: settling });
        });
        const lead = 0.5 * stage.band;
        stage.cross(pen, layer, [row], known.cross, { strength: mix(1, 0.07, within(u, 0.8, 1)), drawn: (head) => clamp((front - stage.crossing(layer, head) + lead) / lead) });
        if (u < 0.66) stage.lanes(pen, "decoder", layer, [row], known.decoder, { strength: 0, front });
        stage.vector(pen, known["decoder streams drawn"], "decoder", layer + 1, row, stage.x(layer + 1), y, clamp((front - stage.x(layer + 1)) / 20 + 1));
      }
      if (u < 0.66) stage.spark(pen, front, y, 2.4, "forward");
      if (u < 1) {
        this.lit(pen, row, within(u, 0.2, 0.5) * within(1 - u, 0, 0.15));
        this.candidates(pen, word, within(u, 0.6, 0.75), within(u, 0.8, 0.96), row);
      }
      if (u >= 0.96) this.written(pen, row);
    };
    const share = `“${word.shown}” gets ${percent(word.chance)}.`;
    const says = [`The decoder looks at the English words, and gives each of ${this.figure.dataset.symbols} pieces a probability. ${share}`, `It reads what it has written so far, looks at the English again, and goes on. ${share}`];
    return { length: [1.3, 0.95, 0.75, 0.6][row] ?? 0.5, draw, say: says[Math.min(row, 1)] };
  }

  /** What the decoder reads in a row: the start mark, or the word that it wrote before. */
  input(pen, row, u) {
    const { stage, words } = this;
    if (!u) return;
    const [shown, y, to] = [row ? words[row - 1].shown : "⟨s⟩", stage.y("decoder", row), stage.words - 8];
    const from = stage.x(LAYERS) + stage.strip + 8;
    const x = row ? mix(from + stage.words, to, smooth(u)) : to;
    const room = stage.words - 10;
    stage.fitted(pen, shown, x, mix(row ? stage.y("decoder", row - 1) : y, y, smooth(u)), room, { align: "right", alpha: mix(0.25, 1, u), colour: row ? "ink" : "soft" });
  }

  /** The words of the source, in the colour of keys, as strong as a row looks at them. */
  lit(pen, row, alpha) {
    const { stage, known } = this;
    const sums = known.source.map((_, s) => range(LAYERS * HEADS).reduce((sum, n) => sum + known.cross[place(0, n, row, s)], 0));
    const most = Math.max(...sums);
    sums.forEach((sum, s) => {
      stage.label(pen, known.source[s], s, { colour: "key", alpha: alpha * (sum / most) ** 2 });
    });
  }

  /** The most probable words beside the encoder; the first flies to its row. */
  candidates(pen, { best }, u, flown, row) {
    const { stage } = this;
    const [left, wide, size] = [stage.x(LAYERS) + stage.strip + 10, stage.out - 12, stage.small ? 12 : 16];
    const each = Math.min(stage.small ? 30 : 34, (stage.pitch.encoder * stage.counts.encoder) / BEST);
    const alpha = u * (1 - within(flown, 0.7, 1));
    best.forEach(([shown, chance], n) => {
      const y = stage.top.encoder + each * (n + 0.4);
      const far = n ? 0 : smooth(flown);
      const long = (wide - (stage.small ? 2 : 46)) * chance * smooth(u);
      pen.globalAlpha = alpha * (n ? 0.5 : 1);
      pen.fillStyle = stage.colour.forward;
      pen.fillRect(left, y + size * 0.62, long, stage.small ? 3 : 4);
      pen.globalAlpha = 1;
      if (n || !flown) stage.text(pen, percent(chance), left + wide - 4, y, { align: "right", alpha, size: size - 2, colour: "soft" });
      stage.fitted(pen, shown, left, mix(y, stage.y("decoder", row), far), wide - (stage.small ? 34 : 46), { alpha: n ? alpha : u, size: mix(size, stage.size("decoder"), far), weight: n ? 400 : 600 });
    });
  }

  /** A written word at the end of its row, with its probability. */
  written(pen, row) {
    const { stage, words } = this;
    const [left, y] = [stage.x(LAYERS) + stage.strip + 10, stage.y("decoder", row)];
    const { shown, chance } = words[row];
    stage.fitted(pen, shown, left, y, stage.out - (stage.small ? 46 : 100), { weight: 600, colour: shown === "⟨end⟩" ? "soft" : "ink" });
    this.chance(pen, row, chance);
  }

  chance(pen, row, chance, alpha = 1, colour = "forward") {
    const { stage } = this;
    const [right, y] = [stage.wide - 2, stage.y("decoder", row)];
    stage.text(pen, percent(chance), right, y, { align: "right", alpha, colour: "soft", size: Math.max(11, stage.size("decoder") - 3) });
    if (stage.small) return;
    pen.globalAlpha = 0.85 * alpha;
    pen.fillStyle = stage.colour[colour];
    pen.fillRect(right - 88, y - 2, 44 * chance, 4);
    pen.globalAlpha = 0.25 * alpha;
    pen.fillRect(right - 88, y - 2, 44, 4);
    pen.globalAlpha = 1;
  }

  heading(pen, side, layer, alpha) {
    const { stage } = this;
    const y = stage.top[side] - (stage.small ? 7 : 11);
    if (side === "decoder" && stage.small) return;
    const words = layer ? `layer ${layer + 1}` : stage.small ? side : `${side}, layer 1`;
    stage.text(pen, words, stage.x(layer) + stage.strip + 2, y, { alpha, colour: "soft", size: 11 });
  }

  /** Draw only between two places from left to right. */
  revealed(pen, left, right, draw) {
    pen.save();
    pen.beginPath();
    pen.rect(left, 0, Math.max(0, right - left), 1e4);
    pen.clip();
    draw();
    pen.restore();
  }

  /** All lines at once, faint: the ground on which the gradient flows. */
  picture(strength) {
    const draw = (pen, u) => {
      const { stage, known, words } = this;
      const [sources, targets] = [range(known.source.length), range(words.length)];
      pen.save();
      for (const layer of range(LAYERS)) {
        for (const [side, rows] of [["encoder", sources], ["decoder", targets]]) {
          this.heading(pen, side, layer, 1);
          for (const row of rows) stage.stream(pen, side, layer, row, { alpha: 0.35 * u });
          stage.lanes(pen, side, layer, rows, known[side], { strength: 0.5 * strength * u });
        }
        stage.cross(pen, layer, targets, known.cross, { strength: 0.1 * strength * u });
      }
      pen.restore();
      for (const [side, rows] of [["encoder", sources], ["decoder", targets]]) {
        for (const row of rows) range(LAYERS + 1).forEach((layer) => stage.vector(pen, known[`${side} streams drawn`], side, layer, row, stage.x(layer), stage.y(side, row), 0.5 * u));
      }
      known.source.forEach((piece, n) => stage.fitted(pen, piece, stage.words - 8, stage.y("encoder", n), stage.words - 10, { align: "right", size: stage.size("encoder") }));
      this.moved(pen, () => 1, "encoder streams drawn");
      targets.forEach((row) => this.input(pen, row, 1));
    };
    return { length: 0.6, draw, say: "The same picture with the right German: the decoder now reads it, and has to say the next piece at every position." };
  }

  /** The right words, and how improbable they were. */
  judging() {
    const draw = (pen, u) => {
      this.verdicts(pen, u);
      this.curve(pen, u);
    };
    const wrong = this.words.filter(({ shown, instead }) => shown !== instead).length;
    const say = `Beside each row stands the right piece with the probability it got${wrong ? "; crossed out is a piece that got more" : ""}. The loss sums this up: ${this.losses[0].toFixed(3)}.`;
    return { length: 1, draw, say };
  }

  verdicts(pen, u) {
    const { stage, words, former } = this;
    const left = stage.x(LAYERS) + stage.strip + 10;
    words.forEach(({ shown, chance, instead }, row) => {
      const [y, before] = [stage.y("decoder", row), former[row]?.chance ?? chance];
      const room = stage.out - (stage.small ? 42 : 100);
      const wrong = shown !== instead;
      stage.fitted(pen, shown, left, y, wrong ? room * 0.5 : room, { weight: 600, alpha: u });
      this.chance(pen, row, mix(before, chance, u), u, wrong ? "wrong" : "forward");
      if (!wrong) return;
      const wide = Math.min(room * 0.42, pen.measureText(instead).width);
      stage.fitted(pen, instead, left + room * 0.58, y, room * 0.42, { colour: "wrong", alpha: u, size: stage.size("decoder") - 1 });
      stage.line(pen, [[left + room * 0.58 - 2, y], [left + room * 0.58 + wide, y]], stage.colour.wrong, 1.4, u);
    });
  }

  /** The loss of every step so far, beside the encoder. */
  curve(pen, u) {
    const { stage, losses } = this;
    const [left, wide, top] = [stage.x(LAYERS) + stage.strip + 12, stage.out - 24, stage.top.encoder + 22];
    const high = Math.min(120, stage.pitch.encoder * stage.counts.encoder - 40);
    const most = Math.max(losses[0], 0.05) * 1.05;
    stage.text(pen, stage.small ? `loss ${losses.at(-1).toFixed(3)}` : `loss ${losses.at(-1).toFixed(3)}${losses.length > 1 ? `, step ${losses.length - 1}` : ""}`, left, stage.top.encoder + 4, { size: stage.small ? 12 : 14, weight: 600, alpha: u });
    stage.line(pen, [[left, top + high], [left + wide, top + high]], stage.colour.line, 1, u);
    const points = losses.map((loss, n) => [left + (wide * n) / Math.max(10, losses.length - 1), top + high * (1 - loss / most)]);
    stage.line(pen, points, stage.colour.backward, 2, u);
    stage.spark(pen, ...points.at(-1), 2.5 * u, "backward");
  }

  /** One layer of a side backward: the gradient comes from the right. */
  flowing(pen, side, layer, u) {
    const { stage, known, words } = this;
    const rows = range(side === "encoder" ? known.source.length : words.length);
    const front = mix(stage.x(layer + 1) + stage.strip, stage.x(layer) + stage.strip, within(u, 0, 0.94));
    const most = Math.max(...this.lengths.encoder.flat(), ...this.lengths.decoder.flat(), 1e-12);
    const strong = (at, row) => Math.sqrt(this.lengths[side][at][row] / most);
    this.revealed(pen, front, 1e4, () => {
      for (const row of rows) stage.stream(pen, side, layer, row, { colour: "backward", width: 0.5 + 2.5 * strong(layer, row), alpha: 0.15 + 0.6 * strong(layer, row) });
      stage.lanes(pen, side, layer, rows, known[`${side} back`], { back: true, strength: 0.8 });
    });
    if (side === "decoder") {
      const lead = 0.4 * stage.band;
      stage.cross(pen, layer, rows, known["cross back"], { back: true, strength: mix(0.55, 0.28, within(u, 0.8, 1)), drawn: (head) => clamp((stage.crossing(layer, head) - front) / lead) });
    }
    if (u < 0.94) {
      stage.lanes(pen, side, layer, rows, known[`${side} back`], { strength: 0, front, back: true });
      for (const row of rows) stage.spark(pen, front, stage.y(side, row), 0.4 + 2 * strong(layer + 1, row), "backward");
    }
    for (const row of rows) stage.vector(pen, known[`${side} streams back drawn`], side, layer, row, stage.x(layer), stage.y(side, row), within(u, 0.9, 1) * (0.2 + 0.8 * strong(layer, row)));
  }

  decoderBack(layer) {
    const draw = (pen, u) => this.flowing(pen, "decoder", layer, u);
    return { length: 1, draw, say: "Backward: the gradient of the loss flows through the same lines, the other way. The thicker a line, the more gradient it carries." };
  }

  /** The gradient leaves the shelf for the encoder. */
  returning() {
    const draw = (pen, u) => {
      this.moved(pen, (n, count) => 1 - smooth(within(u, (0.4 * n) / count, 0.6 + (0.4 * n) / count)), "encoder streams back drawn", "backward");
    };
    return { length: 0.8, draw, say: "Through cross-attention the gradient reaches what the encoder found, and flows on into the encoder." };
  }

  encoderBack(layer) {
    const draw = (pen, u) => this.flowing(pen, "encoder", layer, u);
    return { length: 0.8, draw, say: "Each layer passes the gradient on: how the loss would change with each of a piece’s 80 numbers." };
  }

  /** The gradient has come to the words. */
  arriving() {
    const draw = (pen, u) => {
      const { stage, lengths: all } = this;
      for (const side of ["encoder", "decoder"]) {
        const most = Math.max(...all[side][0], 1e-12);
        all[side][0].slice(0, stage.counts[side]).forEach((long, row) => {
          const [y, wide] = [stage.y(side, row) + 0.42 * stage.pitch[side], ((stage.words - 14) * long * smooth(u)) / most];
          stage.line(pen, [[stage.words - 8, y], [stage.words - 8 - wide, y]], stage.colour.backward, 2.5, 0.9);
        });
      }
    };
    return { length: 1, draw, say: `The gradient has reached the words. Now each of the ${this.figure.dataset.weights} weights has one: how the loss changes with this weight. Train moves every weight against its gradient.` };
  }

  /** While it trains: a front forward and a front back, again and again. */
  sweep(pen) {
    const { stage, known, words } = this;
    const u = this.stepped === Infinity ? 1 : clamp((performance.now() - this.stepped) / STEP);
    this.verdicts(pen, smooth(within(u, 0, 0.4)));
    this.curve(pen, 1);
    if (this.still) return;
    const back = u > 0.45;
    const far = back ? 1 - within(u, 0.5, 1) : within(u, 0, 0.42);
    const front = mix(stage.x(0) + stage.strip, stage.x(LAYERS), far);
    const layer = Math.min(LAYERS - 1, Math.floor((front - stage.x(0)) / (stage.strip + stage.band)));
    for (const [side, count] of [["encoder", known.source.length], ["decoder", words.length]]) {
      const rows = range(count);
      stage.lanes(pen, side, layer, rows, known[back ? `${side} back` : side], { strength: back ? 0.8 : 1, front, back });
      for (const row of rows) stage.spark(pen, front, stage.y(side, row), 1.6, back ? "backward" : "forward");
    }
    stage.cross(pen, layer, range(words.length), known[back ? "cross back" : "cross"], { strength: 0.3, back });
  }

  /** When all is written: the words light up in turn, or that to which a reader points. */
  lookAgain(pen) {
    if (this.mode !== "read") return;
    const { stage, known, words } = this;
    let [row, strength] = [Math.floor(this.idle / 1.4) % words.length, Math.sin(Math.PI * ((this.idle / 1.4) % 1))];
    if (this.pointer) {
      const [, y] = this.pointer;
      const [above, below] = ["encoder", "decoder"].map((side) => Math.floor((y - stage.top[side]) / stage.pitch[side]));
      if (above >= 0 && above < known.source.length) {
        for (const layer of range(LAYERS)) stage.lanes(pen, "encoder", layer, [above], known.encoder);
        return;
      }
      if (below >= 0 && below < words.length) [row, strength] = [below, 1];
    } else if (this.still) return;
    for (const layer of range(LAYERS)) {
      stage.lanes(pen, "decoder", layer, [row], known.decoder, { strength });
      stage.cross(pen, layer, [row], known.cross, { strength });
    }
    this.lit(pen, row, strength);
    const left = stage.x(LAYERS) + stage.strip + 10;
    stage.line(pen, [[left, stage.y("decoder", row) + 0.45 * stage.pitch.decoder], [left + 40, stage.y("decoder", row) + 0.45 * stage.pitch.decoder]], stage.colour.query, 2, strength);
  }
}

/** The length of every vector (layers + 1, LENGTH, 80), by layer and row. */
const lengths = (vectors) => range(LAYERS + 1).map((layer) => range(LENGTH).map((row) => Math.hypot(...vectors.subarray((layer * LENGTH + row) * WIDTH, (layer * LENGTH + row + 1) * WIDTH))));

if (globalThis.document) {
  for (const figure of document.querySelectorAll(".opening")) figure.opening = new Opening(figure, document.currentScript.textContent);
} else {
  let model = null;
  onmessage = ({ data }) => {
    if (!model) return (model = new Model(JSON.parse(data)));
    const [turn, what, value] = data;
    for (const part of model[what](value)) postMessage([turn, part]);
  };
}
