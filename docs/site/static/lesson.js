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
  if (Number.isNaN(guess)) return say(form, false, "please enter a number");
  const good = Math.abs(guess - answer) <= Number(tolerance) + 1e-9;
  const close = Math.abs(guess - answer) <= 0.05 * Math.abs(answer) ? "close: " : "";
  say(form, good, good ? `✓ yes: ${shown}` : `${close}it is ${shown}; you said ${guess}`);
});

addEventListener("click", (event) => {
  const button = event.target.closest(".ch-name button");
  if (button === null) return;
  const form = button.form;
  for (const each of form.querySelectorAll("button")) each.setAttribute("aria-pressed", each === button);
  const good = button.value === form.dataset.answer;
  say(form, good, good ? "✓ that is the mistake" : "not this one, look again");
  if (good) form.querySelector("details").open = true;
});

// A figure or a page that is embedded has the theme of the page around it.
const framed = () => document.querySelectorAll("iframe.ch-live");

const theme = () => {
  const { theme } = document.body.dataset;
  return theme === "light" || theme === "dark" ? theme : null;
};

const tell = (frame) => frame.contentWindow.postMessage({ clearhead: "theme", theme: theme() }, "*");

const follow = () => {
  const now = theme();
  for (const each of document.querySelectorAll("ch-figure")) {
    if (now) each.setAttribute("theme", now);
    else each.removeAttribute("theme");
  }
  framed().forEach(tell);
};

// A page tells its height as soon as it listens, so that it is answered with the theme.
addEventListener("message", ({ data, source }) => {
  if (data?.clearhead !== "height" || !(data.height > 0)) return;
  for (const frame of framed()) {
    if (frame.contentWindow !== source) continue;
    frame.style.height = `${data.height}px`;
    if (!frame.dataset.told) tell(frame);
    frame.dataset.told = "yes";
  }
});

// Without a mouse, what scrolls is scrolled by the keys that reach it.
const reach = new ResizeObserver((changed) => {
  for (const { target } of changed) {
    if (target.scrollWidth > target.clientWidth) target.tabIndex = 0;
    else target.removeAttribute("tabindex");
  }
});

const NAMES = { ".sidebar-drawer": "the site", ".toc-drawer": "on this page" };

addEventListener("DOMContentLoaded", () => {
  follow();
  new MutationObserver(follow).observe(document.body, { attributeFilter: ["data-theme"] });
  const wide = "article pre, article .table-wrapper, article p:has(> img.ch-wide)";
  for (const each of document.querySelectorAll(wide)) reach.observe(each);
  for (const [place, name] of Object.entries(NAMES))
    document.querySelector(place)?.setAttribute("aria-label", name);
});
