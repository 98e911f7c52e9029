"""The accuracy of profiles: received times by kind of work, compared with the thread's own clocks.

One worker does six kinds of work in turns of some milliseconds (`kinds_of_work`), alone and beside threads that never
wait; its process is profiled every 10 ms and sends to a receiver. A figure is the largest difference of a kind's shares
in percentage points: share of samples and of wall time against its share of the elapsed time, share of CPU time against
its share of the used CPU time. Each turn has a span of its own, so that a sample in the wrong one is seen.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from counting_sink import CountingSink, Totals
from kinds_of_work import KINDS, work
from measured_service import MeasuredService
from profilers import PROFILERS
from result import Result, main, significant
from saturated import Case, wait_until_quiet

INTERVAL_MS = 10
BUSY_THREAD_COUNTS = (0, 2, 4)
TURNS = work.__name__  # what is between two kinds


def measure_kinds(case: Case, seconds: float, sink_python: str = sys.executable) -> Iterator[Result]:
    """Run the kinds of work with the profiler of a case, of shape ``kinds:BUSY``, and compare."""
    with (
        CountingSink((*KINDS, TURNS), sink_python) as sink,
        MeasuredService(case.python, case.shape, case.profiler, case.settings(sink)) as service,
    ):
        service.ask("start")
        expected = service.ask(f"run {seconds}")
        expected |= service.ask("stop")
        totals = wait_until_quiet(sink)
    busy = int(case.shape.partition(":")[2])
    where = f"{case.label or case.profiler}, {f'beside {busy} busy threads' if busy else 'alone'}"
    is_of_cpu = not PROFILERS[case.profiler].takes_all_threads
    for result in compare(expected, totals, 3 if busy else 1.5, is_of_cpu=is_of_cpu):
        limit = result.limit if case.is_ours else None
        yield Result(f"{result.name}, {where}", result.value, result.unit, limit, details=result.details)


def compare(expected: dict[str, Any], totals: Totals, limit: float, *, is_of_cpu: bool) -> Iterator[Result]:
    """Compare what has arrived with the clocks; `is_of_cpu` if samples are of threads that run only."""
    clocks = {"samples": "cpu" if is_of_cpu else "wall", "wall": "wall", "cpu": "cpu", "ran": "cpu"}
    for value, clock in clocks.items():
        found = {kind: totals.kinds[kind][value] for kind in KINDS}
        if sum(found.values()):
            shown, right = shares(found), shares({kind: spent[clock] for kind, spent in expected["kinds"].items()})
            yield Result(
                f"largest error of a share of {value}",
                max(abs(shown[kind] - right[kind]) for kind in KINDS),
                "points",
                limit,
                details={kind: [significant(shown[kind]), significant(right[kind])] for kind in KINDS},
            )
    wall_ns = sum(sums["wall"] for sums in totals.kinds.values())
    if wall_ns:
        right_ns = sum(spent["wall"] for spent in expected["kinds"].values())
        yield Result("error of all wall", 100 * abs(wall_ns / right_ns - 1), "%", 1)
        yield Result("error of all cpu", 100 * abs(totals.cpu_ns / expected["cpu_ns"] - 1), "%", 1)
    in_span, wrong_span = (sum(totals.kinds[kind][name] for kind in KINDS) for name in ("in_span", "wrong_span"))
    if in_span:
        yield Result("samples in the wrong span", wrong_span, "samples", 0, details={"of": in_span})


def shares(found: dict[str, Any]) -> dict[str, float]:
    whole = sum(found.values()) or 1
    return {kind: 100 * value / whole for kind, value in found.items()}


def measure(quick: bool) -> Iterator[Result]:
    """Measure text and pprof, alone and beside busy threads."""
    for busy in BUSY_THREAD_COUNTS[:2] if quick else BUSY_THREAD_COUNTS:
        for profiler in ("text" if busy else "pprof",) if quick else ("pprof", "text"):
            yield from measure_kinds(Case(profiler, INTERVAL_MS, f"kinds:{busy}"), 0.3 if quick else 60 + 20 * busy)


if __name__ == "__main__":
    main(measure, __doc__)
