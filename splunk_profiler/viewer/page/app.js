// The page: its state is in the address; answers come from the server, or from the saved data in this file.
"use strict";

const kept = new Map(); // answers that many questions need again, until there is new data
let overview = null, asked = 0;
let asking = new AbortController(); // of the requests of the last question
let state = readState();

const VIEWS = new Set([...document.querySelectorAll("[data-view]")].map(({ dataset }) => dataset.view));
const OF_FUNCTION = new Set(["sandwich", "source"]); // views
const value = () => state.get("value") || overview.values[0]?.name || "";
const sort = () => state.get("sort") || "own"; // of the top table
const isGrowing = () => !saved && overview.follows !== false; // it may, if the server does not say
const isSandwich = () => view() === "sandwich";
const isGraph = () => ["flame", "inverted", "sandwich"].includes(view());
const isCut = () => isGraph() || view() === "source"; // to the function, if there is one
const unit = () => overview.values.find(({ name }) => name === value())?.unit ?? "count";

// The state of the address, or that a file begins with, without times that are none and, in a file, what that has not:
// no question with one has an answer.
function readState() {
  const found = new URLSearchParams(location.hash.slice(1) || saved?.state);
  for (const name of ["since", "until", "b.since", "b.until", "from", "to"]) {
    const time = found.get(name);
    if (!/^\d{1,19}$/.test(time) || BigInt(time) >= 2n ** 63n) found.delete(name);
  }
  const has = saved && { value: Object.keys(saved.values), by: saved.overview.facets, sort: ["own", "total"] };
  for (const name in has) if (!has[name].includes(found.get(name))) found.delete(name);
  return found;
}

function view() {
  const name = state.get("view");
  return VIEWS.has(name) && (state.get("function") || !OF_FUNCTION.has(name)) ? name : "flame";
}

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
    const isOfView = (name === "function" || name === "file") && isCut()
      || name === "gone" && view() === "top";
    if (name === "compare" || name.startsWith("b.") || isOfView) all.append(name, text);
  }
  return all;
}

function askSaved(what, more) {
  if (what === "overview") return saved.overview;
  const answers = saved.values[value()];
  if (what === "flame" && view() === "trace" && answers.all) return answers.all;
  if (what === "flame") return answers[more.get("inverted") === "1" ? "inverted" : "flame"];
  if (what === "timeline") return answers.timeline[more.get("facet")];
  if (what !== "top") return answers[what];
  const top = answers.top[more.get("sort")];
  const sought = more.get("search").toLowerCase(), isGone = more.has("gone");
  const isWanted = ([name, file, , , , total]) => `${name}\n${file}`.toLowerCase().includes(sought) && !(isGone && total);
  const rows = top.rows.filter(isWanted);
  return { ...top, rows, functions: sought || isGone ? rows.length : top.functions, isPart: top.rows.length < top.functions };
}

async function ask(what, more = new URLSearchParams()) {
  if (saved) return askSaved(what, more);
  const query = what === "overview" ? "" : selection();
  for (const [name, text] of more) query.append(name, text);
  if (what === "timeline") setShown(query);
  const address = `api/${what}?${query}`;
  if (kept.has(address)) return kept.get(address);
  const { signal } = asking;
  const answer = await fetch(address, { signal }).catch(() => {
    signal.throwIfAborted();
    throw new Error("The viewer does not answer: is the command still running?");
  });
  // No JSON comes from a proxy, or from a server that failed.
  const content = await answer.json().catch(() => signal.throwIfAborted());
  if (!answer.ok || !content) {
    const { status } = answer;
    const message = content?.error ?? `The viewer could not answer (HTTP status ${status}): the terminal where it runs, `
      + "or the proxy before it, says why. The page asks again by itself while “new data” is ticked.";
    throw Object.assign(new Error(message), { status });
  }
  if (kept.size > 100) kept.clear();
  const isOfAll = what === "timeline" || what === "facets";
  if (isOfAll && content.version === overview.version) kept.set(address, content); // not a late one about older data
  return content;
}

function explain(error) {
  if (error.name === "AbortError") return; // of a request that nobody waits for any more
  byId("problem").dataset.status = error.status;
  sayMessage(byId("problem"), error.message);
  byId("problem").hidden = false;
}

// Asks for what the view shows.
function askShown() {
  if (view() === "source") return ask("source", moreOf({}));
  if (view() === "top") return ask("top", moreOf({ search: state.get("q") || "", sort: sort() }));
  const flame = (inverted) => ask("flame", moreOf({ inverted }));
  if (!isSandwich()) return flame(view() === "inverted" ? "1" : "0");
  return Promise.all([flame("0"), flame("1")]).then(([callees, above]) => ({ ...callees, callers: above }));
}

// Asks for the view, and in that of a trace for its spans.
function askView() {
  return Promise.all([askShown(), view() === "trace" ? askTrace() : null]);
}

// The answers of a view; they are asked for again if one is about older data than another: more came between the two.
async function askAgainIfOlder(answers) {
  const [shown, trace] = await answers, parts = [shown, shown.callers, trace].filter(Boolean);
  const newest = Math.max(...[overview, ...parts].map(({ version }) => version));
  return parts.some(({ version }) => version < newest) ? askView() : [shown, trace];
}

// Asks what is gone in a comparison; the table says so by itself.
function askGone() {
  return state.get("compare") && view() !== "top" ? ask("top", moreOf({ search: "", sort: sort() })) : null;
}

// Shows the part of the page that a view has; none for null.
function fillView(name) {
  byId("top").hidden = name !== "top";
  byId("source-lines").hidden = name !== "source";
  byId("flame").hidden = name === null || name === "top" || name === "source";
}

function fillShown([shown, trace], isNewData) {
  fillView(view());
  fillTrace(trace);
  say(byId("total"), amount(shown.total, unit()));
  if (view() === "top") fillTop(shown);
  else if (view() === "source") fillSource(shown);
  else showFlame(shown, isNewData);
  fillZoom();
  if (!shown.total) {
    byId("empty").textContent = "Nothing in this selection: choose another value, a longer time or fewer filters.";
    byId("empty").hidden = false;
  }
}

// The first of some elements that can be seen takes the focus of one that went: a reader with keys goes on there.
function keepFocus(before, ...heirs) {
  const now = document.activeElement;
  if (before === document.body || before.checkVisibility() || now !== document.body && now.checkVisibility()) return;
  heirs.find((each) => each.checkVisibility())?.focus({ preventScroll: true });
}

// Holds the heights of what would move all that is below it when new data comes, until an act of the reader.
function holdHeights(isHeld) {
  for (const each of document.querySelectorAll("#legend, #spans:has(li), #facets section")) {
    if (!isHeld || each.offsetHeight) each.style.height = isHeld ? `${each.offsetHeight}px` : "";
  }
}

// Shows all for the state, each part when its answer comes; answers to an older question are dropped. Of new data what
// is there stays in its place.
async function show(isNewData = false) {
  const question = ++asked, main = document.querySelector("main");
  holdHeights(isNewData);
  asking.abort();
  asking = new AbortController();
  main.setAttribute("aria-busy", "true");
  try {
    if (!await showAll(question, isNewData)) return;
    byId("problem").hidden = true;
    document.body.dataset.shown = String(question); // for those who wait for the page
  } catch (error) {
    if (question === asked) explain(error);
  } finally {
    if (question === asked) main.setAttribute("aria-busy", "false");
  }
}

async function showAll(question, isNewData) {
  const before = overview?.version, valueBefore = overview && value();
  const all = ask("overview");
  const early = valueBefore ? askView() : null; // the overview rarely changes what is asked
  early?.catch(() => null);
  const found = await all;
  if (question !== asked) return false;
  overview = found;
  if (overview.version !== before) kept.clear();
  if (value()) set({ value: value() }, false); // else the address would show another when that comes first in new data
  const isEmpty = !overview.values.length, focused = document.activeElement;
  byId("empty").textContent = isGrowing() ? "No samples yet: they appear as soon as a profiled service sends to the "
    + "collector that writes them here. If none come, `splunk-profiler doctor` says why." : "There are no samples in it.";
  byId("empty").hidden = !isEmpty;
  fillHead();
  document.body.toggleAttribute("data-empty", isEmpty);
  if (isEmpty) {
    fillView(null);
    document.body.dataset.ready = "1";
    return true;
  }
  // At first all parts come together, since they move what is below them, also if one of them fails.
  // All else is asked for when the view's answer is here, also if that failed: the server would be slower to send it.
  const shown = askAgainIfOlder(value() === valueBefore ? early : askView());
  const askLater = (askIt) => shown.catch(() => null).then(() => question === asked && askIt());
  const parts = [
    [shown, (content) => {
      fillShown(content, isNewData);
      keepFocus(focused, graph.canvas, byId("top"), byId("source-lines"));
    }],
    [askLater(askGone), (content) => { if (content) fillGone(content); }],
    [askLater(() => ask("facets")), (content) => fillFacets(content, isNewData)],
    [askLater(() => ask("timeline", new URLSearchParams({ facet: state.get("by") || "service" }))), fillTimeline],
  ];
  if (!document.body.dataset.ready) await Promise.allSettled(parts.map(([answer]) => answer));
  document.body.dataset.ready = "1";
  await Promise.all(parts.map(async ([answer, fill]) => {
    const content = await answer;
    if (question === asked) fill(content);
  }));
  return question === asked;
}

function fillNotices() {
  const isCompared = Boolean(state.get("compare")), name = brief(state.get("function") ?? "");
  byId("compared").hidden = !isCompared;
  byId("uncompare").hidden = byId("swap").hidden = byId("all").hidden = Boolean(saved);
  byId("scale").disabled = Boolean(saved);
  byId("compare").hidden = Boolean(saved) || isCompared;
  if (isCompared) {
    const chosen = [...state].filter(([each]) => each.startsWith("b.f."))
      .flatMap(([each, text]) => [`, ${facetName(each.slice(4))} `, brief(text) || "(none)"]);
    const time = period(state.get("b.since") || overview.since, state.get("b.until") || overview.until);
    const ending = saved ? "." : ": now choose another time or other filters.";
    sayNames(byId("compared").querySelector("span"), `Compared with ${time}`, "", ...chosen, ending);
    byId("scale").value = state.get("compare");
  }
  byId("only").hidden = !name || !isCut();
  const texts = {
    flame: ["What is called by ", name, "; the other way: Inverted."],
    inverted: ["Who calls ", name, "; the other way: Flame graph."],
    sandwich: ["Who calls ", name, ", and below what it calls."],
  };
  sayNames(byId("only").querySelector("span"), ...texts[view()] ?? ["", name]);
}

function compare() {
  for (const [name, text] of [...state]) if (isSelection(name)) state.append(`b.${name}`, text);
  set({ compare: "time" });
  show();
}

// Exchanges the selection and the baseline.
function swap() {
  const pairs = [...state];
  for (const [name] of pairs) if (isSelection(name) || name.startsWith("b.")) state.delete(name);
  for (const [name, text] of pairs) {
    if (isSelection(name)) state.append(`b.${name}`, text);
    else if (name.startsWith("b.")) state.append(name.slice(2), text);
  }
  set(UNZOOMED);
  show();
}

function clearFilters() {
  for (const name of [...state.keys()]) if (name.startsWith("f.")) state.delete(name);
  set({});
  show();
}

function endComparison() {
  for (const name of [...state.keys()]) if (name === "compare" || name.startsWith("b.")) state.delete(name);
  set({ gone: "" });
  show();
}

function showGone() {
  set(view() === "top" && state.has("gone") ? { gone: "" } : { gone: "1", view: "top", ...UNZOOMED });
  show();
}

function focusOn(name, file) {
  set({ function: name, file, view: "sandwich", ...UNZOOMED });
  show();
}

function leaveFunction() {
  set({ function: "", file: "", ...UNZOOMED, ...(OF_FUNCTION.has(view()) && { view: "" }) });
  show();
}

function fillHead() {
  fillNotices();
  byId("source").textContent = byId("source").title = clean(overview.source);
  sayMessage(byId("note"), overview.note);
  byId("note").hidden = !byId("note").textContent;
  const options = overview.values.map(({ name }) => [name, NAMES[name] ?? name.replaceAll("_", " ")]);
  fillSelect(byId("value"), options, value());
  fillSelect(byId("by"), overview.facets.map((name) => [name, facetName(name)]), state.get("by") || "service");
  if (byId("search").value !== (state.get("q") || "")) byId("search").value = state.get("q") || "";
  for (const button of document.querySelectorAll("[data-view]")) {
    button.setAttribute("aria-pressed", String(button.dataset.view === view()));
    if (button.dataset.view === "trace") button.hidden = Boolean(saved && !saved.values[value()]?.trace);
    if (OF_FUNCTION.has(button.dataset.view)) button.hidden = !state.get("function");
  }
  byId("search-label").hidden = view() === "source";
  byId("up").hidden = !["flame", "inverted", "trace"].includes(view());
  byId("up").setAttribute("aria-pressed", String(state.has("up")));
  byId("unfilter").hidden = Boolean(saved) || ![...state.keys()].some((name) => name.startsWith("f."));
  fillLinks();
  fillPeriod();
}

// What the links save: the selection, or the baseline, with the function that the graph is of; in HTML all that is open.
function fillLinks() {
  byId("exports").hidden = Boolean(saved);
  byId("follow-label").hidden = !isGrowing();
  for (const link of document.querySelectorAll("[data-format]")) {
    const { format, baseline } = link.dataset, query = selection({ format });
    const isKept = (name) => !query.has(name) && (format === "html" || (name === "function" || name === "file") && isCut()
      || Boolean(baseline) && name.startsWith("b."));
    for (const [name, text] of [...state].filter(([each]) => isKept(each))) query.append(name, text);
    if (baseline) query.append("baseline", baseline);
    if (format !== "html" && view() === "inverted") query.append("inverted", "1");
    link.href = `api/export?${query}`;
    link.download = "";
    link.hidden = Boolean(saved);
  }
}

// Draws all pictures again, when colours or the pixel ratio change.
function redraw() {
  for (const each of [graph, callers]) each.draw();
  if (timeline) drawTimeline();
}

// Draws anew when a pixel of the page is another number of the screen's: on another screen, or zoomed.
function listenToScreen() {
  const changed = () => { redraw(); listenToScreen(); };
  matchMedia(`(resolution: ${devicePixelRatio}dppx)`).addEventListener("change", changed, { once: true });
}

function listen() {
  const changes = (id, name) => byId(id).addEventListener("change", (event) => { set({ [name]: event.target.value }); show(); });
  for (const [id, name] of [["value", "value"], ["by", "by"], ["scale", "compare"]]) changes(id, name);
  const clicks = {
    whole: selectAll, enlarge: showSelected, shrink: showWhole, out: zoomOut, compare, swap, gone: showGone, uncompare: endComparison, all: leaveFunction,
    unfilter: clearFilters,
    up: () => { set({ up: state.has("up") ? "" : "1" }); show(); },
    focus: () => focusOn(zoomedLast.zoomed.name, zoomedLast.zoomed.file),
  };
  for (const [id, clicked] of Object.entries(clicks)) byId(id).addEventListener("click", clicked);
  byId("search").addEventListener("input", (event) => {
    set({ q: event.target.value }, false);
    if (view() === "top") whenTyped(show);
    else { mark(); fillHead(); }
  });
  for (const button of document.querySelectorAll("[data-sort]")) {
    button.addEventListener("click", () => { set({ sort: button.dataset.sort }); show(); });
  }
  for (const button of document.querySelectorAll("[data-view]")) {
    button.addEventListener("click", () => { set({ view: button.dataset.view, gone: "", ...UNZOOMED }); show(); });
  }
  addEventListener("keydown", (event) => {
    if (event.key !== "/" || isShortcut(event) || event.target.matches("input:not([type=checkbox]), select")) return;
    event.preventDefault();
    byId("search").focus();
  });
  addEventListener("hashchange", () => { state = readState(); show(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  listenToScreen();
  listenToTimeline();
  listenToTrace();
}

async function follow() {
  try {
    const { hidden, dataset } = byId("problem"), isFailed = !hidden && dataset.status !== "400"; // that stays wrong
    if (byId("follow").checked && (isFailed || overview && isGrowing()) && !isMarking()) {
      const { version } = await ask("overview");
      if (version !== overview?.version || isFailed) await show(true);
    }
  } catch (error) {
    explain(error);
  }
  setTimeout(follow, 2000);
}

listen();
show();
if (!saved) follow();
