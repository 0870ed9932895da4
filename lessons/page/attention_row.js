// A sentence whose words show where they look: the weights are numformer's, computed beforehand.

for (const figure of document.querySelectorAll(".attention-row")) {
  const rows = JSON.parse(figure.querySelector("script").textContent);
  const words = [...figure.querySelectorAll("button")];
  const pick = (picked) => {
    figure.querySelector(".says").textContent = rows[picked].says;
    words.forEach((word, at) => {
      const weight = rows[picked].weights[at];
      word.setAttribute("aria-pressed", at === picked);
      word.style.setProperty("--weight", weight);
      word.querySelector("small").textContent = weight.toFixed(2);
    });
  };
  words.forEach((word, at) => {
    for (const kind of ["click", "focus"]) word.addEventListener(kind, () => pick(at));
  });
}
