"""Time and memory of the viewer with a million records of text, and a thousand profiles, in ClickHouse's engine.

The engine is chDB's, in a process of its own behind its HTTP interface, on this machine. Records are of one hour: 20
services of 4 processes with 10 threads each, which wait in seven samples of ten; 500 stacks of 40 frames; half of the
others are in 100,000 spans. Nothing is measured where chDB is not installed.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from result import Result, main

from splunk_profiler.viewer.answers import Answers
from splunk_profiler.viewer.clickhouse import ClickHouse
from splunk_profiler.viewer.exports import pprof
from splunk_profiler.viewer.model import Function, Selection
from splunk_profiler.viewer.stacks import WeightedStacks

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

RECORDS, PROFILES = 1_000_000, 1000
CLICK_LIMIT_MS = 300
ROUNDS = 5


_RECORDS = """
INSERT INTO otel_logs (Timestamp, TraceId, SpanId, ServiceName, Body, ResourceAttributes, ScopeName, LogAttributes)
WITH
    cityHash64(number) AS chance,
    number % 800 AS thread,
    chance % 10 < 7 AS is_idle,
    if(is_idle, thread % 40, chance % 500) AS stack,
    hex(intDiv(chance, 16) % 100000 + 1) AS span,
    NOT is_idle AND chance % 2 = 0 AS in_span,
    arrayMap(i -> concat('\\tat shop.part', toString(i % 7), '.step_', toString((stack * 7919 + i * 31) % 5000),
        '(/srv/shop/part', toString(i % 7), '.py:', toString(10 + i), ')\\n'), range(40)) AS frames,
    concat('"worker-', toString(thread % 10), '" #1 prio=0 os_prio=0 cpu=', toString(number),
        'ms elapsed=1s tid=0x1 nid=0x', hex(number), if(is_idle, ' waiting', ' running'),
        '\\n   python.Thread.State: ANY\\n') AS head
SELECT
    now64(9) - INTERVAL 1 MINUTE - INTERVAL intDiv(number, 800) * 2800 MILLISECOND,
    if(in_span, leftPad(span, 32, '0'), ''),
    if(in_span, leftPad(span, 16, '0'), ''),
    concat('service-', toString(intDiv(thread, 40))),
    concat(head, arrayStringConcat(frames)),
    map('host.name', 'node', 'process.pid', toString(intDiv(thread, 10))),
    'otel.profiling',
    map('source.event.period', '2800')
FROM numbers({records})
"""
_SPANS = """
INSERT INTO otel_traces (Timestamp, TraceId, SpanId, SpanName, ServiceName, Duration)
SELECT
    now64(9) - INTERVAL 1 MINUTE - INTERVAL number % 3500 SECOND,
    leftPad(hex(number + 1), 32, '0'), leftPad(hex(number + 1), 16, '0'),
    concat('GET /', toString(number % 20)), concat('service-', toString(number % 20)), 1000000000
FROM numbers(100000)
"""


def fill(database: Any, records: int, profiles: int) -> None:
    """Insert records of the last hour: those of text are made by the engine itself."""
    database.make_tables("by_timestamp_time")
    database.do(_RECORDS.format(records=records))
    database.do(_SPANS)
    functions = [Function(f"shop.part.step_{place}", "/srv/shop/part.py", "application") for place in range(500)]
    frames = (7 * np.arange(300).repeat(40) + np.tile(np.arange(40), 300)) % 500
    stacks = WeightedStacks(frames, 10 + frames % 7, 40 * np.arange(301), np.full(300, 10**7))
    now_s = time.time() - 60
    since_ns = int(now_s - 1750) * 10**9
    packed = pprof(stacks, functions, "cpu", "nanoseconds", (since_ns, since_ns + 10**10 + 10**6))
    body = base64.b64encode(packed).decode()
    described = {"profiling.data.format": "pprof-gzip-base64", "profiling.data.type": "cpu"}
    row = {"ServiceName": "service-0", "Body": body, "ScopeName": "otel.profiling", "LogAttributes": described}
    rows = (json.dumps({**row, "Timestamp": f"{now_s - place % 3500:.9f}"}) for place in range(profiles))
    database.do("INSERT INTO otel_logs FORMAT JSONEachRow\n" + "\n".join(rows))


def time_ms(question: Callable[[], Any], rounds: int = 1) -> float:
    """Return the median time of an answer."""
    found = []
    for _ in range(rounds):
        started = time.perf_counter()
        question()
        found.append(1000 * (time.perf_counter() - started))
    return round(statistics.median(found))


def measure(quick: bool) -> Iterator[Result]:
    """Yield the slowest click after the first load, the first of its kind included, with what that took."""
    if importlib.util.find_spec("chdb") is None:
        return
    from clickhouse_tables import Database, run_server  # noqa: PLC0415  # needs chDB

    records, profiles, rounds = (RECORDS // 100, PROFILES // 100, 1) if quick else (RECORDS, PROFILES, ROUNDS)
    with tempfile.TemporaryDirectory() as directory, run_server(Path(directory)) as port:
        database = Database(port, "otel")
        fill(database, records, profiles)
        shown: list[ClickHouse] = []
        loaded_ms = time_ms(lambda: shown.append(ClickHouse(database.address, database.environment)))
        growing = ClickHouse(database.address, database.environment, refresh_ns=0)
        refresh_ms = time_ms(growing.refresh, ROUNDS)
        one_ms = time_ms(lambda: ClickHouse(database.address, database.environment, service="service-7"))
        answers = Answers(shown[0])
        wall = Selection("wall")
        chosen = Selection("wall", filters={"service": frozenset({"service-7"})})
        trace = f"{99_999:032X}"
        now_ns = time.time_ns()
        stretch = Selection("wall", now_ns - 1500 * 10**9, now_ns - 1200 * 10**9)
        first_trace_ms = time_ms(lambda: answers.trace(wall, trace))
        first_stretch_ms = time_ms(lambda: answers.flame(stretch, inverted=False))
        clicks: dict[str, Callable[[], Any]] = {
            "flame": lambda: answers.flame(wall, inverted=False),
            "flame of a service": lambda: answers.flame(chosen, inverted=False),
            "inverted": lambda: answers.flame(wall, inverted=True),
            "top": lambda: answers.top(wall, ""),
            "facets": lambda: answers.facets(wall),
            "timeline": lambda: answers.timeline(wall, "service"),
            "stretch again": lambda: answers.flame(stretch, inverted=False),
            "facets of a stretch": lambda: answers.facets(stretch),
            "trace again": lambda: answers.trace(wall, trace),
        }
        medians = {name: time_ms(question, rounds) for name, question in clicks.items()}
        medians |= {"trace": first_trace_ms, "five_minutes": first_stretch_ms}  # which are asked for once
        yield Result(
            "slowest click on ClickHouse",
            max(medians.values()),
            "ms",
            CLICK_LIMIT_MS,
            details={
                "records": records,
                "profiles": profiles,
                "rows": shown[0].recording.count(),
                "loaded_ms": loaded_ms,
                "refresh_ms": refresh_ms,
                "one_service_loaded_ms": one_ms,
                **{f"{name}_ms": value for name, value in medians.items()},
            },
        )


if __name__ == "__main__":
    main(measure, __doc__)
