// The parts of the page beside the timeline, each filled from an answer; and numbers and times as text.
"use strict";

const byId = (id) => document.getElementById(id);
const saved = byId("saved") ? JSON.parse(byId("saved").textContent) : null;
const NAMES = Object.assign(Object.create(null), {
  cpu: "CPU time", wall: "wall time", samples: "samples", gc: "garbage collection", alloc_space: "allocated",
  alloc_objects: "allocations", inuse_space: "memory in use", inuse_objects: "objects in use",
});
const FACETS = {
  service: "service", version: "version", process: "process", endpoint: "endpoint", span: "span name", thread: "thread", code: "whose code",
  state: "state", trace: "trace",
};
const facetName = (name) => FACETS[name] ?? name.replace(/^label:/, "label ");

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

// How a weight differs from that of the baseline.
function change(weight, before, unit) {
  if (!before) return weight ? "new" : "";
  if (!weight) return `gone, was ${amount(before, unit)}`;
  const part = (100 * (weight - before)) / before;
  if (Math.abs(part) < 0.5) return "as before";
  return `${part < 0 ? "−" : "+"}${Math.abs(part).toFixed(0)} %, was ${amount(before, unit)}`;
}

function showFlame(shown) {
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
  const before = graph.isCompared ? `, ${change(shown.total, shown.before, unit())}` : "";
  const own = shown.own ? `, own ${amount(shown.own, unit())} (${share(shown.own, whole)})` : "";
  make("span", ` ${amount(shown.total, unit())} (${share(shown.total, whole)})${own}${before}`, at);
  make("span", place, at).className = "quiet";
}

function fillSelect(select, options, chosen) {
  if (select.dataset.options !== JSON.stringify(options)) {
    select.dataset.options = JSON.stringify(options);
    select.textContent = "";
    for (const [name, text] of options) make("option", text, select).value = name;
  }
  select.value = chosen;
}

function fillFacets(facets) {
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
      make("span", amount(weight, unit()), label);
      if (box.dataset.choice === focused) box.focus();
    }
    list.scrollTop = scrolled.get(facet) ?? 0;
  }
}

function fillTop(shown) {
  const body = byId("top").querySelector("tbody");
  body.textContent = "";
  byId("top").querySelector("table").className = state.get("compare") ? "compared" : "";
  for (const { dataset, parentElement } of document.querySelectorAll("[data-sort]")) {
    if (dataset.sort === sort()) parentElement.setAttribute("aria-sort", "descending");
    else parentElement.removeAttribute("aria-sort");
  }
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
      make("td", `${amount(weight, unit())}  ${share(weight, shown.total)}`, row).className = "number";
    }
    if (ownBefore !== undefined) {
      const isByOwn = totalBefore && total && sort() === "own";
      const text = isByOwn ? change(own, ownBefore, unit()) : change(total, totalBefore, unit());
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
    for (const weight of [own, total]) make("td", weight ? amount(weight, unit()) : "", row).className = "number";
  }
  byId("found").textContent = "";
  byId("out").hidden = byId("focus").hidden = true;
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
    make("span", `${weight ? amount(weight, unit()) : "no samples"}${seen}`, row).className = "number";
    row.disabled = Boolean(saved);
    row.addEventListener("click", () => { set({ "f.span_id": isChosen ? "" : id, zoom: "" }); show(); });
    if (id === focused) row.focus();
  }
  list.scrollTop = scrolled;
  const more = trace.spans - trace.rows.length;
  note.textContent = !trace.spans ? "No span of this trace was received: let the service send its spans to the same place."
    : `${trace.spans.toLocaleString()} spans, ${amount(trace.duration, "nanoseconds")}. A click shows the stacks of one span.`
      + (more ? ` ${more.toLocaleString()} later ones are not shown.` : "")
      + (trace.rest ? ` ${amount(trace.rest, unit())} outside of these spans.` : "");
}
