// The timeline of the period, in which a stretch can be chosen.
"use strict";

const SERIES = ["#e08a2c", "#5b95d6", "#57a883", "#b779c9", "#d06a6a", "#8d8d3f", "#3fa3ad", "#9a7b5c", "#9aa0a6"];
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
  canvas.setAttribute("aria-label", `${NAMES[value()] ?? value()} over time, at most ${amount(most, unit())} in one of `
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
