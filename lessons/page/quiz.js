// Questions answer at once; without scripts their answers can be unfolded.

// A text as a number: "1/2", "0,5" and "36,864" are numbers, too; NaN if it is none.
function number(text) {
  const thousands = /^[1-9]\d{0,2}(,\d{3})+$/.test(text.trim());
  const parts = text.replaceAll(",", thousands ? "" : ".").split("/").map((part) => (part.trim() ? Number(part) : NaN));
  return parts.length > 2 ? NaN : parts[0] / (parts[1] ?? 1);
}

for (const form of document.querySelectorAll("form.question")) {
  const { answer, tolerance } = form.dataset;
  const verdict = form.querySelector(".verdict");
  const solution = form.querySelector("details");
  const button = form.querySelector("button");
  button.hidden = false;
  form.addEventListener("input", () => {
    verdict.textContent = "";
    delete form.dataset.verdict;
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const given = number(form.elements.answer.value);
    if (!Number.isFinite(given)) {
      verdict.textContent = tolerance ? "Write a number, such as 0.5 or 1/2." : "Choose one first.";
      return;
    }
    const right = Math.abs(given - Number(answer)) <= Number(tolerance ?? 0) * (1 + 1e-9);
    form.dataset.verdict = right ? "right" : "wrong";
    const reason = tolerance ? null : form.querySelector(`[data-choice="${given}"] > span`);
    verdict.textContent = right ? "✓ Right. Here is why:" : "✗ Not right. ";
    if (reason) verdict.append(...reason.cloneNode(true).childNodes);
    else if (!right) verdict.append("Try again, or open the answer.");
    if (right) solution.open = true;
  });
}
