// The flame graphs: one of all, or two of a function, its callers above and its callees below.
"use strict";

const ROOM = 12; // rows, for the deeper stacks that may come
const UNZOOMED = { zoom: "", "zoom.callers": "" };
const graph = new FlameGraph(byId("graph"), byId("scroll"), byId("height"),
  (path) => zoomedTo(graph, { zoom: path }), (...frame) => describe(graph, ...frame));
const callers = new FlameGraph(byId("callers-graph"), byId("callers-scroll"), byId("callers-height"),
  (path) => zoomedTo(callers, { "zoom.callers": path }), (...frame) => describe(callers, ...frame));
let zoomedLast = graph; // the one whose frame a button leads to the callers and callees of

const isZoomed = (each) => each.made.length > 0 && each.zoomed.depth > each.top;

function zoomedTo(one, changes) {
  zoomedLast = one;
  set(changes);
  fillZoom();
  fillLinks(); // a file has the zoom
}

function fillZoom() {
  const isShown = byId("flame").checkVisibility();
  byId("out").hidden = !isShown || !(isZoomed(graph) || isSandwich() && isZoomed(callers));
  byId("focus").hidden = !isShown || !isZoomed(zoomedLast) || zoomedLast.zoomed.isSum || Boolean(saved);
}

function zoomOut() {
  for (const each of isSandwich() ? [callers, graph] : [graph]) each.lookAt(each.frame(each.top));
  zoomedTo(graph, UNZOOMED);
  graph.canvas.focus({ preventScroll: true }); // the button that had it goes
}

function showFlame(shown, isHeld) {
  const isOfFunction = isSandwich(), top = Number(isOfFunction), rows = isGrowing() ? ROOM : 0;
  byId("flame").classList.toggle("sandwich", isOfFunction);
  if (isOfFunction) callers.show(shown.callers, state.get("zoom.callers"), { isUp: true, top, rows, isHeld });
  graph.show(shown, state.get("zoom"), { isUp: Boolean(state.get("up")) && !isOfFunction, top, rows, isHeld });
  if (!isOfFunction || !isZoomed(zoomedLast)) zoomedLast = graph;
  const count = ({ made }) => Math.max(0, made.length - 1 - top).toLocaleString();
  const name = apart(brief(state.get("function") ?? ""));
  const isOf = isOfFunction ? `What ${name} calls, ` : "";
  byId("graph").setAttribute("aria-label", `${isOf}${count(graph)} frames; the same as a table: Top functions`);
  byId("callers-graph").setAttribute("aria-label", `Who calls ${name}, ${count(callers)} frames`);
  const isWalked = document.activeElement === callers.canvas || !graph.pointed;
  if (isOfFunction && callers.pointed && isWalked) describe(callers, callers.pointed);
  fillZoom();
  byId("kinds").hidden = graph.isCompared;
  byId("changes").hidden = !graph.isCompared;
  mark();
}

function mark() {
  const text = state.get("q") || "";
  const found = (each) => {
    const { weight, isPart } = each.find(text);
    return `${isPart ? "at least " : ""}${share(weight, each.columns.total[0])}`;
  };
  const among = isSandwich() ? `${found(callers)} of callers, ${found(graph)} of callees` : found(graph);
  say(byId("found"), text ? `${among} found` : "");
}

// Says what a frame has, or else the one that is zoomed. Of the reader's own move what has changed is read aloud; new
// data says nothing.
function describe(one, frame, isMove = false) {
  const at = byId("frame"), shown = frame ?? one.zoomed;
  at.ariaLive = isMove && document.activeElement === one.canvas ? "polite" : "off";
  if (!shown) return;
  const whole = one.frame(0).total;
  const sum = (weight) => amount(weight, unit()) + (whole ? ` (${share(weight, whole)})` : "");
  const texts = [
    brief(shown.name),
    `${sum(shown.total)}${shown.own ? `, own ${sum(shown.own)}` : ""}`
      + (one.isCompared ? `, ${change(shown.total, shown.before, unit())}` : ""),
    shown.file && ` ${shown.file}`,
    (shown.file && shown.line ? `:${shown.line}` : "") + (shown === one.zoomed && isZoomed(one) ? ", zoomed" : ""),
  ];
  texts.forEach((text, part) => say(at.children[part], clean(text)));
}
