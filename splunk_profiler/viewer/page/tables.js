// The tables of the page: the top functions, and the source of one.
"use strict";

const ROWS_AT_ONCE = 100; // more are laid out when the reader comes near to the last one
let shownTop = null; // the answer that is shown
const nearEnd = new IntersectionObserver(([{ isIntersecting }]) => isIntersecting && addRows(), { rootMargin: "1000px" });

function fillTop(shown) {
  shownTop = shown;
  const body = byId("top").querySelector("tbody"), count = body.rows.length; // as far as the reader has come
  const isFocused = body.contains(document.activeElement), focused = document.activeElement?.dataset.function;
  body.textContent = "";
  byId("top").querySelector("table").className = state.get("compare") ? "compared" : "";
  for (const { dataset, parentElement } of document.querySelectorAll("[data-sort]")) {
    if (dataset.sort === sort()) parentElement.setAttribute("aria-sort", "descending");
    else parentElement.removeAttribute("aria-sort");
  }
  addRows(count);
  if (isFocused) {
    const same = [...body.querySelectorAll("button")].find((each) => each.dataset.function === focused);
    (same ?? byId("top")).focus({ preventScroll: true });
  }
  fillGone(shown);
  const rest = shown.functions - shown.rows.length;
  byId("more").textContent = rest > 0 ? `and ${rest.toLocaleString()} more functions: search for them` : "";
  const found = `${shown.functions.toLocaleString()} functions found${shown.isPart ? " among the heaviest 500" : ""}`;
  say(byId("found"), state.get("q") ? found : "");
}

function addRows(count = 0) {
  const body = byId("top").querySelector("tbody"), { rows, total } = shownTop, from = body.rows.length;
  for (const row of rows.slice(from, from + Math.max(count, ROWS_AT_ONCE))) addRow(body, row, total);
  nearEnd.disconnect();
  if (body.rows.length < rows.length) nearEnd.observe(byId("more"));
}

function addRow(body, [name, file, line, kind, own, total, ownBefore, totalBefore], whole) {
  const row = make("tr", "", body);
  const cell = make("td", "", row);
  make("span", "", cell).className = `key ${["unknown", "application", "library", "standard"][kind]}`;
  const clip = make("div", saved ? name : "", cell);
  clip.className = "clip";
  if (!saved) {
    const link = make("button", name, clip);
    link.type = "button";
    link.className = "link";
    link.title = "callers and callees";
    link.dataset.function = `${name}\n${file}`;
    link.addEventListener("click", () => focusOn(name, file));
  }
  const place = make("div", "", make("td", "", row));
  place.className = "clip end";
  addPlace(file, line, make("span", "", place));
  place.title = place.textContent;
  for (const weight of [own, total]) {
    make("td", `${amount(weight, unit())}  ${share(weight, whole)}`, row).className = "number";
  }
  if (ownBefore !== undefined) {
    const isByOwn = totalBefore && total && sort() === "own";
    const text = isByOwn ? change(own, ownBefore, unit()) : change(total, totalBefore, unit());
    make("td", text, row).className = "number change";
  }
}

function fillSource(shown) {
  const body = byId("source-lines").querySelector("tbody");
  body.textContent = "";
  byId("source-lines").querySelector("table").className = state.get("compare") ? "compared" : "";
  const ending = shown.isFound ? "" : ": this file is not on the machine of the viewer";
  sayNames(byId("source-lines").querySelector("p"), "", state.get("file") || "", ending);
  for (const [number, text, own, total, , totalBefore] of shown.rows) {
    const row = make("tr", "", body);
    make("td", String(number), row).className = "number";
    make("td", text.replaceAll("\t", "    "), row);
    for (const weight of [own, total]) make("td", weight ? amount(weight, unit()) : "", row).className = "number";
    if (totalBefore !== undefined) make("td", change(total, totalBefore, unit()), row).className = "number change";
  }
  say(byId("found"), "");
}

// Says how many functions only the baseline has; they are in the table alone, since the graph is of what there is.
function fillGone({ gone }) {
  const [count, weight] = gone ?? [0, 0], button = byId("gone");
  button.classList.toggle("none", !count);
  say(button, `${count.toLocaleString()} ${count === 1 ? "function" : "functions"} gone, ${amount(weight, unit())}`);
  button.setAttribute("aria-pressed", String(view() === "top" && state.has("gone")));
}
