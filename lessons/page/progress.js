// How much of the course is solved. Only `python -m lessons serve` knows, which opens the first page
// with a token; a request without the token gets no answer.

/** What this browser keeps under a name; `stored(name, value)` keeps it, null if that is forbidden. */
export const stored = (name, value) => {
  try {
    if (value !== undefined) localStorage.setItem(`numformer ${name}`, value);
    return localStorage.getItem(`numformer ${name}`);
  } catch {
    return null;
  }
};

const given = location.hash.match(/^#token=(.+)/)?.[1];
if (given) history.replaceState(null, "", location.pathname);
const token = location.hostname === "127.0.0.1" && stored("token", given);

/** Send something to the server -> its reply. An Error says why there is none. */
export const ask = async (body) => {
  const headers = { "Content-Type": "application/json", Authorization: `Bearer ${token}` };
  const response = await fetch("exercises", { method: "POST", headers, body: JSON.stringify(body), keepalive: true }).catch(() => {
    throw new Error("The server has ended. Start `python -m lessons serve` again, and copy this text to the page that it opens.");
  });
  const reply = await response.json();
  if (response.status === 403) throw new Error("Open the address that `python -m lessons serve` has printed: only its pages may check code.");
  if (!response.ok) throw new Error(reply.error);
  return reply;
};

/** A promise of all exercises by name (`Workbook.contents`); undefined where no server checks them. */
export const course = token ? ask({}) : undefined;

/** Write into the page how many exercises are solved, of each lesson and of all. */
export const show = (exercises) => {
  for (const place of document.querySelectorAll("[data-solved]")) {
    const page = place.dataset.solved;
    const those = Object.values(exercises).filter((exercise) => !page || exercise.page === page);
    const solved = `${those.filter(({ right }) => right).length} of ${those.length}`;
    place.textContent = page ? `, ${solved} solved` : `${solved} exercises solved`;
  }
};

course?.then(show).catch(() => {}); // exercise.js says what is wrong
