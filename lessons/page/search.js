// Searches the sections of all lessons and further pages for those that have every word; a word in
// a title counts most. Words that no section has are taken for the most similar one that some have.

const sections = JSON.parse(document.getElementById("sections").textContent);
const [form, said, list] = ["form.search", ".found", ".results"].map((name) => document.querySelector(name));
const MOST = 30;
const [SHORT, LONG] = [4, 8]; // letters: shorter words have no similar one; in longer ones two mistakes are forgiven
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

const begins = (word) => new RegExp(`(?<![\\p{L}\\d])${escaped(word)}`, "iu");
const texts = sections.map((section) => section.slice(1).join(" ").toLowerCase());
const wordsOf = texts.map((text) => new Set(text.match(/[\p{L}\d]+/gu)));
const all = new Set(wordsOf.flatMap((words) => [...words]));

/** How many letters have to be changed, added, left out or swapped with the next to get from a to b. */
function mistakes(a, b) {
  const rows = [...Array(a.length + 1)].map((_, i) => [...Array(b.length + 1)].map((_, j) => i || j));
  for (let i = 1; i <= a.length; i += 1) {
    for (let j = 1; j <= b.length; j += 1) {
      rows[i][j] = Math.min(rows[i - 1][j] + 1, rows[i][j - 1] + 1, rows[i - 1][j - 1] + (a[i - 1] !== b[j - 1]));
      if (i > 1 && j > 1 && a[i - 1] === b[j - 2] && a[i - 2] === b[j - 1]) rows[i][j] = Math.min(rows[i][j], rows[i - 2][j - 2] + 1);
    }
  }
  return rows[a.length][b.length];
}

/** The word itself if a section has it, or else the most similar word; of several, the one that most sections have with the `others`. */
function known(word, others) {
  if (word.length < SHORT || texts.some((text) => begins(word).test(text))) return word;
  let [nearest, least] = [[word], word.length < LONG ? 2 : 3];
  for (const other of all) {
    if (Math.abs(other.length - word.length) >= least + 1) continue;
    const far = mistakes(word, other);
    if (far < least) [nearest, least] = [[other], far];
    else if (far === least && nearest[0] !== word) nearest.push(other);
  }
  const often = (each) => wordsOf.filter((words) => [each, ...others].every((other) => words.has(other))).length;
  return nearest.reduce((best, each) => (often(each) > often(best) ? each : best));
}

function search() {
  const asked = form.elements.for.value.trim();
  const typed = asked.toLowerCase().split(/\s+|(?<=\p{L})-(?=\p{L})/u).filter(Boolean);
  const words = typed.map((word) => known(word, typed.filter((other) => all.has(other))));
  const others = words.filter((word, n) => word !== typed[n]);
  const pattern = new RegExp(`((?<![\\p{L}\\d])(?:${words.map(escaped).join("|")}))`, "giu");
  const starts = words.map(begins);
  const worth = ([, lesson, title, text]) =>
    starts.every((start) => start.test(`${lesson} ${title} ${text}`)) &&
    starts.reduce((sum, start) => sum + 9 * start.test(title) + 3 * start.test(lesson), 0) + (text.match(pattern) ?? []).length / (20 + text.length / 100);
  const found = words.length ? sections.map((section) => [worth(section), section]).filter(([value]) => value !== false) : [];
  found.sort(([a], [b]) => b - a);
  said.textContent = !words.length ? "" : found.length ? `${found.length} section${found.length > 1 ? "s" : ""}${others.length ? ` with “${others.join("”, “")}”` : ""}` : "No section has all these words.";
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
