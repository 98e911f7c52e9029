"""The scenarios: programs, amounts of work in ten minutes, and settings."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from dataclasses import dataclass, field

from soak.collector import Collector
from soak.exporter_faults import disturb

FULL_S = 600.0  # the run that the counts are meant for
MAX_CONCURRENT = 2  # scenarios at once

# Sends a signal to the process, and switches its collector; yields the seconds until it goes on.
Disturb = Callable[[Callable[[int], None], Collector], Generator[float, None, None]]


@dataclass(frozen=True)
class Scenario:
    """One program with one set of settings.

    Attributes:
        program: the module.
        unit: unit of its work.
        count: amount of work in `FULL_S`.
        weight: its share of a limited time.
        format: "text" or "pprof".
        walker: "native" or "portable", which has no exporter process.
        exporter: "auto" or "thread".
        settings: further environment variables.
        disturb: disturbances by the runner.
        is_lossless: True if every record must arrive.
    """

    program: str
    unit: str
    count: int
    weight: float
    format: str = "text"
    walker: str = "native"
    exporter: str = "auto"
    settings: dict[str, str] = field(default_factory=dict)
    disturb: Disturb | None = None
    is_lossless: bool = True

    @property
    def name(self) -> str:
        """Program, format and walker, and the exporter where that is not the usual one."""
        return f"{self.program} {self.format} {self.walker}" + (" thread" if self.exporter == "thread" else "")


OUTAGES = (
    "dead",
    "silent",
    "slow 0.3",
    "refuse UNAVAILABLE",
    "refuse RESOURCE_EXHAUSTED 0.2",
    "refuse UNAUTHENTICATED",
)


def outages(_signal: Callable[[int], None], collector: Collector) -> Generator[float, None, None]:
    """Yield outages, with a collector that answers in between and at the end."""
    rng = random.Random(1)
    while True:
        for mode in rng.sample(OUTAGES, len(OUTAGES)):
            yield rng.uniform(0.5, 2.0)
            collector.switch(mode)
            yield rng.uniform(0.5, 4.0)
            collector.switch("ok")


def signals(signal: Callable[[int], None], _collector: Collector) -> Generator[float, None, None]:
    """Send signals at random moments, sometimes several at once."""
    from soak.signal_storm import SIGNALS  # noqa: PLC0415  # it loads the profiler

    rng = random.Random(2)
    while True:
        for _ in range(rng.choice((1, 1, 1, 5))):
            signal(rng.choice(SIGNALS))
        yield rng.uniform(0.0, 0.12)


def exporter_faults(_signal: Callable[[int], None], collector: Collector) -> Generator[float, None, None]:
    """Kill and stop the exporter process."""
    return disturb(collector.url)


PUBLISHING = {
    "ELASTIC_OTEL_UNIVERSAL_PROFILING_INTEGRATION_ENABLED": "true",
    "SPLUNK_PROFILER_CUSTOM_LABELS_ENABLED": "true",
}
TRACES = {"SPLUNK_SNAPSHOT_PROFILER_ENABLED": "true", "SPLUNK_SNAPSHOT_SELECTION_PROBABILITY": "0.01"}
# Collections, lock holders and waiting tasks are sampled by default, exceptions from CPython 3.12 on.
MEMORY = {"SPLUNK_PROFILER_MEMORY_ENABLED": "true", "SPLUNK_PROFILER_MEMORY_SAMPLE_BYTES": "10000"}
EVENTS = {**MEMORY, "SPLUNK_PROFILER_EXCEPTIONS_ENABLED": "true", "SPLUNK_PROFILER_LOOP_BLOCKED_MS": "20"}

SLOW_SAMPLING = {"SPLUNK_PROFILER_CALL_STACK_INTERVAL": "100"}  # the queue has room for the records of an outage

SCENARIOS = (
    Scenario("fork_storm", "forks", 6_000, 6, settings=PUBLISHING),
    Scenario("outages", "turns", 100_000, 2, settings=SLOW_SAMPLING, disturb=outages),
    Scenario("fork_storm", "forks", 3_000, 3, exporter="thread", settings=PUBLISHING),
    Scenario("fork_storm", "forks", 3_000, 3, "pprof", settings=EVENTS),
    Scenario(
        *("event_storm", "turns", 100_000, 3, "pprof"), settings=EVENTS, disturb=exporter_faults, is_lossless=False
    ),
    Scenario("fork_storm", "forks", 1_000, 1.5, walker="portable"),
    Scenario("outages", "turns", 100_000, 2, exporter="thread", settings=SLOW_SAMPLING, disturb=outages),
    Scenario("outages", "turns", 100_000, 2, "pprof", settings=SLOW_SAMPLING, disturb=outages),
    Scenario(
        "exporter_faults", "turns", 100_000, 2, settings=SLOW_SAMPLING, disturb=exporter_faults, is_lossless=False
    ),
    Scenario("thread_churn", "threads", 50_000, 1),
    Scenario("thread_churn", "threads", 40_000, 1, "pprof", settings={**PUBLISHING, **TRACES}),
    Scenario("thread_churn", "threads", 10_000, 0.7, walker="portable"),
    Scenario("span_churn", "spans", 400_000, 0.7),
    Scenario("span_churn", "spans", 500_000, 1, "pprof", settings={**PUBLISHING, **TRACES, **EVENTS}),
    Scenario("span_churn", "spans", 100_000, 0.7, "pprof", "portable"),
    Scenario(
        "signal_storm", "signals", 5_000, 1.5, settings={**PUBLISHING, **MEMORY}, disturb=signals, is_lossless=False
    ),
    Scenario("signal_storm", "signals", 2_000, 1, "pprof", "portable", disturb=signals, is_lossless=False),
    Scenario("endings", "ends", 100, 1.5, settings=PUBLISHING, is_lossless=False),
    Scenario("endings", "ends", 60, 1, "pprof", is_lossless=False),
)


def allot_seconds(scenarios: tuple[Scenario, ...], seconds: float) -> dict[str, float]:
    """Return the time of each scenario so that all together take `seconds`."""
    total_weight = sum(scenario.weight for scenario in scenarios)
    return {
        scenario.name: scenario.weight / total_weight * min(MAX_CONCURRENT, len(scenarios)) * seconds
        for scenario in scenarios
    }
