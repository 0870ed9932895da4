// Searches the sections of all lessons and further pages for those that have every word; a word in
// a title counts most.

const sections = JSON.parse(document.getElementById("sections").textContent);
const [form, said, list] = ["form.search", ".found", ".results"].map((name) => document.querySelector(name));
const MOST = 30;
const escaped = (text) => text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");

/** A text as an element in which what matches is marked, from a little before its first match. */
function marked(tag, text, pattern, around = Infinity) {
  const made = document.createElement(tag);
  const at = Math.max(0, text.search(pattern) - around);
  const shown = (at ? "… " : "") + text.slice(at, at + 4 * around) + (at + 4 * around < text.length ? " …" : "");
  shown.split(pattern).forEach((part, n) => {
    const piece = document.createElement(n % 2 ? "mark" : "span");
    piece.textContent = part;
    made.append(piece);
  });
  return made;
}

function search() {
  const asked = form.elements.for.value.trim();
  const words = asked.toLowerCase().split(/\s+/).filter(Boolean);
  const pattern = new RegExp(`((?<![\\p{L}\\d])(?:${words.map(escaped).join("|")}))`, "giu");
  const starts = words.map((word) => new RegExp(`(?<![\\p{L}\\d])${escaped(word)}`, "iu"));
  const worth = ([, lesson, title, text]) =>
    starts.every((start) => start.test(`${lesson} ${title} ${text}`)) &&
    starts.reduce((sum, start) => sum + 9 * start.test(title) + 3 * start.test(lesson), 0) + (text.match(pattern) ?? []).length / (20 + text.length / 100);
  const found = words.length ? sections.map((section) => [worth(section), section]).filter(([value]) => value !== false) : [];
  found.sort(([a], [b]) => b - a);
  said.textContent = !words.length ? "" : found.length ? `${found.length} section${found.length > 1 ? "s" : ""}` : "No section has all these words.";
  list.replaceChildren(
    ...found.slice(0, MOST).map(([, [href, lesson, title, text]]) => {
      const [item, link] = ["li", "a"].map((tag) => document.createElement(tag));
      link.href = href;
      link.append(marked("strong", title, pattern), ` ${lesson}`);
      item.append(link, marked("p", text, pattern, 60));
      return item;
    }),
  );
  history.replaceState(null, "", asked ? `#${encodeURIComponent(asked)}` : location.pathname.split("/").pop());
}

form.addEventListener("submit", (event) => event.preventDefault());
form.addEventListener("input", search);
form.elements.for.value = decodeURIComponent(location.hash.slice(1));
form.elements.for.focus();
search();
