// Exercises are solved where they stand: in an editor, which under `python -m lessons serve` shows a
// part of a file and what the checker says of it. Elsewhere this browser keeps the text.

import { element } from "./dom.js";
import { CodeEditor } from "./editor.js";
import { ask, course, show, stored } from "./progress.js";

const PAUSE = 800; // milliseconds after the last key until the text is saved
const editors = {};

/** The checker's words: indented paragraphs are tables and lines of code, and so is what is in `...`. */
const paragraphs = (words) =>
  words.split("\n\n").map((block) => {
    if (block.startsWith("    ")) return element("pre", {}, block.replace(/^ {4}/gm, ""));
    return element("p", {}, ...block.split("`").map((part, at) => (at % 2 ? element("code", {}, part) : part)));
  });

function exercise(section) {
  const { name } = section.dataset;
  const [given, how] = [section.querySelector("div.code"), section.querySelector(".how")];
  const beginning = given.textContent.trim();
  const says = element("div", { class: "says", role: "status" });
  const editor = (editors[name] = new CodeEditor(beginning, `Your code for ${name}`, changed));
  const button = element("button", { type: "button", hidden: !course, onclick: () => send(true) }, "Check");
  const again = element("button", { type: "button", class: "quiet", onclick: () => editor.replace(0, editor.value.length, beginning) }, "Start over");
  const keys = element("small", {}, "Tab indents; Esc, then Tab leaves the editor.", course ? " Ctrl+Enter checks." : null);
  const desk = element("div", {}, editor.element, element("p", { class: "buttons" }, button, again, keys));
  given.replaceWith(element("div", { class: "workplace" }, desk, says));

  let [saved, lost, waiting, queue] = [beginning, false, 0];
  const keep = () => stored(`exercise ${name}`, editor.value) !== null;
  const look = () => (editor.value = stored(`exercise ${name}`) ?? beginning);

  function say(right, ...parts) {
    section.dataset.verdict = right === null ? "" : right ? "right" : "wrong";
    says.replaceChildren(...parts);
    says.style.removeProperty("--down");
  }

  function changed() {
    clearTimeout(waiting);
    if (course) waiting = setTimeout(send, PAUSE, false);
    say(null, !course && keep() ? element("p", {}, "This browser keeps your text.") : "");
    solved(null);
  }

  const solved = (right) =>
    course?.then((all) => {
      all[name].right = right;
      show(all);
    }, () => {});

  /** Save the text, and `check` it; one request after the other. */
  function send(check) {
    queue = queue.then(async () => {
      const code = editor.value;
      if (!check && code === saved) return;
      if (check) say(null, element("p", {}, "Checking …"));
      try {
        const reply = await ask({ name, before: saved, code, check });
        [saved, lost] = [code, false];
        for (const [other, line] of Object.entries(reply.lines)) if (editors[other]) editors[other].start = line;
        if (check && editor.value === code) tell(reply);
      } catch (problem) {
        lost = true;
        keep();
        say(false, ...paragraphs(problem.message));
      }
    });
  }

  /** Show a verdict, beside the line that it is about if there is room. */
  function tell({ right, words, marks, printed }) {
    const line = editor.mark(marks);
    const lines = printed ? [element("p", {}, "It has printed:"), element("pre", {}, printed)] : [];
    say(right, ...paragraphs(words), ...lines);
    const lowest = editor.element.offsetHeight - says.offsetHeight;
    if (line && !right) says.style.setProperty("--down", `${Math.max(0, Math.min(line.offsetTop, lowest))}px`);
    solved(right);
  }

  if (!course) return void look();
  section.dataset.served = "";
  editor.area.readOnly = true; // until the file's text is there
  say(null, element("p", {}, "Write the function and press Check: what the checker finds appears here."));
  section.addEventListener("keydown", ({ key, ctrlKey, metaKey }) => key === "Enter" && (ctrlKey || metaKey) && send(true));
  document.addEventListener("visibilitychange", () => document.hidden && send(false));
  addEventListener("beforeunload", (event) => lost && event.preventDefault());
  queue = course.then(
    (all) => {
      const { code, file, line, right } = all[name];
      [saved, editor.value, editor.start] = [code, code, line];
      if (right !== null) say(right, element("p", {}, right ? "Solved." : "Not right yet."));
      editor.element.prepend(element("small", {}, file));
      const command = how.lastElementChild.textContent.replace("FILE", file);
      how.replaceChildren("In a shell, ", element("code", {}, command), " checks this file, too.");
    },
    (problem) => {
      look();
      say(false, ...paragraphs(problem.message));
    },
  );
  queue.then(() => (editor.area.readOnly = false));
}

document.querySelectorAll("section.exercise").forEach(exercise);
