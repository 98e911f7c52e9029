// Numbers, times and names as text, and the few steps that all parts of the page take.
"use strict";

const byId = (id) => document.getElementById(id);
const saved = byId("saved") ? JSON.parse(byId("saved").textContent) : null;
const NAMES = Object.assign(Object.create(null), {
  cpu: "CPU time", wall: "wall time", samples: "samples", gc: "garbage collection", alloc_space: "allocated",
  alloc_samples: "allocations", inuse_space: "memory in use", inuse_objects: "objects in use",
  collections: "collections of garbage", exceptions: "exceptions", tasks: "waiting tasks", task_wait: "waits of tasks",
  loop_blocks: "blocks of event loops", loop_blocked: "event loops blocked",
  lock_waiters: "waits for a lock", lock_delay: "locks held while others wait",
  gil_wait: "waits of snapshots for the GIL", gil_long_waits: "waits for the GIL over 5 ms", gil_snapshots: "snapshots that asked for the GIL",
});
const FACETS = {
  service: "service", version: "version", process: "process", endpoint: "endpoint", span: "span name", thread: "thread", code: "whose code",
  state: "state", trace: "trace",
};
const facetName = (name) => FACETS[name] ?? brief(name.replace(/^label:/, "label "));

const UNITS = {
  nanoseconds: [[8.64e13, "d"], [3.6e12, "h"], [6e10, "min"], [1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]],
  bytes: [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"], [1, "B"]],
};
const MOMENT = {
  year: "numeric", month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23",
};
const MINUTE_MS = 60_000, HOUR_MS = 60 * MINUTE_MS, DAY_MS = 24 * HOUR_MS;
const STEPS_MS = [
  ...[1, 2, 5, 10, 20, 50, 100, 200, 500], ...[1, 2, 5, 10, 15, 30].map((seconds) => 1000 * seconds),
  ...[1, 2, 5, 10, 15, 30].map((minutes) => MINUTE_MS * minutes), ...[1, 2, 3, 6, 12].map((hours) => HOUR_MS * hours),
];

// Makes visible what has no shape of its own or turns the direction of a text.
const clean = (text) => text.replace(/\p{C}/gu, (each) => `\\u{${each.codePointAt(0).toString(16)}}`);

function make(tag, text, parent) {
  const node = document.createElement(tag);
  node.textContent = clean(text);
  parent?.append(node);
  return node;
}

// Keys of the browser, or of the reader's system.
const isShortcut = (event) => event.ctrlKey || event.metaKey || event.altKey;

// Calls a function when nothing is typed for a moment: not each letter is a question.
let typed = 0;
function whenTyped(call) {
  clearTimeout(typed);
  typed = setTimeout(call, 100);
}

// Sets a text unless it is there: what is read aloud when it changes is not read twice.
function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// Letters that are read from right to left move what stands beside a name, unless the name stands apart: in an element
// of its own, or, where only a text can be, between two characters that nobody sees.
const apart = (name) => `\u2066${clean(name)}\u2069`;

// The start of a name that a notice has no room for.
const brief = (name) => name.replace(/^(.{200}).+$/su, "$1…");

// Sets a text, of which each second part is a name.
function sayNames(node, ...parts) {
  if (node.textContent === clean(parts.join(""))) return;
  node.textContent = "";
  parts.forEach((part, at) => make(at % 2 ? "bdi" : "span", part, node));
}

// Words that have letters which are read from right to left.
const TURNED = String.raw`\S*[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc\u{10800}-\u{10fff}\u{1e800}-\u{1efff}]\S*`;
const ALL_TURNED = new RegExp(`(${TURNED}(?: ${TURNED})*)`, "u");

// A time of UTC in a message, in the reader's zone.
const toMoment = (utc) => new Date(utc).toLocaleString(undefined, { ...MOMENT, timeZoneName: "short" });

// Sets a message of the server, in which any word may be a part of a name.
function sayMessage(node, text) {
  const local = text.replace(/\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ/g, toMoment);
  sayNames(node, ...local.split(" ").map(brief).join(" ").split(ALL_TURNED));
}

// A file that is broken after one of its folders, if it is longer than a line.
function addPlace(file, line, parent) {
  const path = make("bdi", "", parent);
  clean(file).split(/(?<=\/)/).forEach((part) => path.append(part, make("wbr", "")));
  if (line) parent.append(`:${line}`);
}

// Made once: a table has thousands of numbers.
const WHOLE = new Intl.NumberFormat(undefined, { maximumFractionDigits: 0 });
const THREE_DIGITS = new Intl.NumberFormat(undefined, { minimumSignificantDigits: 3, maximumSignificantDigits: 3 });
const PERCENT = new Intl.NumberFormat(undefined, { minimumFractionDigits: 1, maximumFractionDigits: 1 });

// Three digits, or all those before the point.
function digits(number) {
  const isLong = number >= 999.5;
  return (isLong ? WHOLE : THREE_DIGITS).format(number);
}

// The largest unit of which there is one, also if only after rounding.
function amount(weight, unit) {
  if (!Object.hasOwn(UNITS, unit)) return weight.toLocaleString();
  const [size, name] = UNITS[unit].find(([each]) => Number((weight / each).toPrecision(3)) >= 1) ?? [1, UNITS[unit].at(-1)[1]];
  return `${size === 1 ? weight.toLocaleString() : digits(weight / size)} ${name}`;
}

function share(part, whole) {
  return whole ? `${PERCENT.format((100 * part) / whole)} %` : "";
}

// How a weight differs from that of the baseline.
function change(weight, before, unit) {
  if (!before) return weight ? "new" : "";
  if (!weight) return `gone, was ${amount(before, unit)}`;
  const part = Math.round((100 * (weight - before)) / before);
  if (!part) return "as before";
  return `${part < 0 ? "−" : "+"}${Math.abs(part).toLocaleString()} %, was ${amount(before, unit)}`;
}

const toDate = (ns) => new Date(Number(BigInt(ns) / 1000000n));

// Two times of the reader's zone, and its name; the second has a day only if it is another one.
function period(since, until) {
  const isShort = BigInt(until) - BigInt(since) < 10_000_000_000n;
  const format = new Intl.DateTimeFormat(undefined, { ...MOMENT, ...(isShort && { fractionalSecondDigits: 3 }) });
  const ends = [toDate(since), toDate(until)];
  const zones = new Set(ends.map((date) => new Intl.DateTimeFormat(undefined, { timeZoneName: "short" }).formatToParts(date)
    .find(({ type }) => type === "timeZoneName").value)); // two if clocks were changed between
  return `${format.formatRange(...ends)} ${[...zones].join("/")}`;
}

// Round times between two, in milliseconds, and their texts: at midnight the day, with a year that is not `year`, else
// the time.
function ticks(since, until, year = new Date().getFullYear()) {
  const from = Number(BigInt(since) / 1000000n), to = Number(BigInt(until) / 1000000n), first = new Date(from);
  const step = STEPS_MS.find((each) => (to - from) / each <= 6) ?? 0;
  const hours = step ? step / HOUR_MS : 24 * Math.ceil((to - from) / DAY_MS / 7);
  const offset = first.getTimezoneOffset() * MINUTE_MS, start = Math.ceil((from - offset) / step) * step + offset;
  // Round in the reader's zone: hours are counted from midnight, as clocks say also after they are changed.
  const at = (count) => (hours < 1 ? start + count * step
    : new Date(first.getFullYear(), first.getMonth(), first.getDate(), count * hours).getTime());
  const times = Array.from({ length: 32 }, (_, count) => at(count)).filter((each) => each >= from && each <= to);
  return [...new Set(times)].map((each) => [each, tickText(new Date(each), step || DAY_MS, year)]);
}

function tickText(date, step, year) {
  const isMidnight = !(date.getHours() + date.getMinutes() + date.getSeconds() + date.getMilliseconds());
  const ofYear = date.getFullYear() === year ? {} : { year: "numeric" };
  if (isMidnight) return date.toLocaleDateString(undefined, { ...ofYear, month: "short", day: "numeric" });
  return date.toLocaleTimeString(undefined, {
    hour: "2-digit", minute: "2-digit", hourCycle: "h23", ...(step < MINUTE_MS && { second: "2-digit" }),
    ...(step < 1000 && { fractionalSecondDigits: 3 }),
  });
}
