// Slides: keys and clicks go to the next one or back, touch scrolls, and the address names the slide.
// What is too large for its sheet gets smaller letters.

const deck = document.querySelector(".deck");
const slides = [...deck.children];
const STEPS = { ArrowRight: 1, ArrowDown: 1, PageDown: 1, " ": 1, ArrowLeft: -1, ArrowUp: -1, PageUp: -1, Home: -Infinity, End: Infinity };

const here = () => Math.round(deck.scrollLeft / deck.clientWidth);
function go(step) {
  const at = Math.max(0, Math.min(slides.length - 1, here() + step));
  deck.scrollTo(at * deck.clientWidth, 0);
}

addEventListener("keydown", (event) => {
  const step = STEPS[event.key];
  if (!step || event.altKey || event.ctrlKey || event.metaKey || (event.key === " " && event.target.closest("summary"))) return;
  event.preventDefault();
  go(event.shiftKey && event.key === " " ? -step : step);
});
deck.addEventListener("click", (event) => {
  if (event.target.closest("a, details") || !getSelection().isCollapsed) return;
  go(event.clientX < innerWidth / 3 ? -1 : 1);
});
deck.addEventListener("scroll", () => history.replaceState(null, "", `#${here() + 1}`), { passive: true });
deck.focus({ preventScroll: true });

const over = (part) => part.scrollHeight > part.clientHeight + 1 || part.scrollWidth > part.clientWidth + 1;
const wide = (part) => part.scrollWidth > part.clientWidth + 1;
document.fonts.ready.then(() => {
  for (const part of deck.querySelectorAll(".sheet > div")) {
    const inner = [...part.querySelectorAll(".points > *, .scroll")];
    for (let fit = 1; fit > 0.3 && (over(part) || inner.some(wide)); fit -= 0.05) part.style.setProperty("--fit", fit);
  }
});
