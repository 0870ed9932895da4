// Questions answer at once; without scripts their answers can be unfolded.

// As in lessons/kit/quiz.py: the number that a person wrote, NaN if it is none.
const THOUSANDS = /(?<![0-9.,\s])[1-9][0-9]{0,2}([\s,])[0-9]{3}(?:\1[0-9]{3})*(?![0-9]|\1)/g;
const SIZE = "([-+]?(?:[0-9]+\\.?[0-9]*|\\.[0-9]+)(?:[eE][-+]?[0-9]+)?)";
const NUMBER = new RegExp(`^(?:.*[=≈])?${SIZE}(?:/${SIZE})?(%?)$`);

function readNumber(text) {
  text = text.replace(/[−–]/g, "-").replace(/\s*([-+/%=≈]|^|$)\s*/g, "$1");
  text = text.replace(THOUSANDS, (whole, sign) => whole.replaceAll(sign, ""));
  const match = NUMBER.exec(text.replaceAll(",", "."));
  return match ? Number(match[1]) / Number(match[2] ?? 1) / (match[3] ? 100 : 1) : NaN;
}

for (const form of document.querySelectorAll("form.question")) {
  const { answer, tolerance } = form.dataset;
  const verdict = form.querySelector(".verdict");
  const solution = form.querySelector("details");
  const button = form.querySelector("button");
  const replies = [...form.querySelectorAll("[data-given]")];
  button.hidden = false;
  form.addEventListener("input", () => {
    verdict.textContent = "";
    delete form.dataset.verdict;
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const given = readNumber(form.elements.answer.value);
    if (!Number.isFinite(given)) {
      verdict.textContent = form.querySelector("[type=text]") ? "Write a number, such as 0.5 or 1/2." : "Choose one first.";
      return;
    }
    const near = (known) => Math.abs(given - Number(known)) <= Number(tolerance) * (1 + 1e-9);
    const right = near(answer);
    form.dataset.verdict = right ? "right" : "wrong";
    verdict.innerHTML = right ? "<b>✓ Right.</b> Here is why:" : "<b>✗ Not right.</b> ";
    const reply = replies.find((item) => near(item.dataset.given));
    if (reply) verdict.append(...reply.lastElementChild.cloneNode(true).childNodes);
    else if (!right) verdict.append("Try again, or open the answer.");
    solution.open ||= right;
  });
}
