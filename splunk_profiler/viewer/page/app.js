// The page: its state is in the address; answers come from the server, or from the saved data in this file.
"use strict";

const kept = new Map(); // answers that many questions need again, until there is new data
let overview = null, timeline = null, asked = 0;
let state = new URLSearchParams(location.hash.slice(1));

const graph = new FlameGraph(byId("graph"), byId("scroll"), byId("height"), (path) => {
  set({ zoom: path });
  byId("out").hidden = !path;
  byId("focus").hidden = !path || Boolean(saved);
}, describe);

const value = () => state.get("value") || overview.values[0]?.name || "";
const view = () => state.get("view") || "flame";
const sort = () => state.get("sort") || "own"; // of the top table
const isGraph = () => view() === "flame" || view() === "inverted";
const unit = () => overview.values.find(({ name }) => name === value())?.unit ?? "count";

// Changes the address; a step of its own in the browser's history, unless it is a letter of a search.
function set(changes, isStep = true) {
  for (const [name, text] of Object.entries(changes)) {
    if (text) state.set(name, text);
    else state.delete(name);
  }
  const address = `#${state}`;
  if (address !== (location.hash || "#")) history[isStep ? "pushState" : "replaceState"](null, "", address);
}

const isSelection = (name) => name === "since" || name === "until" || name.startsWith("f.");

function selection(more = {}) {
  const query = new URLSearchParams({ value: value(), ...more });
  for (const [name, text] of state) {
    if (isSelection(name)) query.append(name, text);
  }
  return query;
}

// Adds what a flame graph or a table is asked for besides: the baseline, and a function.
function moreOf(more) {
  const all = new URLSearchParams(more);
  for (const [name, text] of state) {
    const isOfGraph = (name === "function" || name === "file") && (isGraph() || view() === "source");
    if (name === "compare" || name.startsWith("b.") || isOfGraph) all.append(name, text);
  }
  return all;
}

async function ask(what, more = new URLSearchParams()) {
  if (saved) {
    if (what === "overview") return saved.overview;
    const answers = saved.values[value()];
    if (what === "flame") return answers[more.get("inverted") === "1" ? "inverted" : "flame"];
    if (what === "timeline") return answers.timeline[more.get("facet")];
    if (what !== "top") return answers[what];
    const top = answers.top[more.get("sort")];
    const sought = more.get("search").toLowerCase();
    const rows = top.rows.filter(([name, file]) => `${name}\n${file}`.toLowerCase().includes(sought));
    const isPart = top.rows.length < top.functions;
    return { ...top, rows, functions: sought ? rows.length : top.functions, isPart };
  }
  const query = what === "overview" ? "" : selection();
  for (const [name, text] of more) query.append(name, text);
  if (what === "timeline") for (const name of ["since", "until"]) query.delete(name); // it is of the whole time
  const address = `api/${what}?${query}`;
  if (kept.has(address)) return kept.get(address);
  const answer = await fetch(address).catch(() => {
    throw new Error("The viewer does not answer: is the command still running?");
  });
  const content = await answer.json();
  if (!answer.ok) throw new Error(content.error);
  if (kept.size > 100) kept.clear();
  if (what === "timeline" || what === "facets") kept.set(address, content);
  return content;
}

function explain(error) {
  byId("problem").textContent = error.message;
  byId("problem").hidden = false;
}

// Asks for what the view shows, first, since the server answers one question after the other.
function askShown() {
  if (view() === "source") return ask("source", moreOf({}));
  if (view() === "top") return ask("top", moreOf({ search: state.get("q") || "", sort: sort() }));
  return ask("flame", moreOf({ inverted: view() === "inverted" ? "1" : "0" }));
}

function fillShown(shown) {
  byId("total").textContent = amount(shown.total, unit());
  if (view() === "top") fillTop(shown);
  else if (view() === "source") fillSource(shown);
  else showFlame(shown);
  if (!shown.total) {
    byId("empty").textContent = "Nothing in this selection: choose another value, a longer time or fewer filters.";
    byId("empty").hidden = false;
  }
}

// Shows all for the state, each part when its answer comes; answers to an older question are dropped.
async function show() {
  const question = ++asked;
  const fill = async (answer, how) => {
    const found = await answer;
    if (question === asked) how(found);
  };
  try {
    const before = overview?.version, found = await ask("overview");
    if (question !== asked) return;
    overview = found;
    if (overview.version !== before) kept.clear();
    const isEmpty = !overview.values.length;
    byId("empty").textContent = "No samples yet. Point a profiled service at the collector that writes this directory; "
      + "if none come, `splunk-profiler doctor` says why.";
    byId("empty").hidden = !isEmpty;
    const isTable = view() === "top" || view() === "source";
    for (const [id, isShown] of [["flame", !isTable], ["top", view() === "top"], ["source-lines", view() === "source"]]) {
      byId(id).hidden = isEmpty || !isShown;
    }
    fillHead();
    if (!isEmpty) {
      const facet = state.get("by") || "service";
      await Promise.all([
        fill(askShown(), fillShown),
        fill(view() === "trace" ? askTrace() : null, fillTrace),
        fill(ask("facets"), ({ facets }) => fillFacets(facets)),
        fill(ask("timeline", new URLSearchParams({ facet })), (line) => { timeline = line; drawTimeline(); }),
      ]);
      if (question !== asked) return;
    }
    byId("problem").hidden = true;
    document.body.dataset.shown = String(question); // for those who wait for the page
  } catch (error) {
    if (question === asked) explain(error);
  }
}

function fillNotices() {
  const chosen = (prefix) => [...state].filter(([name]) => name.startsWith(`${prefix}f.`))
    .map(([name, text]) => `${facetName(name.slice(prefix.length + 2))} ${text || "(none)"}`).join(", ");
  byId("compared").hidden = !state.get("compare");
  byId("uncompare").hidden = byId("all").hidden = Boolean(saved);
  byId("scale").disabled = Boolean(saved);
  byId("compare").hidden = Boolean(saved || state.get("compare"));
  if (state.get("compare")) {
    const since = state.get("b.since") || overview.since, until = state.get("b.until") || overview.until;
    byId("compared").querySelector("span").textContent = clean(`Compared with ${clock(since)} – ${clock(until)}`
      + `${chosen("b.") ? `, ${chosen("b.")}` : ""}${saved ? "." : ": now choose another time or other filters."}`);
    byId("scale").value = state.get("compare");
  }
  byId("only").hidden = !state.get("function") || !(isGraph() || view() === "source");
  byId("only").querySelector("span").textContent = view() === "source" ? clean(state.get("function") ?? "") : clean(`${view() === "inverted" ? "Who calls" : "What is called by"} `
    + `${state.get("function")}; the other way: ${view() === "inverted" ? "Flame graph" : "Inverted"}.`);
}

function compare() {
  for (const [name, text] of [...state]) if (isSelection(name)) state.append(`b.${name}`, text);
  set({ compare: "time" });
  show();
}

function endComparison() {
  for (const name of [...state.keys()]) if (name === "compare" || name.startsWith("b.")) state.delete(name);
  set({});
  show();
}

function focusOn(name, file) {
  set({ function: name, file, view: "flame", zoom: "" });
  show();
}

function fillHead() {
  fillNotices();
  byId("source").textContent = byId("source").title = clean(overview.source);
  const unread = overview.unread ? `${overview.unread.toLocaleString()} records could not be read. ` : "";
  byId("note").textContent = unread + clean(overview.note);
  byId("note").hidden = !byId("note").textContent;
  const options = overview.values.map(({ name }) => [name, NAMES[name] ?? name.replaceAll("_", " ")]);
  fillSelect(byId("value"), options, value());
  fillSelect(byId("by"), overview.facets.map((name) => [name, facetName(name)]), state.get("by") || "service");
  if (byId("search").value !== (state.get("q") || "")) byId("search").value = state.get("q") || "";
  for (const button of document.querySelectorAll("[data-view]")) {
    button.setAttribute("aria-pressed", String(button.dataset.view === view()));
    if (button.dataset.view === "trace") button.hidden = Boolean(saved && !saved.values[value()]?.trace);
    if (button.dataset.view === "source") button.hidden = !state.get("function");
  }
  byId("exports").hidden = byId("follow-label").hidden = Boolean(saved);
  for (const link of document.querySelectorAll("[data-format]")) {
    const query = selection({ format: link.dataset.format });
    const known = new Set(query.keys());
    if (link.dataset.format === "html") for (const [name, text] of state) if (!known.has(name)) query.append(name, text);
    link.href = `api/export?${query}`;
    link.download = "";
  }
  const since = state.get("since") || overview.since, until = state.get("until") || overview.until;
  byId("period").textContent = overview.values.length ? `${day(since)} ${clock(since)} – ${clock(until)}` : "";
  byId("whole").hidden = !state.get("since") || Boolean(saved);
}

// The spans of the one trace that is chosen; null if there is not one.
function askTrace() {
  const traces = state.getAll("f.trace");
  return traces.length === 1 ? ask("trace", new URLSearchParams({ trace: traces[0] })) : null;
}

function listen() {
  byId("value").addEventListener("change", (event) => { set({ value: event.target.value }); show(); });
  byId("by").addEventListener("change", (event) => { set({ by: event.target.value }); show(); });
  byId("whole").addEventListener("click", selectAll);
  byId("out").addEventListener("click", () => graph.zoom(graph.frames[0]));
  byId("search").addEventListener("input", (event) => {
    set({ q: event.target.value }, false);
    if (view() === "top") show();
    else { mark(); fillHead(); }
  });
  byId("compare").addEventListener("click", compare);
  byId("uncompare").addEventListener("click", endComparison);
  byId("scale").addEventListener("change", (event) => { set({ compare: event.target.value }); show(); });
  byId("all").addEventListener("click", () => { set({ function: "", file: "", zoom: "", ...(view() === "source" && { view: "" }) }); show(); });
  byId("focus").addEventListener("click", () => focusOn(graph.zoomed.name, graph.zoomed.file));
  for (const button of document.querySelectorAll("[data-sort]")) {
    button.addEventListener("click", () => { set({ sort: button.dataset.sort }); show(); });
  }
  for (const button of document.querySelectorAll("[data-view]")) {
    button.addEventListener("click", () => { set({ view: button.dataset.view, zoom: "" }); show(); });
  }
  addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.target.matches("input[type=search], select")) return;
    event.preventDefault();
    byId("search").focus();
  });
  addEventListener("hashchange", () => { state = new URLSearchParams(location.hash.slice(1)); show(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { graph.draw(); if (timeline) drawTimeline(); });
  listenToTimeline();
}

async function follow() {
  try {
    if (byId("follow").checked && overview && !marked) {
      const version = (await ask("overview")).version;
      if (version !== overview.version || !byId("problem").hidden) await show();
    }
  } catch (error) {
    explain(error);
  }
  setTimeout(follow, 2000);
}

if (saved) {
  state = new URLSearchParams(saved.state);
}
listen();
show();
if (!saved) follow();
