// The spans of one trace as a waterfall, and what a host profiler saw in one of them.
"use strict";

// The spans of the one trace that is chosen; null if there is not one.
function askTrace() {
  const traces = state.getAll("f.trace");
  return traces.length === 1 ? ask("trace", new URLSearchParams({ trace: traces[0] })) : null;
}

function fillTrace(trace) {
  byId("trace").hidden = view() !== "trace";
  if (view() !== "trace") return;
  const list = byId("spans"), note = byId("spans-note");
  byId("open-trace").hidden = Boolean(saved);
  if (saved) list.tabIndex = 0; // keys scroll it: its buttons take no focus
  const focused = document.activeElement?.dataset.span, scrolled = list.scrollTop;
  list.textContent = "";
  note.textContent = trace ? "" : "Choose one trace in the filters, or type its id: below are the stacks of all.";
  fillHostStacks(trace?.rows.find(([id]) => id === state.get("f.span_id")));
  if (!trace) return;
  for (const row of trace.rows) addSpan(list, row, trace.duration);
  if (focused) [...list.querySelectorAll("button")].find((each) => each.dataset.span === focused)?.focus();
  list.scrollTop = scrolled;
  const more = trace.spans - trace.rows.length;
  const seen = !trace.spans ? "No span of this trace was received: let the service send its spans to the same place."
    : `${trace.spans.toLocaleString()} spans, ${amount(trace.duration, "nanoseconds")}. A click shows the stacks of one span.`
      + (more ? ` ${more.toLocaleString()} later ones are not shown.` : "")
      + (trace.rest ? ` ${amount(trace.rest, unit())} outside of these spans.` : "");
  note.textContent = clean(`${seen} ${trace.note ?? ""}`.trim());
}

function addSpan(list, [id, depth, name, service, start, duration, weight, stacks], whole) {
  const row = make("button", "", make("li", "", list));
  row.type = "button";
  row.dataset.span = id;
  const isChosen = state.get("f.span_id") === id;
  row.setAttribute("aria-pressed", String(isChosen));
  const title = make("span", "", row);
  make("bdi", name || "(no name)", title);
  title.style.paddingLeft = `${Math.min(depth, 30) * 12}px`;
  make("span", ` ${service}`, title).className = "quiet";
  row.title = `${apart(name)} of ${apart(service)}, ${amount(duration, "nanoseconds")}`;
  const bar = make("span", "", make("span", "", row));
  bar.parentElement.className = "track";
  bar.className = "span";
  bar.style.left = `${(100 * start) / (whole || 1)}%`;
  bar.style.width = `${(100 * duration) / (whole || 1)}%`;
  const seen = stacks.length ? `, ${stacks.length.toLocaleString()} on host` : "";
  make("span", `${weight ? amount(weight, unit()) : "no samples"}${seen}`, row).className = "number";
  row.disabled = Boolean(saved);
  row.addEventListener("click", () => { set({ "f.span_id": isChosen ? "" : id, ...UNZOOMED }); show(); });
}

// The ids of the stacks that a host profiler saw in the chosen span, the most frequent first.
function fillHostStacks(span) {
  const stacks = span?.[7] ?? [], counts = new Map();
  for (const id of stacks) counts.set(id, (counts.get(id) ?? 0) + 1);
  byId("host").hidden = !stacks.length;
  const list = byId("host").querySelector("ul");
  list.textContent = "";
  for (const [id, count] of [...counts].sort(([, one], [, other]) => other - one)) {
    const item = make("li", "", list);
    make("code", id, item);
    make("span", ` ${count.toLocaleString()}`, item).className = "quiet";
  }
}

function listenToTrace() {
  byId("open-trace").addEventListener("submit", (event) => {
    event.preventDefault();
    const id = byId("trace-id").value.trim().toLowerCase();
    if (!id) return;
    byId("trace-id").value = "";
    state.delete("f.trace");
    set({ "f.trace": id, "f.span_id": "", ...UNZOOMED });
    show();
  });
}
