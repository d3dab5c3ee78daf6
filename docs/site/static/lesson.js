// Judges guesses, names of mistakes, and fits what is embedded into the page. Nothing is stored, and nothing is sent.
const number = (text) => {
  const plain = text.trim().replace(",", ".").replace("−", "-");
  const fraction = plain.match(/^(-?[\d.]+)\s*\/\s*([\d.]+)$/);
  return fraction ? fraction[1] / fraction[2] : plain === "" ? Number.NaN : Number(plain);
};

const say = (form, good, words) => {
  form.dataset.judged = good ? "right" : "wrong";
  form.querySelector("output").textContent = words;
};

addEventListener("submit", (event) => {
  const form = event.target;
  if (!form.matches(".ch-guess")) return;
  event.preventDefault();
  const { answer, tolerance, shown } = form.dataset;
  const guess = number(form.querySelector("input").value);
  if (Number.isNaN(guess)) return say(form, false, "a number, please");
  const good = Math.abs(guess - answer) <= Number(tolerance) + 1e-9;
  say(form, good, good ? `✓ yes: ${shown}` : `it is ${shown}; you said ${guess}`);
});

addEventListener("click", (event) => {
  const button = event.target.closest(".ch-name button");
  if (button === null) return;
  const form = button.form;
  for (const each of form.querySelectorAll("button")) each.setAttribute("aria-pressed", each === button);
  const good = button.value === form.dataset.answer;
  say(form, good, good ? "✓ that is its name" : "no, look again");
  if (good) form.querySelector("details").open = true;
});

// A figure or a page that is embedded has the theme of the page around it.
const follow = () => {
  const { theme } = document.body.dataset;
  for (const each of document.querySelectorAll("ch-figure")) {
    if (theme === "light" || theme === "dark") each.setAttribute("theme", theme);
    else each.removeAttribute("theme");
  }
};

addEventListener("message", ({ data, source }) => {
  if (typeof data?.clearhead !== "string" || !(data.height > 0)) return;
  for (const frame of document.querySelectorAll("iframe.ch-live"))
    if (frame.contentWindow === source) frame.style.height = `${data.height}px`;
});

addEventListener("DOMContentLoaded", () => {
  follow();
  new MutationObserver(follow).observe(document.body, { attributeFilter: ["data-theme"] });
});
