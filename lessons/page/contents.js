// The contents of a page mark the current section: in a column beside the text, or folded above it.

const nav = document.querySelector("nav.contents");
const [folded, place] = [nav.querySelector("details"), nav.querySelector("summary span")];
const links = [...nav.querySelectorAll("a")];
const headings = links.map((link) => document.getElementById(decodeURIComponent(link.hash.slice(1))));
const column = matchMedia("(min-width: 75rem)"); // as in style.css
const fold = () => (folded.open = column.matches);

let marked = -1;
function mark() {
  // A section is current once its heading is in the upper third of the window; this line moves down
  // at the end of the page, so that the last sections become current, too.
  const left = document.documentElement.scrollHeight - innerHeight - scrollY;
  const line = Math.max(innerHeight / 3, innerHeight - left);
  const at = headings.filter((heading) => heading.getBoundingClientRect().top <= line).length - 1;
  if (at === marked) return;
  links[marked]?.removeAttribute("aria-current");
  links[at]?.setAttribute("aria-current", "location");
  place.textContent = at < 0 ? "" : `: ${links[at].textContent}`;
  if (column.matches && at >= 0) nav.scrollTop = links[at].offsetTop - nav.clientHeight / 2;
  marked = at;
}

column.addEventListener("change", fold);
nav.addEventListener("click", (event) => event.target.closest("a") && fold());
addEventListener("scroll", mark, { passive: true });
addEventListener("resize", mark);
fold();
mark();
