// The page: its state is in the address; answers come from the server, or from the saved data in this file.
"use strict";

const byId = (id) => document.getElementById(id);
const saved = byId("saved") ? JSON.parse(byId("saved").textContent) : null;
const SERIES = ["#e08a2c", "#5b95d6", "#57a883", "#b779c9", "#d06a6a", "#8d8d3f", "#3fa3ad", "#9a7b5c", "#9aa0a6"];
const NAMES = Object.assign(Object.create(null), {
  cpu: "CPU time", wall: "wall time", samples: "samples", gc: "garbage collection", alloc_space: "allocated",
  alloc_objects: "allocations", inuse_space: "memory in use", inuse_objects: "objects in use",
});
const FACETS = {
  service: "service", version: "version", process: "process", endpoint: "endpoint or span", thread: "thread", code: "whose code",
  state: "state", trace: "trace",
};
const facetName = (name) => FACETS[name] ?? name.replace(/^label:/, "label ");
const kept = new Map(); // answers that many questions need again, until there is new data
let overview = null, timeline = null, asked = 0;
let state = new URLSearchParams(location.hash.slice(1));

const graph = new FlameGraph(byId("graph"), byId("scroll"), byId("height"), (path) => {
  set({ zoom: path });
  byId("out").hidden = !path;
  byId("focus").hidden = !path || Boolean(saved);
}, describe);

function make(tag, text, parent) {
  const node = document.createElement(tag);
  node.textContent = clean(text);
  parent?.append(node);
  return node;
}

function amount(weight, unit) {
  if (unit === "nanoseconds") {
    for (const [size, name] of [[3.6e12, "h"], [6e10, "min"], [1e9, "s"], [1e6, "ms"], [1e3, "µs"]]) {
      if (weight >= size) return `${(weight / size).toPrecision(3)} ${name}`;
    }
    return `${weight} ns`;
  }
  if (unit === "bytes") {
    for (const [size, name] of [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]]) {
      if (weight >= size) return `${(weight / size).toFixed(1)} ${name}`;
    }
    return `${weight} B`;
  }
  return weight.toLocaleString();
}

const share = (part, whole) => (whole ? `${((100 * part) / whole).toFixed(1)} %` : "");
const clock = (ns) => new Date(Number(BigInt(ns) / 1000000n)).toLocaleTimeString([], { hour12: false });
const day = (ns) => new Date(Number(BigInt(ns) / 1000000n)).toLocaleDateString();
const value = () => state.get("value") || overview.values[0]?.name || "";
const view = () => state.get("view") || "flame";
const isGraph = () => view() === "flame" || view() === "inverted";

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
    const sought = more.get("search").toLowerCase();
    const rows = answers.top.rows.filter(([name, file]) => `${name}\n${file}`.toLowerCase().includes(sought));
    const isPart = answers.top.rows.length < answers.top.functions;
    return { ...answers.top, rows, functions: sought ? rows.length : answers.top.functions, isPart };
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

// Shows all for the state; what was asked before a newer question is dropped.
async function show() {
  const question = ++asked;
  try {
    const before = overview?.version;
    overview = await ask("overview");
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
      const [line, facets] = await Promise.all([ask("timeline", new URLSearchParams({ facet })), ask("facets")]);
      const trace = view() === "trace" ? await askTrace() : null;
      const shown = view() === "source" ? await ask("source", moreOf({})) : view() === "top" ? await ask("top", moreOf({ search: state.get("q") || "" }))
        : await ask("flame", moreOf({ inverted: view() === "inverted" ? "1" : "0" }));
      if (question !== asked) return;
      timeline = line;
      fillTrace(trace);
      drawTimeline();
      fillFacets(facets.facets, shown);
      byId("total").textContent = amount(shown.total, shown.unit);
      if (view() === "top") fillTop(shown);
      else if (view() === "source") fillSource(shown);
      else showFlame(shown);
      if (!shown.total) {
        byId("empty").textContent = "Nothing in this selection: choose another value, a longer time or fewer filters.";
        byId("empty").hidden = false;
      }
    }
    byId("problem").hidden = true;
    document.body.dataset.shown = String(question); // for those who wait for the page
  } catch (error) {
    if (question === asked) explain(error);
  }
}

function showFlame(shown) {
  graph.unit = shown.unit;
  graph.show(shown, state.get("zoom"));
  byId("graph").setAttribute("aria-label", `Flame graph of ${shown.frames.parent.length - 1} frames; the same as a table: Top functions`);
  byId("out").hidden = !graph.zoomed.path;
  byId("focus").hidden = !graph.zoomed.path || Boolean(saved);
  byId("kinds").hidden = graph.isCompared;
  byId("changes").hidden = !graph.isCompared;
  mark();
}

function mark() {
  const text = state.get("q") || "";
  const weight = graph.find(text);
  byId("found").textContent = text ? `${share(weight, graph.frames[0]?.total)} found` : "";
}

function describe(frame) {
  const at = byId("frame");
  at.textContent = "";
  const shown = frame ?? graph.zoomed;
  if (!shown) return;
  const whole = graph.frames[0].total;
  make("strong", shown.name, at);
  const place = shown.file ? ` ${shown.file}${shown.line ? `:${shown.line}` : ""}` : "";
  const before = graph.isCompared ? `, ${change(shown.total, shown.before, graph.unit)}` : "";
  const own = shown.own ? `, own ${amount(shown.own, graph.unit)} (${share(shown.own, whole)})` : "";
  make("span", ` ${amount(shown.total, graph.unit)} (${share(shown.total, whole)})${own}${before}`, at);
  make("span", place, at).className = "quiet";
}

// How a weight differs from that of the baseline.
function change(weight, before, unit) {
  if (!before) return weight ? "new" : "";
  if (!weight) return `gone, was ${amount(before, unit)}`;
  const part = (100 * (weight - before)) / before;
  if (Math.abs(part) < 0.5) return "as before";
  return `${part < 0 ? "−" : "+"}${Math.abs(part).toFixed(0)} %, was ${amount(before, unit)}`;
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

function fillSelect(select, options, chosen) {
  if (select.dataset.options !== JSON.stringify(options)) {
    select.dataset.options = JSON.stringify(options);
    select.textContent = "";
    for (const [name, text] of options) make("option", text, select).value = name;
  }
  select.value = chosen;
}

function fillFacets(facets, shown) {
  const aside = byId("facets"), focused = document.activeElement?.dataset.choice;
  const scrolled = new Map([...aside.querySelectorAll("ul")].map((list) => [list.dataset.facet, list.scrollTop]));
  aside.textContent = "";
  const isWanted = (facet) => facet === "trace" && view() === "trace"; // it comes first, also if there is but one
  const ordered = Object.entries(facets).sort(([one], [other]) => isWanted(other) - isWanted(one));
  for (const [facet, found] of ordered) {
    const chosen = new Set(state.getAll(`f.${facet}`));
    const values = found.concat([...chosen].filter((name) => !found.some(([other]) => other === name)).map((name) => [name, 0]));
    if (values.length < 2 && !chosen.size && !isWanted(facet)) continue;
    make("h2", facetName(facet), aside);
    const list = make("ul", "", aside);
    list.dataset.facet = facet;
    for (const [name, weight] of values) {
      const label = make("label", "", make("li", "", list));
      const box = make("input", "", label);
      box.type = "checkbox";
      box.dataset.choice = `${facet} ${name}`;
      box.checked = chosen.has(name);
      box.disabled = Boolean(saved);
      box.addEventListener("change", () => {
        box.checked ? chosen.add(name) : chosen.delete(name);
        state.delete(`f.${facet}`);
        if (facet === "trace") state.delete("f.span_id");
        for (const each of chosen) state.append(`f.${facet}`, each);
        set({});
        show();
      });
      const text = make("span", name || "(none)", label);
      text.title = clean(name);
      make("span", amount(weight, shown.unit), label);
      if (box.dataset.choice === focused) box.focus();
    }
    list.scrollTop = scrolled.get(facet) ?? 0;
  }
}

function fillTop(shown) {
  const body = byId("top").querySelector("tbody");
  body.textContent = "";
  byId("top").querySelector("table").className = state.get("compare") ? "compared" : "";
  for (const [name, file, line, kind, own, total, ownBefore, totalBefore] of shown.rows) {
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
      link.addEventListener("click", () => focusOn(name, file));
    }
    make("div", line ? `${file}:${line}` : file, make("td", "", row)).className = "clip";
    for (const weight of [own, total]) {
      make("td", `${amount(weight, shown.unit)}  ${share(weight, shown.total)}`, row).className = "number";
    }
    if (ownBefore !== undefined) {
      const text = totalBefore && total ? change(own, ownBefore, shown.unit) : change(total, totalBefore, shown.unit);
      make("td", text, row).className = "number change";
    }
  }
  const rest = shown.functions - shown.rows.length;
  byId("more").textContent = rest > 0 ? `and ${rest.toLocaleString()} more functions: search for them` : "";
  byId("found").textContent = state.get("q") ? `${shown.functions.toLocaleString()} functions found`
    + (shown.isPart ? " among the heaviest 500" : "") : "";
  byId("out").hidden = byId("focus").hidden = true;
}

function fillSource(shown) {
  const body = byId("source-lines").querySelector("tbody");
  body.textContent = "";
  byId("source-lines").querySelector("p").textContent = clean(state.get("file") || "")
    + (shown.isFound ? "" : ": this file is not on the machine of the viewer");
  for (const [number, text, own, total] of shown.rows) {
    const row = make("tr", "", body);
    make("td", String(number), row).className = "number";
    make("td", text.replaceAll("\t", "    "), row);
    for (const weight of [own, total]) make("td", weight ? amount(weight, shown.unit) : "", row).className = "number";
  }
  byId("found").textContent = "";
  byId("out").hidden = byId("focus").hidden = true;
}

// The spans of the one trace that is chosen; null if there is not one.
function askTrace() {
  const traces = state.getAll("f.trace");
  return traces.length === 1 ? ask("trace", new URLSearchParams({ trace: traces[0] })) : null;
}

function fillTrace(trace) {
  byId("trace").hidden = view() !== "trace";
  if (view() !== "trace") return;
  const list = byId("trace").querySelector("ol"), note = byId("trace").querySelector("p");
  const focused = document.activeElement?.dataset.span, scrolled = list.scrollTop;
  list.textContent = "";
  note.textContent = trace ? "" : "Choose one trace in the filters: below are the stacks of all.";
  if (!trace) return;
  for (const [id, depth, name, service, start, duration, weight, stacks] of trace.rows) {
    const row = make("button", "", make("li", "", list));
    row.type = "button";
    row.dataset.span = id;
    const isChosen = state.get("f.span_id") === id;
    row.setAttribute("aria-pressed", String(isChosen));
    const title = make("span", name || "(no name)", row);
    title.style.paddingLeft = `${Math.min(depth, 30) * 12}px`;
    make("span", ` ${service}`, title).className = "quiet";
    row.title = clean(`${name} of ${service}, ${amount(duration, "nanoseconds")}`
      + (stacks.length ? `; stacks that the host profiler saw: ${stacks.slice(0, 20).join(" ")}` : ""));
    const bar = make("span", "", make("span", "", row));
    bar.parentElement.className = "track";
    bar.className = "span";
    bar.style.left = `${(100 * start) / (trace.duration || 1)}%`;
    bar.style.width = `${(100 * duration) / (trace.duration || 1)}%`;
    const seen = stacks.length ? `, ${stacks.length} on host` : "";
    make("span", `${weight ? amount(weight, trace.unit) : "no samples"}${seen}`, row).className = "number";
    row.disabled = Boolean(saved);
    row.addEventListener("click", () => { set({ "f.span_id": isChosen ? "" : id, zoom: "" }); show(); });
    if (id === focused) row.focus();
  }
  list.scrollTop = scrolled;
  const more = trace.spans - trace.rows.length;
  note.textContent = !trace.spans ? "No span of this trace was received: let the service send its spans to the same place."
    : `${trace.spans.toLocaleString()} spans, ${amount(trace.duration, "nanoseconds")}. A click shows the stacks of one span.`
      + (more ? ` ${more.toLocaleString()} later ones are not shown.` : "")
      + (trace.rest ? ` ${amount(trace.rest, trace.unit)} outside of these spans.` : "");
}

let marked = null; // the stretch of buckets that is being dragged over, or chosen with keys

function drawTimeline() {
  const canvas = byId("timeline"), width = canvas.clientWidth, height = canvas.clientHeight;
  const ratio = devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  const count = timeline.series[0]?.[1].length ?? 0;
  const sums = Array.from({ length: count }, (_, at) => timeline.series.reduce((sum, [, weights]) => sum + weights[at], 0));
  const most = Math.max(1, ...sums), step = width / (count || 1);
  const filled = Array(count).fill(0);
  byId("legend").textContent = "";
  timeline.series.forEach(([name, weights], series) => {
    context.fillStyle = SERIES[series];
    weights.forEach((weight, at) => {
      const tall = (weight / most) * (height - 4);
      context.fillRect(at * step, height - filled[at] - tall, Math.max(step - 1, 1), tall);
      filled[at] += tall;
    });
    const entry = make("li", "", byId("legend"));
    const key = make("span", "", entry);
    key.className = "key";
    key.style.background = SERIES[series];
    make("span", name || "(none)", entry);
    entry.title = clean(name);
  });
  const [from, to] = marked ?? chosenBuckets();
  const shadow = getComputedStyle(document.body).backgroundColor;
  context.globalAlpha = 0.7;
  context.fillStyle = shadow;
  context.fillRect(0, 0, from * step, height);
  context.fillRect((to + 1) * step, 0, width, height);
  context.globalAlpha = 1;
  canvas.setAttribute("aria-label", `${NAMES[value()] ?? value()} over time, at most ${amount(most, timeline.unit)} in one of `
    + `${count} stretches; arrow keys with Shift choose, Enter selects, Escape selects all`);
}

function chosenBuckets() {
  const count = timeline.series[0]?.[1].length ?? 0;
  if (!state.get("since")) return [0, count - 1];
  const bucket = (ns) => Number((BigInt(ns) - BigInt(timeline.start)) / BigInt(timeline.step));
  const until = state.get("until"); // an address may have only one of the two
  return [bucket(state.get("since")), until ? bucket(BigInt(until) - 1n) : count - 1];
}

function selectMarked() {
  const [from, to] = marked;
  marked = null;
  const at = (bucket) => String(BigInt(timeline.start) + BigInt(bucket) * BigInt(timeline.step));
  set({ since: at(from), until: at(to + 1) });
  show();
}

function selectAll() {
  marked = null;
  set({ since: "", until: "" });
  show();
}

function listenToTimeline() {
  const canvas = byId("timeline");
  let start = null;
  const bucket = (event) => {
    const box = canvas.getBoundingClientRect(), count = timeline.series[0]?.[1].length ?? 1;
    return Math.max(0, Math.min(count - 1, Math.floor(((event.clientX - box.left) / box.width) * count)));
  };
  canvas.addEventListener("pointerdown", (event) => {
    if (saved || !timeline) return;
    start = bucket(event);
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (start === null) return;
    marked = [Math.min(start, bucket(event)), Math.max(start, bucket(event))];
    drawTimeline();
  });
  canvas.addEventListener("pointerup", () => {
    start = null;
    if (marked) selectMarked();
  });
  canvas.addEventListener("pointercancel", () => {
    start = marked = null;
    drawTimeline();
  });
  canvas.addEventListener("keydown", (event) => {
    if (saved || !timeline) return;
    const count = timeline.series[0]?.[1].length ?? 1;
    const [from, to] = marked ?? (state.get("since") ? chosenBuckets() : [0, 0]);
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (move) {
      const end = Math.max(event.shiftKey ? from : 0, Math.min(count - 1, to + move));
      marked = [event.shiftKey ? from : end, end];
      drawTimeline();
    } else if (event.key === "Enter" && marked) selectMarked();
    else if (event.key === "Escape") selectAll();
    else return;
    event.preventDefault();
  });
  new ResizeObserver(() => timeline && drawTimeline()).observe(canvas);
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
