"""The cost of a profiler for a service whose threads are always busy, or half idle, and the share that arrives.

Each case has two processes with the same service, one with the profiler and one without. They take turns before the
profiler is started and after: the loss is the ratio of the requests per second of both after, in times of that before,
which was 1 but for what differs between two processes. In between the profiled one works without a pause. Other work on
the machine moves requests per second by several percent. CPU time of the service per request stands it better, above
all in the quarter of the turns in which it was least; what happens seldom, like an export every ten seconds, is not in
that. The share of a core that the application's threads have is moved by little else: what they lose of it is the time
in which the profiler kept the GIL, or kept them from taking it. It is that of the stretch without pauses, in which the
exporter cannot catch up meanwhile. What a profiler does on the application's threads counts as theirs, as captures do
from CPython 3.12 on.
"""

from __future__ import annotations

import os
import random
import select
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from counting_sink import CountingSink, Totals
from measured_service import MeasuredService, exporters_cpu_s, exporters_memory_kib, find_exporters
from profilers import PROFILERS
from result import Result, main, median, middle_half, significant
from service import THREADS

TARGETS: dict[str, tuple[float, bool]] = {  # limit, and True if it is the least
    "throughput lost": (1.5, False),
    "thread samples received of those due": (99, True),
    "ticks received of 100": (99, True),
    "first record after": (3, False),
    "memory added to the service": (6, False),
    "memory of the exporter": (40, False),
    "threads added to the service": (2, False),
    "modules of gRPC in the service": (0, False),
}
LOSS_AT_KILL_MS = 100.0
KILLS = 15


@dataclass(frozen=True, slots=True)
class Plan:
    """The times of a measurement: a stretch without pauses, and turns before and after it."""

    stretch_s: float = 12.0
    window_s: float = 0.6
    windows_before: int = 10
    windows_after: int = 24


QUICK = Plan(0.3, 0.05, 1, 1)


@dataclass(frozen=True, slots=True)
class Case:
    """A profiler of `profilers.PROFILERS` at an interval, in a service, in an environment."""

    profiler: str
    interval_ms: int
    shape: str = "saturated"
    python: str = sys.executable
    label: str = ""

    @property
    def is_ours(self) -> bool:
        """True if there are targets for it."""
        return PROFILERS[self.profiler].requirement == "splunk-profiler"

    @property
    def name(self) -> str:
        """Its name in results."""
        return f"{self.shape}, {self.interval_ms:g} ms, {self.label or self.profiler}"

    def settings(self, sink: CountingSink) -> dict[str, str]:
        """Return the profiler's settings."""
        return {**PROFILERS[self.profiler].environment(sink.url, sink.http_url, self.interval_ms)}


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn of both services.

    Attributes:
        rate: requests per second with the profiler, in times of those without.
        cpu_on_s: CPU time of the service per request with the profiler.
        cpu_off_s: the same without.
        core: CPU time of the application's threads per wall time with the profiler.
    """

    rate: float
    cpu_on_s: float
    cpu_off_s: float
    core: float


@dataclass(slots=True)
class Seen:
    """The results of a case: turns, and answers of the service."""

    before: list[Turn]
    after: list[Turn]
    started: dict[str, Any]
    stretch: dict[str, Any]
    exporter_cpu_s: float
    exporter_kib: tuple[int, int]  # all, and what is not of files
    memory: tuple[dict[str, Any], dict[str, Any]]  # with the profiler, without
    running_s: float
    ended: dict[str, Any]
    totals: Totals


def take_turns(on: MeasuredService, off: MeasuredService, windows: int, seconds: float) -> list[Turn]:
    """Let both services work so many times; the first one alternates."""
    turns = []
    for number in range(windows):
        rates, costs, cores = {}, {}, {}
        for service in (on, off) if number % 2 else (off, on):
            answer = service.ask(f"run {seconds}")
            rates[service] = answer["served"] / answer["wall_s"]
            costs[service] = answer["cpu_s"] / answer["served"]
            cores[service] = core_of(answer)
        turns.append(Turn(rates[on] / rates[off], costs[on], costs[off], cores[on]))
    return turns


def core_of(answer: dict[str, Any]) -> float:
    """Return the CPU time of the application's threads per wall time."""
    return float(answer["cpu_s"] - answer["others_s"]) / float(answer["wall_s"])


def run_stretch(service: MeasuredService, seconds: float) -> tuple[dict[str, Any], float]:
    """Let the service work without a pause; return its answer and the CPU seconds of its exporter."""
    cpu_s = exporters_cpu_s(service.pid)
    answer = service.ask(f"run {seconds}")
    return answer, exporters_cpu_s(service.pid) - cpu_s


def observe(case: Case, plan: Plan, sink: CountingSink) -> Seen:
    """Run the two services of a case."""
    with (
        MeasuredService(case.python, case.shape, "off", {}) as off,
        MeasuredService(case.python, case.shape, case.profiler, case.settings(sink)) as on,
    ):
        before = take_turns(on, off, plan.windows_before, plan.window_s)
        started = on.ask("start")
        stretch, exporter_cpu_s = run_stretch(on, plan.stretch_s)
        memory = on.ask("state"), off.ask("state")
        exporter_kib = exporters_memory_kib(on.pid)
        after = take_turns(on, off, plan.windows_after, plan.window_s)
        ended = on.ask("stop")
        running_s = stretch["wall_s"] + plan.windows_after * plan.window_s
        totals = wait_until_quiet(sink)
    return Seen(before, after, started, stretch, exporter_cpu_s, exporter_kib, memory, running_s, ended, totals)


def wait_until_quiet(sink: CountingSink) -> Totals:
    """Return the totals when no more has come for a while: not every profiler waits for its last export."""
    totals = sink.totals()
    while True:
        time.sleep(0.5)
        later = sink.totals()
        if later.records == totals.records:
            return later
        totals = later


def compare_cpu(turns: list[Turn], part: float) -> float:
    """Return the quantile `part` of the CPU time per request with the profiler, in times of that without."""
    with_profiler, without = sorted(turn.cpu_on_s for turn in turns), sorted(turn.cpu_off_s for turn in turns)
    at = int(part * len(turns))
    return with_profiler[at] / without[at]


def figures(case: Case, seen: Seen) -> Iterator[tuple[str, float, str, dict[str, Any]]]:
    """Yield name, value, unit and details of each figure."""
    rate = median((turn.rate for turn in seen.before), 6)
    lost = [100 * (1 - turn.rate / rate) for turn in seen.after]
    yield "throughput lost", median(lost), "%", {"middle_half": middle_half(lost), "turns": len(lost)}
    core = median((turn.core for turn in seen.before), 6)
    lost = [100 * (1 - turn.core / core) for turn in seen.after]
    yield (
        "share of a core lost by the application's threads",
        100 * (1 - core_of(seen.stretch) / core),
        "%",
        {"in_turns": median(lost), "middle_half": middle_half(lost)},
    )
    added = [100 * (compare_cpu(seen.after, part) / compare_cpu(seen.before, part) - 1) for part in (0.25, 0.5)]
    yield "CPU of the service per request added", added[0], "%", {"median": significant(added[1])}
    profiled_s = seen.ended["at_s"] - seen.started["at_s"]
    ticks = max(profiled_s * 1000 // case.interval_ms, 1)  # of an interval that has not ended nothing is due
    due = ticks * THREADS
    if not PROFILERS[case.profiler].takes_all_threads:
        due = seen.running_s * 1000 / case.interval_ms
    yield (
        "thread samples received of those due",
        100 * seen.totals.samples / due,
        "%",
        {"received": seen.totals.samples, "due": round(due), "bytes": seen.totals.size},
    )
    if seen.totals.snapshots:
        yield ("ticks received of 100", 100 * seen.totals.snapshots / ticks, "ticks", {})
    if seen.totals.first_s is not None:
        yield ("first record after", seen.totals.first_s - seen.started["at_s"], "s", {})
    with_profiler, without = seen.memory
    yield (
        "memory added to the service",
        (with_profiler["memory_kib"] - without["memory_kib"]) / 1024,
        "MiB",
        {"without": round(without["memory_kib"] / 1024, 1)},
    )
    resident, anonymous = seen.exporter_kib
    if resident:
        yield ("memory of the exporter", resident / 1024, "MiB", {"not of files": round(anonymous / 1024, 1)})
    threads = with_profiler["threads"] - without["threads"]
    yield ("threads added to the service", threads, "threads", {"of_python": with_profiler["thread_names"]})
    yield ("modules of gRPC in the service", with_profiler["grpc_modules"], "modules", {})
    wall_s = seen.stretch["wall_s"]
    cpu_s = seen.stretch["others_s"], seen.exporter_cpu_s
    samples = wall_s * 1000 / case.interval_ms * THREADS
    yield (
        "CPU beside the application's threads",
        100 * sum(cpu_s) / wall_s,
        "% of a core",
        {
            "in_the_service": significant(100 * cpu_s[0] / wall_s),
            "in_the_exporter": significant(100 * cpu_s[1] / wall_s),
            "us_per_thread_sample_due": significant(1e6 * sum(cpu_s) / samples),
        },
    )


def measure_case(case: Case, plan: Plan, sink_python: str = sys.executable) -> Iterator[Result]:
    """Measure one case; only ours has targets."""
    with CountingSink(python=sink_python) as sink:
        seen = observe(case, plan, sink)
    has_targets = dict.fromkeys(TARGETS, case.is_ours)
    has_targets["first record after"] = case.profiler == "text"  # profiles leave every ten seconds
    for name, value, unit, details in figures(case, seen):
        limit, at_least = TARGETS[name] if has_targets.get(name) else (None, False)
        yield Result(f"{name}, {case.name}", value, unit, limit, at_least, details)


def kill_service(seconds: float) -> float:
    """Return how long before it is killed the last sample was taken that has arrived, or it was started, in ms."""
    with CountingSink() as sink:
        case = Case("text", 10)
        with MeasuredService(case.python, case.shape, case.profiler, case.settings(sink)) as service:
            service.ask("start")
            started_ns = time.time_ns()
            service.ask(f"run {seconds}")
            service.tell("run 60")
            exporters = [os.pidfd_open(pid) for pid in find_exporters(service.pid)]
            time.sleep(seconds * random.uniform(0.4, 0.6))  # at any moment between two samples
            service.kill()
            killed_ns = time.time_ns()
        for exporter in exporters:
            select.select([exporter], [], [])
            os.close(exporter)
        totals = wait_until_quiet(sink)
    return (killed_ns - max(totals.last_ns, started_ns)) / 1e6


def measure_kills(seconds: float, kills: int) -> Iterator[Result]:
    """Measure what is lost of the last samples when the service is killed."""
    lost_ms = [kill_service(seconds) for _ in range(kills)]
    details = {"middle_half": middle_half(lost_ms), "most": significant(max(lost_ms)), "kills": kills}
    name = "samples lost at kill -9, text, 10 ms: those of the last"
    yield Result(name, median(lost_ms), "ms", LOSS_AT_KILL_MS, details=details)


def measure(quick: bool) -> Iterator[Result]:
    """Measure ours in both formats at 10 ms, at its default, half idle, and killed."""
    plan = QUICK if quick else Plan()
    cases = [("text", 10, "saturated")]
    if not quick:
        cases += [("pprof", 10, "saturated"), ("text", 1000, "saturated"), ("text", 10, "unsaturated")]
    for profiler, interval_ms, shape in cases:
        yield from measure_case(Case(profiler, interval_ms, shape), plan)
    yield from measure_kills(0.3 if quick else 3, 1 if quick else KILLS)


if __name__ == "__main__":
    main(measure, __doc__)
