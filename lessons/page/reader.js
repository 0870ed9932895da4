import { Replay } from "./replay.js";

// The translator and the model that reverses words, as lesson 11 and the home page run them: they
// repeat numformer's own forward, which lesson_11/small.py recorded, on what a reader chooses.

export const START = 1;
export const END = 2;
export const SPACE = "▁";

/** The number that 16 bits stand for. */
const half = (bits) => {
  const [sign, exponent, fraction] = [bits & 0x8000 ? -1 : 1, (bits >> 10) & 31, bits & 1023];
  return sign * (exponent ? (1 + fraction / 1024) * 2 ** (exponent - 15) : fraction * 2 ** -24);
};

/** A model that reads and writes: it repeats the recordings of its encoder and its decoder. */
export class Reader {
  constructor({ encode, decode, weights, symbols }, length) {
    Object.assign(this, { symbols, length, ids: new Map(symbols.map((symbol, id) => [symbol, id])) });
    const bytes = Uint8Array.from(atob(weights), (letter) => letter.charCodeAt(0));
    const numbers = (this.numbers = Float64Array.from(new Uint16Array(bytes.buffer), half));
    [this.encode, this.decode] = [encode, decode].map((recording) => {
      const place = recording.names["given weights"][0];
      return new Replay({ ...recording, buffers: recording.buffers.map((begin, n) => (n === place ? numbers : begin)) });
    });
  }

  padded(ids) {
    return Array.from({ length: this.length }, (_, n) => ids[n] ?? 0);
  }

  /** Read the ids of a sentence, at a temperature. */
  read(ids, temperature) {
    for (const part of [this.encode, this.decode]) {
      part.set("given temperature", temperature);
      part.set("given source", this.padded([...ids, END]));
    }
    this.encode.run();
    this.decode.set("given memory", this.encode.get("memory"));
  }

  /** Run the decoder on what is written so far; its logits are those of the last place. */
  look(written) {
    this.decode.set("given target", this.padded([START, ...written]));
    this.decode.set("given here", [written.length]);
    this.decode.run();
  }

  /** Write the most probable symbol at each place, one after the other. */
  *writing() {
    const written = [];
    while (written.length < this.length && written.at(-1) !== END) {
      this.look(written);
      const logits = this.decode.flat("logits");
      written.push(logits.indexOf(logits.reduce((most, each) => Math.max(most, each))));
      yield written.at(-1);
    }
  }

  write() {
    return [...this.writing()];
  }

  /** Where the heads looked: for each kind a function from layer and head to rows of weights. */
  looked(rows, columns) {
    const of = (replay, name, down, across) => {
      const [[, , heads, high, wide], numbers] = [replay.names[name], replay.flat(name).slice()];
      const begin = (layer, head, row) => ((layer * heads + head) * high + row) * wide;
      return (layer, head) => Array.from({ length: down }, (_, row) => [...numbers.slice(begin(layer, head, row), begin(layer, head, row) + across)]);
    };
    return {
      encoder: of(this.encode, "encoder", columns, columns),
      decoder: of(this.decode, "decoder", rows, rows),
      cross: of(this.decode, "cross", rows, columns),
    };
  }

  /** A word's pieces: two neighbours are merged again and again, the pair of the lowest id first. */
  cut(word) {
    const pieces = [...word];
    for (;;) {
      const ranks = pieces.slice(1).map((next, n) => this.ids.get(pieces[n] + next) ?? Infinity);
      const best = Math.min(...ranks, Infinity);
      if (best === Infinity) return pieces;
      const at = ranks.indexOf(best);
      pieces.splice(at, 2, pieces[at] + pieces[at + 1]);
    }
  }

  text(ids) {
    return ids.filter((id) => id !== END).map((id) => this.symbols[id]).join("").replaceAll(SPACE, " ").trim();
  }

  shown(id) {
    return { [START]: "⟨s⟩", [END]: "⟨end⟩" }[id] ?? (this.symbols[id].replace(SPACE, "") || "␣");
  }
}

/** What a reader typed -> its ids, or why the model cannot read it. */
export const TAKES = {
  translator(reader, typed, more = "") {
    const text = typed.toLowerCase().trim().replace(/\s+/g, " ");
    const strange = text.match(new RegExp(`[^a-z${more} ,.-]`, "u"));
    if (strange) return { why: `Use only the letters a to z${more && ` and ${more}`}, spaces, commas, hyphens within words and a full stop at the end, not “${strange[0]}”.` };
    const word = `[a-z${more}]+(?:-[a-z${more}]+)*`;
    if (!new RegExp(`^${word}(?:,? ${word})*\\.?$`).test(text)) return { why: "Write words with one space, or a comma and a space, between them, and a full stop only at the end." };
    const words = text.replace(/[,.]/g, " $&").split(" ");
    const cuts = words.map((each) => reader.cut(SPACE + each));
    const ids = cuts.flat().map((piece) => reader.ids.get(piece) ?? 3);
    if (ids.length >= reader.length) return { why: `That is ${ids.length} pieces. The model takes at most ${reader.length - 1}: shorten the sentence.` };
    const rare = words.filter((_, n) => cuts[n].length > 2);
    return { ids, why: rare.length ? `The model knows these words only in small pieces: ${rare.join(", ")}.` : "" };
  },
  reverse(reader, typed) {
    const text = typed.toLowerCase().trim();
    if (!/^[a-z]{1,12}$/.test(text)) return { why: "Write one word of 1 to 12 letters, a to z." };
    const known = text.length >= 3 && text.length <= 8;
    return { ids: [...text].map((letter) => reader.ids.get(letter)), why: known ? "" : "In training, the words had 3 to 8 letters." };
  },
};
