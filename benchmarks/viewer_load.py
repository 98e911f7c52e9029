"""Time of a click in the viewer on a store of ten million samples, in SQL, and in columns as `view` has them.

A week of one service: 200,000 distinct stacks of 10 to 60 frames, 8 endpoints, 40 threads, 4 processes, a third of the
samples in 500,000 traces, the spans of those of the last two days. The answers are made as for the page, JSON included,
but not sent. What the viewer keeps of earlier answers is pushed out before each click, but for the selection that it
comes from. Where there is Chromium, clicks on the page are timed as well, until the view is drawn and until all is. The
same samples as rows of SQLite and, where it is installed, of DuckDB answer one question only: the weights of all stacks
of an endpoint.
"""

from __future__ import annotations

import json
import resource
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from result import Result, main, median

from splunk_profiler.viewer.answers import Answers
from splunk_profiler.viewer.columns import Columns, SpanKeys
from splunk_profiler.viewer.live_store import LiveStore
from splunk_profiler.viewer.model import DAY_NS, HOUR_NS, Baseline, Facets, Selection, Span
from splunk_profiler.viewer.recording import Recording
from splunk_profiler.viewer.store_writer import StoreWriter

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

SAMPLES, FUNCTIONS, SPANS_PER_TRACE = 10_000_000, 20_000, 2
SAMPLES_PER_STACK, SAMPLES_PER_TRACE = 50, 20
DAYS_OF_SPANS = 2  # as long as a store keeps them, if it is not told otherwise
ENDPOINTS, THREADS, PROCESSES = 8, 40, 4
END_NS = 1_800_000_000_000_000_000
WEEK_NS = 7 * DAY_NS
CLICK_LIMIT_MS = 300
EXPORT_LIMIT_S = 5
ROUNDS = 5
COMPARED = "all parts of it, compared with the whole"
SELECTED = f"GET /{ENDPOINTS // 2}"

# What the reader does on the page, by name; each follows the one before.
ACTIONS = {
    "endpoint": f"document.querySelector(\"[data-choice='endpoint {SELECTED}']\").click()",
    "inverted": "document.querySelector('[data-view=inverted]').click()",
    "top": "document.querySelector('[data-view=top]').click()",
    "function": "document.querySelector('#top tbody button').click()",
    "flame": "document.querySelector('[data-view=flame]').click()",
    "all functions": "document.querySelector('#all').click()",
    "compare": "document.querySelector('#compare').click()",
    "thread": "document.querySelector(\"[data-choice='thread worker-1']\").click()",
    "end of the comparison": "document.querySelector('#uncompare').click()",
    "a day": f"set({{ since: '{END_NS - DAY_NS}', until: '{END_NS}' }}); show()",
    "its timeline": "document.querySelector('#enlarge').click()",
    "the whole time": "document.querySelector('#whole').click()",
    "without the endpoint": f"document.querySelector(\"[data-choice='endpoint {SELECTED}']\").click()",
}
_UNTIL_DRAWN = """
(async () => {
  const body = document.body, before = body.dataset.shown, started = performance.now(), fill = window.fillShown;
  const drawn = () => new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)))
    .then(() => performance.now() - started);
  const isViewDrawn = new Promise((resolve) => {
    window.fillShown = (content) => { fill(content); resolve(drawn()); };
  });
  const isAllShown = new Promise((resolve) => new MutationObserver((_, observer) => {
    if (body.dataset.shown !== before) { observer.disconnect(); resolve(); }
  }).observe(body, { attributes: true }));
  %s;
  const found = [await isViewDrawn, await isAllShown.then(drawn)];
  window.fillShown = fill;
  return found;
})()
"""

Ints = NDArray[np.int64]


def add_stacks(recording: Recording, chosen: np.random.Generator, count: int) -> None:
    """Add stacks that begin alike, as those of a service do: they branch from the twelfth frame on."""
    for place in range(FUNCTIONS):
        part = place % 200
        recording.function_id(f"shop.part{part}.Part.step_{place}", f"/srv/shop/part{part}.py", "application")
    packed: set[bytes] = set()
    while len(packed) < count:
        depths = chosen.integers(10, 61, count)
        state = chosen.integers(0, ENDPOINTS, count)
        frames = np.zeros((count, int(depths.max()), 2), np.int32)
        for depth in range(frames.shape[1]):
            branch = np.minimum(chosen.geometric(0.6, count) - 1, 5) if depth >= 12 else 0
            state = (state * 7919 + branch * 104_729 + depth * 31) % 1_000_003
            frames[:, depth, 0] = state % FUNCTIONS
            frames[:, depth, 1] = 10 + state % 7
        packed.update(row[:depth].tobytes() for row, depth in zip(frames, depths, strict=True))
    for content in sorted(packed)[:count]:
        recording.stacks.index(content)


def fill(recording: Recording, samples: int) -> None:
    """Add the samples, their facets and the spans of the last days."""
    chosen = np.random.default_rng(7)
    stacks, trace_count = samples // SAMPLES_PER_STACK, samples // SAMPLES_PER_TRACE
    add_stacks(recording, chosen, stacks)
    facets = [
        recording.facets_id(
            Facets("shop", "1.4", f"shop web {process}", f"GET /{endpoint}", f"worker-{thread}", code, state)
        )
        for process in range(PROCESSES)
        for endpoint in range(ENDPOINTS)
        for thread in range(THREADS)
        for code in ("application", "library")
        for state in ("running", "waiting")
    ]
    recording.units.update(samples="count", wall="nanoseconds")
    recording.values.update(recording.units)
    count = trace_count * SPANS_PER_TRACE
    traces = np.array([b"", *(f"{place:032x}".encode() for place in range(1, trace_count + 1))])
    trace_of = np.append(0, 1 + np.arange(count) // SPANS_PER_TRACE)
    ids = np.array([b"", *(f"{place:016x}".encode() for place in range(1, count + 1))])
    times = np.sort(chosen.integers(END_NS - WEEK_NS, END_NS, samples))
    in_span = 1 + ((times - times[0]) / WEEK_NS * (count - 1)).astype(np.int64)  # a trace is a stretch of time
    columns = Columns(
        times,
        (chosen.zipf(1.2, samples) % stacks).astype(np.int32),
        np.array(facets, np.int32)[chosen.integers(0, len(facets), samples)],
        np.where(chosen.random(samples) < 1 / 3, in_span, 0).astype(np.int32),
        {"samples": np.ones(samples, np.uint8), "wall": np.full(samples, 1_000_000_000, np.uint32)},
        SpanKeys(traces, trace_of, ids),
    )
    recording.loaded.append(columns)
    per_trace_ns = WEEK_NS // trace_count
    for trace in range(trace_count - trace_count * DAYS_OF_SPANS // 7, trace_count):
        first = trace * SPANS_PER_TRACE + 1
        keys = [f"{place:016x}" for place in range(first, first + SPANS_PER_TRACE)]
        start_ns, name = int(times[0]) + trace * per_trace_ns, f"GET /{trace % ENDPOINTS}"
        spans = [
            Span(key, parent, name, "shop", start_ns, start_ns + per_trace_ns, (), "1.4")
            for key, parent in zip(keys, ["", *keys[:-1]], strict=True)
        ]
        recording.spans[f"{trace + 1:032x}"] = {span.id: span for span in spans}


def of_endpoint(name: str) -> Selection:
    """Return the samples of an endpoint."""
    return Selection("wall", filters={"endpoint": frozenset({name})})


def page(answers: Answers, selection: Selection, baseline: Baseline | None = None) -> tuple[Any, ...]:
    """Return all that the page asks for when a selection is made."""
    return (
        answers.flame(selection, inverted=False, baseline=baseline),
        answers.facets(selection),
        answers.timeline(selection, "service"),
    )


def clicks(answers: Answers, trace: str) -> dict[str, Callable[[], Any]]:
    """Return what the page asks for, by name."""
    whole = Selection("wall")
    endpoint = of_endpoint(SELECTED)
    day = Selection("wall", END_NS - DAY_NS, END_NS)
    endpoint_of_day, other_of_day = (replace(day, filters=of_endpoint(name).filters) for name in (SELECTED, "GET /0"))
    of_trace = Selection("wall", filters={"trace": frozenset({trace})})
    name = "shop.part0.Part.step_0", "/srv/shop/part0.py"
    return {
        "overview": answers.overview,
        "flame": lambda: answers.flame(whole, inverted=False),
        "flame of an endpoint": lambda: answers.flame(endpoint, inverted=False),
        "flame of a day": lambda: answers.flame(day, inverted=False),
        "inverted": lambda: answers.flame(whole, inverted=True),
        "callers": lambda: answers.flame(whole, inverted=True, function=name),
        "difference": lambda: answers.flame(endpoint, inverted=False, baseline=Baseline(whole, "share")),
        "difference by requests": lambda: answers.flame(
            endpoint_of_day, inverted=False, baseline=Baseline(other_of_day, "requests")
        ),
        "top": lambda: answers.top(whole, ""),
        "facets": lambda: answers.facets(whole),
        "facets of an endpoint": lambda: answers.facets(endpoint),
        "timeline": lambda: answers.timeline(whole, "endpoint"),
        "timeline of a day": lambda: answers.timeline(day, "endpoint"),
        "timeline by trace": lambda: answers.timeline(whole, "trace"),
        "trace": lambda: answers.trace(whole, trace),
        "flame of a trace": lambda: answers.flame(of_trace, inverted=False),
        "source": lambda: answers.source(whole, name),
        "all parts of the page of an endpoint": lambda: page(answers, endpoint),
        COMPARED: lambda: page(answers, endpoint, Baseline(whole, "share")),
    }


def come_to(name: str, answers: Answers) -> None:
    """Ask what is asked before a click: about other selections; when one compares, about another endpoint compared."""
    for hours in range(1, 5):
        answers.flame(Selection("wall", END_NS - hours * HOUR_NS, END_NS), inverted=False)
    if name == COMPARED:
        page(answers, of_endpoint("GET /0"), Baseline(Selection("wall"), "share"))


def times_ms(question: Callable[[], Any], rounds: int, before: Callable[[], Any] = tuple) -> list[float]:
    """Return how long each answer took; `before` is called before each."""
    found = []
    for _ in range(rounds):
        before()
        started = time.perf_counter()
        json.dumps(question())
        found.append(1000 * (time.perf_counter() - started))
    return found


@contextmanager
def page_of(store: Path, directory: Path) -> Iterator[Any]:
    """Show a store in Chromium, which must be there, and return the tab."""
    from browser import run_browser  # noqa: PLC0415  # of the tests

    command = [sys.executable, "-m", "splunk_profiler", "view", str(store)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            address = server.stdout.readline().split()[-1]
            with run_browser(directory) as page:
                page.open(address)
                yield page
                page.do("Page.navigate", url="about:blank")
        finally:
            server.terminate()


def times_on_page_ms(path: Path, directory: Path, rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Return by action how long it took until its view was drawn, and until all was; nothing without Chromium."""
    from browser import CHROMIUM  # noqa: PLC0415  # of the tests

    found: dict[str, list[tuple[float, float]]] = {}
    if CHROMIUM is None:
        return found
    with page_of(path, directory) as page:
        for _ in range(rounds):
            for name, action in ACTIONS.items():
                found.setdefault(name, []).append(page.value(_UNTIL_DRAWN % action))
    return found


def export_times_s(answers: Answers) -> dict[str, float]:
    """Return how long each export of the whole takes."""
    whole = Selection("wall")
    exports = {form: partial(answers.export, whole, form) for form in ("folded", "speedscope", "pprof")}
    exports["html"] = partial(answers.page, whole)
    found = {}
    for form, export in exports.items():
        started = time.perf_counter()
        export()
        found[f"{form}_s"] = round(time.perf_counter() - started, 1)
    return found


def sql_times(recording: Recording, directory: Path, rounds: int) -> Iterator[tuple[str, list[float], int]]:
    """Yield for each database its name, the times of one question in ms, and its bytes."""
    columns = recording.loaded[0]
    endpoints = [place for place, facets in enumerate(recording.facets) if facets.endpoint == SELECTED]
    question = f"SELECT stack, sum(wall) FROM samples WHERE facets IN ({','.join(map(str, endpoints))}) GROUP BY stack"
    arrays = (columns.time_ns, columns.stack, columns.facets, columns.span, columns.weights["wall"])
    path = directory / "rows.sqlite"
    with sqlite3.connect(path) as database:
        names = ("time_ns", "stack", "facets", "span", "wall")
        database.execute(f"CREATE TABLE samples ({', '.join(f'{name} INTEGER' for name in names)})")
        for first in range(0, len(columns), 100_000):
            rows = zip(*(each[first : first + 100_000].tolist() for each in arrays), strict=True)
            database.executemany("INSERT INTO samples VALUES (?, ?, ?, ?, ?)", rows)
    yield "SQLite", times_ms(lambda: database.execute(question).fetchall(), rounds), path.stat().st_size
    database.close()
    try:
        import duckdb  # noqa: PLC0415  # only to compare with
    except ModuleNotFoundError:
        print("DuckDB is not installed: it is not compared with", file=sys.stderr)
        return
    path = directory / "rows.duckdb"
    with duckdb.connect(str(path)) as other:
        found = dict(zip(names, arrays, strict=True))  # noqa: F841  # read by name
        other.execute("CREATE TABLE samples AS SELECT * FROM found")
        other.execute("CHECKPOINT")
        yield "DuckDB", times_ms(lambda: other.execute(question).fetchall(), rounds), path.stat().st_size


def measure(quick: bool) -> Iterator[Result]:
    """Yield the slowest median of all clicks, and what the rows of databases take."""
    samples, rounds = (SAMPLES // 10_000, 1) if quick else (SAMPLES, ROUNDS)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "store.db"
        recording = Recording()
        fill(recording, samples)
        writer = StoreWriter(path)
        started = time.perf_counter()
        writer.add(recording)
        written_s = time.perf_counter() - started
        writer.close()
        for name, found, size in sql_times(recording, Path(directory), rounds):
            details = {"MB": size // 10**6}
            yield Result(f"{name}: weights of the stacks of an endpoint", median(found), "ms", details=details)
        last_trace = max(recording.spans)
        del recording
        on_page = times_on_page_ms(path, Path(directory), rounds)
        if on_page:
            views, wholes = (
                {name: statistics.median(times[place] for times in each) for name, each in on_page.items()}
                for place in range(2)
            )
            details = {
                f"{name}{what}_ms": round(value)
                for what, times in (("", views), (" (all)", wholes))
                for name, value in times.items()
            }
            yield Result("slowest click in Chromium", max(views.values()), "ms", CLICK_LIMIT_MS, details=details)
        started = time.perf_counter()
        store = LiveStore(path)
        loaded_s = time.perf_counter() - started
        answers = Answers(store)
        weights = lambda: store.recording.weights(of_endpoint(SELECTED)).sum()  # noqa: E731
        medians = {
            name: statistics.median(times_ms(question, rounds, partial(come_to, name, answers)))
            for name, question in clicks(answers, last_trace).items()
        }
        yield Result(
            "slowest click in the viewer",
            max(medians.values()),
            "ms",
            CLICK_LIMIT_MS,
            details={
                "samples": samples,
                **{f"{name}_ms": round(value) for name, value in medians.items()},
                "weights_of_an_endpoint_ms": median(
                    times_ms(weights, rounds, partial(come_to, "weights of an endpoint", answers))
                ),
                "written_s": round(written_s, 1),
                "loaded_s": round(loaded_s, 1),
                "MB": path.stat().st_size // 10**6,
                "peak_MiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
            },
        )
        times_s = export_times_s(answers)
        yield Result("slowest export of the viewer", max(times_s.values()), "s", EXPORT_LIMIT_S, details=times_s)


if __name__ == "__main__":
    main(measure, __doc__)
