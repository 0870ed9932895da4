import { element } from "./dom.js";

// What a symbol means: under the pointer, after a tap, and in focus. A formula in focus hands the
// focus to its symbols by the arrow keys, and these go on from symbol to symbol, to the end of the page.

const [MARKED, FORMULA] = ["[data-symbol]", ".math.block, .equation"];
const notes = JSON.parse(document.getElementById("symbols").textContent);
const note = element("div", { class: "symbol-says", popover: "manual", role: "status" });
document.body.append(note);

function hide() {
  if (note.matches(":popover-open")) note.hidePopover();
}

let current = null; // the symbol whose meaning is shown

function show(mark) {
  current = mark;
  const [math, says, lesson] = notes[mark.dataset.symbol];
  note.innerHTML = `<span>${math}</span> <span></span>`;
  note.lastChild.textContent = `${says} (Lesson ${lesson})`;
  hide();
  note.showPopover();
  const [place, { width, height }] = [mark.getBoundingClientRect(), note.getBoundingClientRect()];
  const above = place.top - height - 8;
  note.style.left = `${Math.max(8, Math.min(place.left, document.documentElement.clientWidth - width - 8))}px`;
  note.style.top = `${above < 8 ? place.bottom + 8 : above}px`;
}

const marked = (event) => event.target.closest?.(MARKED);
const shown = (event) => (marked(event) ? show(marked(event)) : hide());
addEventListener("pointerover", (event) => event.pointerType === "mouse" && shown(event));
addEventListener("click", shown);
addEventListener("focusin", (event) => marked(event) && show(marked(event)));
addEventListener("focusout", hide);
const scrolled = () => note.matches(":popover-open") && show(current);
addEventListener("scroll", scrolled, { passive: true, capture: true });
addEventListener("keydown", (event) => {
  if (event.key === "Escape") hide();
  const [at, step] = [document.activeElement, { ArrowLeft: -1, ArrowRight: 1 }[event.key]];
  if (!step || !at.matches(`${MARKED}, ${FORMULA}`)) return;
  const all = [...document.querySelectorAll(`article :is(${MARKED})`)].filter((mark) => mark.checkVisibility());
  const next = at.matches(MARKED) ? all[all.indexOf(at) + step] : all.find((mark) => at.contains(mark));
  if (!next) return;
  event.preventDefault();
  next.tabIndex = -1;
  next.focus();
});
