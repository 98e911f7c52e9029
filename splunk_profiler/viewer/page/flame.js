// A flame graph on canvas: draws only what can be seen, so that tens of thousands of frames move smoothly.
"use strict";

const ROW = 19;
const COLOURS = [["0", "0%", 74], ["30", "85%", 66], ["212", "70%", 74], ["155", "42%", 66]]; // by kind

function hashText(text, seed = 0x811c9dc5) {
  let hash = seed;
  for (let at = 0; at < text.length; at++) hash = Math.imul(hash ^ text.charCodeAt(at), 0x01000193) >>> 0;
  return hash;
}

// The columns of an answer: base64 of whole numbers of 32 bits, or, for weights, of floating point.
function unpack(columns) {
  return Object.fromEntries(Object.entries(columns).map(([name, text]) => {
    const content = atob(text), bytes = new Uint8Array(content.length);
    for (let at = 0; at < bytes.length; at++) bytes[at] = content.charCodeAt(at);
    return [name, new (["parent", "function", "line"].includes(name) ? Int32Array : Float64Array)(bytes.buffer)];
  }));
}

// A row of the columns. It is made when it is first looked at: of tens of thousands few are drawn.
class Frame {
  constructor(graph, at) {
    const { columns: { function: functions, line, total, own, before }, functions: named } = graph;
    [this.name, this.file, this.kind] = at ? named[functions[at]] : ["all", "", 0];
    this.graph = graph;
    this.at = at;
    this.line = line[at];
    this.total = total[at];
    this.own = own[at];
    this.before = before?.[at];
    this.depth = graph.depths[at];
    this.x = graph.starts[at];
    this.hash = at ? null : "";
  }

  get above() {
    return this.at ? this.graph.frame(this.graph.columns.parent[this.at]) : null;
  }

  // Stands for what there are too many frames of, which has the function of the root: none.
  get isSum() {
    return this.at > 0 && !this.graph.columns.function[this.at];
  }

  get children() {
    const { graph, at } = this, first = graph.firstBelow[at];
    return Array.from({ length: graph.endBelow[at] - first }, (_, place) => graph.frame(first + place));
  }

  // The hash of its functions from the root on; that of the root is empty. A stack may be too deep for a recursion.
  get path() {
    const open = [];
    for (let frame = this; frame.hash === null; frame = frame.above) open.push(frame);
    for (const frame of open.reverse()) {
      const { hash } = frame.above;
      frame.hash = hashText(`${frame.name}\n${frame.file}`, hash ? parseInt(hash, 36) : undefined).toString(36);
    }
    return this.hash;
  }
}

class FlameGraph {
  // `changed(zoom)` is called when the reader zooms; `described(frame, isMove)` when another frame is pointed at.
  constructor(canvas, scroller, spacer, changed, described) {
    Object.assign(this, { canvas, scroller, spacer, changed, described });
    this.read({ functions: [], frames: { parent: "", total: "" } }); // nothing yet
    this.search = "";
    this.zoomed = this.pointed = null;
    this.top = 0; // depth of the first frames that are drawn
    this.isUp = this.drawing = false;
    canvas.addEventListener("mousemove", (event) => this.point(this.at(event)));
    canvas.addEventListener("mouseleave", () => this.point(null));
    canvas.addEventListener("click", (event) => {
      const frame = this.at(event);
      if (frame) this.zoom(frame);
    });
    canvas.addEventListener("keydown", (event) => this.pressed(event));
    scroller.addEventListener("scroll", () => this.draw());
    new ResizeObserver(() => this.draw()).observe(scroller);
  }

  // `data` is an answer of the server; `path` is the hash of the frame to zoom to. `isUp` puts the root at the bottom,
  // and `top` is the depth of the first frames that are drawn: 1 leaves out the root. There is room for `rows` at
  // least; with `isHeld` a picture that is there stays as high as it is.
  show(data, path, { isUp = false, top = 0, rows = 0, isHeld = false } = {}) {
    const pointed = this.pointed?.path;
    this.read(data);
    const scroller = this.scroller, edge = () => (this.isUp ? scroller.scrollHeight - scroller.clientHeight : 0);
    const fromRoot = isUp === this.isUp ? Math.abs(edge() - scroller.scrollTop) : 0;
    this.top = Math.min(top, this.deepest);
    this.deepest = Math.max(this.deepest, this.top + rows - 1);
    this.isUp = isUp;
    const height = (this.deepest - this.top + 1) * ROW;
    this.spacer.style.height = `${height}px`;
    if (!isHeld || !scroller.style.height) scroller.style.height = `${height + 2}px`;
    scroller.scrollTop = Math.abs(edge() - fromRoot);
    this.zoomed = this.withPath(path) ?? this.frame(this.top);
    this.pointed = this.withPath(pointed);
    if (this.pointed?.depth < this.top) this.pointed = null;
    this.described(this.pointed);
    this.find(this.search);
  }

  // Takes the columns: the children of a frame are side by side after it, the heaviest first.
  read({ functions, frames }) {
    const columns = unpack(frames), { parent, total } = columns, count = parent.length;
    Object.assign(this, { functions, columns, made: Array(count), texts: null, isCompared: columns.before !== undefined });
    const depths = this.depths = new Int32Array(count), starts = this.starts = new Float64Array(count);
    const first = this.firstBelow = new Int32Array(count), end = this.endBelow = new Int32Array(count);
    const filled = new Float64Array(count); // up to where children are
    this.deepest = 0; // depth of the last row
    for (let at = 1; at < count; at++) {
      const above = parent[at];
      depths[at] = depths[above] + 1;
      starts[at] = filled[at] = filled[above];
      filled[above] += total[at];
      if (!end[above]) first[above] = at;
      end[above] = at + 1;
      this.deepest = Math.max(this.deepest, depths[at]);
    }
  }

  frame(at) {
    return this.made[at] ??= new Frame(this, at);
  }

  get frames() {
    return Array.from(this.made, (_, at) => this.frame(at));
  }

  withPath(path) {
    return typeof path === "string" ? this.frames.find((frame) => frame.path === path) ?? null : null;
  }

  // The row of frames of a depth, and the depth of a row.
  rowOf(depth) {
    return this.isUp ? this.deepest - depth : depth - this.top;
  }

  depthOf(row) {
    return this.isUp ? this.deepest - row : row + this.top;
  }

  // Marks the frames with that text; returns the weight of all that lies in or below them: `isPart` is true if there may
  // be more, where frames are summed up.
  find(text) {
    this.search = text.toLowerCase();
    const { parent, function: functions, total } = this.columns, count = this.made.length;
    const below = new Uint8Array(count);
    this.found = new Uint8Array(count);
    this.draw();
    if (!text) return { weight: 0, isPart: false };
    this.texts ??= this.functions.map(([name, file]) => `${name}\n${file}`.toLowerCase());
    const isFound = this.texts.map((each) => each.includes(this.search));
    let weight = 0, isPart = false;
    for (let at = 1; at < count; at++) {
      below[at] = this.found[parent[at]] | below[parent[at]];
      this.found[at] = functions[at] && isFound[functions[at]];
      if (below[at]) continue;
      if (this.found[at]) weight += total[at];
      isPart ||= !functions[at];
    }
    return { weight, isPart };
  }

  zoom(frame) {
    this.lookAt(frame);
    this.changed(frame.depth > this.top ? frame.path : "");
  }

  lookAt(frame) {
    this.zoomed = frame;
    this.described(this.pointed, true);
    this.draw();
  }

  point(frame) {
    if (frame === this.pointed) return;
    this.pointed = frame;
    this.described(frame, true);
    this.draw();
  }

  pressed(event) {
    const frame = this.pointed ?? this.zoomed;
    if (!frame || isShortcut(event)) return;
    const above = frame.above?.depth >= this.top ? frame.above : frame;
    const siblings = frame.above?.children ?? [], place = siblings.indexOf(frame);
    const moves = {
      [this.isUp ? "ArrowUp" : "ArrowDown"]: () => this.point(frame.children[0] ?? frame),
      [this.isUp ? "ArrowDown" : "ArrowUp"]: () => this.point(above),
      ArrowLeft: () => this.point(siblings[place - 1] ?? frame),
      ArrowRight: () => this.point(siblings[place + 1] ?? frame),
      Home: () => this.point(this.frame(this.top)),
      Enter: () => this.zoom(frame),
      Escape: () => this.zoom(this.zoomed.depth > this.top ? this.zoomed.above : this.zoomed),
    };
    if (!moves[event.key]) return;
    event.preventDefault();
    if (event.key === "Enter" || event.key === "Escape") this.pointed = null;
    moves[event.key]();
    this.reveal(this.pointed ?? this.zoomed);
  }

  // Scrolls to a frame.
  reveal(frame) {
    const top = this.rowOf(frame.depth) * ROW, bottom = top + ROW - this.scroller.clientHeight;
    this.scroller.scrollTop = Math.max(bottom, Math.min(top, this.scroller.scrollTop));
  }

  at(event) {
    const box = this.canvas.getBoundingClientRect();
    const depth = this.depthOf(Math.floor((event.clientY - box.top + this.scroller.scrollTop) / ROW));
    if (!this.zoomed || depth < this.top) return null;
    const { depths, starts, firstBelow, endBelow, columns: { total } } = this;
    const weight = this.zoomed.x + ((event.clientX - box.left) / box.width) * this.zoomed.total; // from the left edge of all
    let at = 0;
    while (depths[at] < depth) {
      const end = endBelow[at];
      at = firstBelow[at];
      while (at < end && starts[at] + total[at] <= weight) at++;
      if (at >= end) return null;
    }
    return this.frame(at);
  }

  // Where a frame, or the last part of it, is drawn, in pixels: the frames above the zoomed one are as wide as all.
  place(frame, width, weight = frame.total) {
    const scale = width / (this.zoomed.total || 1), end = frame.x + frame.total - this.zoomed.x;
    const left = Math.max(0, (end - weight) * scale);
    return [left, Math.min(width, end * scale) - left];
  }

  draw() {
    if (this.drawing) return;
    this.drawing = true;
    requestAnimationFrame(() => {
      this.drawing = false;
      this.drawNow();
    });
  }

  drawNow() {
    this.canvas.style.height = `${this.scroller.clientHeight}px`;
    const width = this.canvas.clientWidth, height = this.canvas.clientHeight, ratio = devicePixelRatio || 1;
    if (!width || !this.made.length) return;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    const context = this.canvas.getContext("2d");
    context.scale(ratio, ratio);
    context.font = "12px system-ui, sans-serif";
    context.textBaseline = "middle";
    this.dimmed = Number(getComputedStyle(this.canvas).getPropertyValue("--dimmed"));
    const row = Math.floor(this.scroller.scrollTop / ROW);
    const [first, last] = [row, row + Math.ceil(height / ROW) + 1].map((each) => this.depthOf(each)).sort((one, other) => one - other);
    const open = [0];
    while (open.length) {
      const frame = this.frame(open.pop());
      const [left, room] = this.place(frame, width);
      if (room < 0.4 || frame.depth > last) continue;
      if (frame.depth >= Math.max(first, this.top)) this.drawFrame(context, frame, left, room, this.place(frame, width, frame.own));
      for (let at = this.firstBelow[frame.at]; at < this.endBelow[frame.at]; at++) {
        if (this.columns.total[at] * width < 0.4 * this.zoomed.total) break; // the others are lighter
        open.push(at);
      }
    }
  }

  // Its own time, which has no child there, has a line at that edge; what the baseline has not is hatched.
  drawFrame(context, frame, left, room, [ownLeft, own]) {
    const top = this.rowOf(frame.depth) * ROW - this.scroller.scrollTop;
    const [hue, saturation, light] = COLOURS[frame.kind];
    const isFound = this.found[frame.at], dim = frame.depth < this.zoomed.depth || (this.search && !isFound);
    context.globalAlpha = dim ? this.dimmed : 1;
    const shade = light + (hashText(frame.name) % 5) * 2 - 4;
    context.fillStyle = isFound ? "hsl(300 75% 78%)"
      : this.isCompared ? changeColour(frame) : `hsl(${hue} ${saturation} ${shade}%)`;
    context.fillRect(left, top, Math.max(room - (room > 3 ? 1 : 0), 0.5), ROW - 1);
    if (this.isCompared && !frame.before) {
      context.fillStyle = this.hatch ??= makeHatch(context);
      context.fillRect(left, top, Math.max(room - 1, 0.5), ROW - 1);
    }
    if (own >= 1) {
      context.fillStyle = "#15181d";
      context.fillRect(ownLeft, this.isUp ? top + 1 : top + ROW - 4, own - (room > 3 ? 1 : 0), 2);
    }
    context.globalAlpha = 1;
    if (frame === this.pointed) {
      context.strokeStyle = getComputedStyle(this.canvas).color;
      context.lineWidth = 2;
      context.strokeRect(left + 1, top + 1, Math.max(room - 3, 1), ROW - 3);
    }
    if (room < 28) return;
    const fitting = Math.floor((room - 8) / 6.2);
    context.save();
    context.beginPath();
    context.rect(left, top, room - 4, ROW);
    context.clip();
    context.fillStyle = dim ? getComputedStyle(this.canvas).color : "#15181d";
    context.fillText(clean(shorten(frame.name, fitting)), left + 4, top + ROW / 2);
    context.restore();
  }
}

function makeHatch(context) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 8;
  const lines = tile.getContext("2d");
  lines.strokeStyle = "rgb(21 24 29 / 45%)";
  for (const x of [-8, 0, 8]) {
    lines.moveTo(x - 1, 9);
    lines.lineTo(x + 9, -1);
  }
  lines.stroke();
  return context.createPattern(tile, "repeat");
}

// Red: more than in the baseline; blue: less; the paler, the smaller the change.
function changeColour({ total, before }) {
  const change = (total - before) / Math.max(total, before, 1);
  return `hsl(${change > 0 ? 6 : 215} ${Math.round(20 + 60 * Math.abs(change))}% ${Math.round(90 - 24 * Math.abs(change))}%)`;
}

// The end of a dotted name says most.
function shorten(name, length) {
  let shown = name.length > 300 ? name.slice(0, 300) : name;
  while (shown.length > length && shown.includes(".") && !shown.startsWith("<")) {
    const rest = shown.slice(shown.indexOf(".") + 1);
    if (!rest || rest.startsWith("<")) break;
    shown = rest;
  }
  return shown;
}
