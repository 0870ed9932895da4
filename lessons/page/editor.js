// An editor of Python: a text area, and behind its transparent text the same text in colours.

import { element } from "./dom.js";

const KEYWORDS =
  "and as assert async await break class continue def del elif else except finally for from global if import in is " +
  "lambda nonlocal not or pass raise return try while with yield True False None";
const TOKEN = new RegExp(
  [
    String.raw`(?<c1>#.*)`,
    String.raw`(?<s1>\b[rbfuRBFU]{1,2}(?=["'])|"""[^]*?(?:"""|$)|'''[^]*?(?:'''|$)|"(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?)`,
    String.raw`(?<nf>(?<=\b(?:def|class)\s+)\w+)`,
    String.raw`(?<k>\b(?:${KEYWORDS.replaceAll(" ", "|")})\b)`,
    String.raw`(?<mi>(?<![\w.])\d[\w.]*(?:(?<=[eE])[+-]\d+)?)`,
  ].join("|"),
  "g",
);

/** The lines of a text, each as nodes whose classes are those of pygments. */
function coloured(text) {
  const lines = [[]];
  const add = (part, kind) =>
    part.split("\n").forEach((piece, at) => {
      if (at) lines.push([]);
      if (piece) lines.at(-1).push(kind ? element("span", { class: kind }, piece) : piece);
    });
  let done = 0;
  for (const match of text.matchAll(TOKEN)) {
    add(text.slice(done, match.index));
    add(match[0], Object.keys(match.groups).find((kind) => match.groups[kind] !== undefined));
    done = match.index + match[0].length;
  }
  add(text.slice(done));
  return lines;
}

/**
 * `element` is the editor, `value` its text. `mark({ 12: [right, words] })` marks lines by their numbers
 * until the text changes.
 */
export class CodeEditor {
  constructor(code, label, changed) {
    this.first = 1;
    this.lines = element("div", { class: "code", "aria-hidden": "true" });
    this.area = element("textarea", {
      ...{ "aria-label": label, maxlength: 50000, spellcheck: "false", autocapitalize: "off", autocomplete: "off", autocorrect: "off" },
      onkeydown: (event) => this.#pressed(event),
      oninput: () => {
        this.mark({});
        changed();
      },
    });
    this.element = element("div", { class: "editor" }, this.lines, this.area);
    this.value = code;
  }

  get value() {
    return this.area.value;
  }

  /** A new text, which undo does not know. */
  set value(code) {
    this.area.value = code;
    this.mark({});
  }

  /** The number of the first line that is not empty. */
  set start(number) {
    this.first = number - this.value.match(/^\n*/)[0].length;
    [...this.lines.children].forEach((line, at) => (line.dataset.line = this.first + at));
  }

  /** Mark lines -> the first that is wrong; undefined if none is. */
  mark(marks) {
    const painted = coloured(this.value).map((parts, at) => {
      const [right, words] = marks[this.first + at] ?? [];
      const state = right === undefined ? null : right ? "right" : "wrong";
      return element("div", { "data-line": this.first + at, "data-mark": state, "data-says": words }, ...parts, parts.length ? null : " ");
    });
    this.lines.replaceChildren(...painted);
    return painted.find(({ dataset }) => dataset.mark === "wrong");
  }

  /** Replace a part of the text so that undo brings it back. */
  replace(begin, end, text) {
    this.area.focus();
    this.area.setSelectionRange(begin, end);
    document.execCommand(text ? "insertText" : "delete", false, text);
  }

  #pressed(event) {
    const { value, selectionStart: begin, selectionEnd: end } = this.area;
    const lineBegin = value.lastIndexOf("\n", begin - 1) + 1;
    const before = value.slice(lineBegin, begin);
    const leaving = this.leaving;
    this.leaving = event.key === "Escape" || (leaving && event.key === "Shift"); // then Tab leaves the editor
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    if (event.key === "Tab" && !leaving) {
      if (!event.shiftKey && begin === end) this.replace(begin, end, " ".repeat(4 - (before.length % 4)));
      else this.#indent(lineBegin, end, event.shiftKey);
    } else if (event.key === "Enter") {
      this.replace(begin, end, `\n${before.match(/^ */)[0]}${/:\s*(#.*)?$/.test(before) ? "    " : ""}`);
    } else if (event.key === "Backspace" && begin === end && /^ +$/.test(before)) {
      this.replace(begin - (before.length % 4 || 4), begin, "");
    } else return;
    event.preventDefault();
  }

  /** Move the lines of a selection to the right, or `back`. */
  #indent(begin, end, back) {
    const lines = this.value.slice(begin, end).split("\n");
    const moved = lines.map((line) => (back ? line.replace(/^ {1,4}/, "") : line && `    ${line}`)).join("\n");
    this.replace(begin, end, moved);
    this.area.setSelectionRange(begin, begin + moved.length);
  }
}
