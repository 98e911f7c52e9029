// The timeline of the period, or of the part of it that is shown, in which a stretch can be chosen.
"use strict";

// Each with a contrast of 3 to 1 to what is behind it, light or dark.
const SERIES = ["#c26a12", "#3f7fc4", "#2f8a66", "#a161b5", "#c95555", "#85852f", "#2b8c96", "#94714d", "#7f868d"];
let marked = null; // the stretch of buckets that is being dragged over, or chosen with keys
let dragged = null; // the bucket where a drag has begun
let timeline = null, latest = null; // answers: the one that is shown, and the one to show when nothing is being marked

const isMarking = () => marked !== null || dragged !== null;

function fillTimeline(answer) {
  latest = { ...answer, to: state.get("to") };
  drawTimeline();
}

function drawTimeline() {
  if (!isMarking()) timeline = latest;
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
  drawAxis(count);
  fillPeriod();
  const of = isAllShown() ? "" : `, ${period(timeline.start, bucketStart(count))}`;
  canvas.setAttribute("aria-label", `${NAMES[value()] ?? value()} over time${of}, at most ${amount(most, unit())} in one `
    + `of ${count} stretches`);
}

// The chosen stretch, of which a part or nothing may be shown; an address may have only one of its ends.
function chosenBuckets() {
  const last = (timeline.series[0]?.[1].length ?? 0) - 1, start = BigInt(timeline.start);
  const bucket = (ns) => (BigInt(ns) < start ? -1 : Number((BigInt(ns) - start) / BigInt(timeline.step)));
  const since = state.get("since"), until = state.get("until");
  return [since ? Math.max(0, bucket(since)) : 0, until ? Math.min(last, bucket(BigInt(until) - 1n)) : last];
}

const isWhole = () => !state.get("since") && !state.get("until");
const isAllShown = () => !state.get("from") && !state.get("to");

// Sets the time that the timeline is asked for, in place of the chosen stretch.
function setShown(query) {
  for (const [name, end] of [["since", "from"], ["until", "to"]]) {
    query.delete(name);
    if (state.has(end)) query.append(name, state.get(end));
  }
}

// The last bucket ends with the part that is shown.
function bucketStart(bucket) {
  const start = BigInt(timeline.start) + BigInt(bucket) * BigInt(timeline.step);
  return timeline.to && BigInt(timeline.to) < start ? timeline.to : String(start);
}

function drawAxis(count) {
  const axis = byId("axis"), start = Number(BigInt(timeline.start)) / 1e6, length = (count * Number(timeline.step)) / 1e6;
  axis.textContent = "";
  if (!count) return;
  for (const [at, text] of ticks(timeline.start, bucketStart(count))) {
    const place = (at - start) / length;
    const tick = make("span", text, axis), room = tick.offsetWidth / 2 / axis.clientWidth;
    tick.style.left = `${100 * place}%`;
    if (place < room || place > 1 - room) tick.remove(); // its text would be cut off
  }
}

// The stretch that is being marked, or else the chosen one.
function fillPeriod() {
  const since = marked ? bucketStart(marked[0]) : state.get("since") || overview.since;
  const until = marked ? bucketStart(marked[1] + 1) : state.get("until") || overview.until;
  byId("period").ariaLive = marked || !isWhole() ? "polite" : "off"; // the whole grows by itself
  say(byId("period"), overview.values.length ? period(since, until) : "");
  const isShown = state.get("from") === state.get("since") && state.get("to") === state.get("until");
  byId("whole").hidden = isWhole() || Boolean(saved);
  byId("enlarge").hidden = isWhole() || isShown || Boolean(saved);
  byId("shrink").hidden = isAllShown() || Boolean(saved);
}

function selectMarked() {
  const [from, to] = marked;
  marked = null;
  set({ since: bucketStart(from), until: bucketStart(to + 1) });
  show();
}

function selectAll() {
  marked = null;
  set({ since: "", until: "", from: "", to: "" });
  show();
}

// Shows a part of the time, or all of it without one. The button goes: who has used it goes on in the timeline.
function showTime(from, to) {
  set({ from, to });
  byId("timeline").focus({ preventScroll: true });
  show();
}

const showSelected = () => showTime(state.get("since"), state.get("until"));
const showWhole = () => showTime("", "");

function listenToTimeline() {
  const canvas = byId("timeline");
  const bucket = (event) => {
    const box = canvas.getBoundingClientRect(), count = timeline.series[0]?.[1].length ?? 1;
    return Math.max(0, Math.min(count - 1, Math.floor(((event.clientX - box.left) / box.width) * count)));
  };
  const stop = () => {
    dragged = marked = null;
    drawTimeline();
  };
  canvas.addEventListener("pointerdown", (event) => {
    if (saved || !timeline || event.button || !event.isPrimary) return;
    stop(); // what was marked with keys
    dragged = bucket(event);
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (dragged === null || !event.isPrimary) return;
    if (!event.buttons) return stop(); // it was released where that was not told
    marked = [Math.min(dragged, bucket(event)), Math.max(dragged, bucket(event))];
    drawTimeline();
  });
  canvas.addEventListener("pointerup", (event) => {
    if (dragged === null || !event.isPrimary) return;
    dragged = null;
    if (marked) selectMarked();
    else drawTimeline();
  });
  canvas.addEventListener("pointercancel", () => { if (dragged !== null) stop(); });
  canvas.addEventListener("blur", () => { if (dragged === null && marked) stop(); }); // or it would keep new data away
  canvas.addEventListener("keydown", (event) => {
    if (saved || !timeline || isShortcut(event)) return;
    const count = timeline.series[0]?.[1].length ?? 1;
    const [from, to] = marked ?? (isWhole() ? [0, 0] : chosenBuckets());
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (move) {
      const end = Math.min(count - 1, Math.max(event.shiftKey ? from : 0, to + move));
      marked = [event.shiftKey ? Math.min(from, end) : end, end];
      drawTimeline();
    } else if (event.key === "Enter" && marked) selectMarked();
    else if (event.key === "Escape") selectAll();
    else return;
    event.preventDefault();
  });
  new ResizeObserver(() => timeline && drawTimeline()).observe(canvas);
}
