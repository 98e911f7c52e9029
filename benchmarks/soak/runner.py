"""The run of one scenario: starts its collector and its process, watches the process, and judges the result."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from soak import ledger
from soak.collector import Collector
from soak.exporter_faults import find_left_exporters
from soak.harness import HANG_S, stacks_of
from soak.plan import Scenario
from soak.usage import Usage, find_growth_faults, usage_of

BENCHMARKS = Path(__file__).resolve().parent.parent
_RECOVERY_S = 15.0  # time for exports to resume after an outage
_EXPORTER_END_S = 10.0
_POLL_S = 0.25
_CLEARED_PREFIXES = ("SPLUNK_", "OTEL_", "ELASTIC_", "GRPC_", "PYTHON")
_MIN_FULL_STOP_S = 10.0  # a stop with this timeout must deliver everything


@dataclass
class Report:
    """Result of a scenario.

    Attributes:
        name: name of the scenario.
        unit: unit of its work.
        expected, done: amount of work.
        seconds: duration.
        memory: MiB at the start and at the end.
        records: sums of the profilers' counters.
        arrived: different records that the collector has accepted.
        facts: result of the process.
        faults: broken promises.
    """

    name: str
    unit: str
    expected: int
    done: int = 0
    seconds: float = 0.0
    memory: tuple[float, float] = (0.0, 0.0)
    records: Counter[str] = field(default_factory=Counter)
    arrived: int = 0
    facts: dict[str, Any] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def line(self) -> str:
        """Return the report as JSON."""
        return json.dumps(
            {
                "scenario": self.name,
                self.unit: self.done,
                "wanted": self.expected,
                "seconds": round(self.seconds),
                "memory_mib": [round(mib) for mib in self.memory],
                "records": {**self.records, "arrived": self.arrived},
                **self.facts,
                "faults": self.faults,
            }
        )


class Run:
    """One run of a scenario.

    Args:
        scenario: scenario to run.
        count: amount of work.
        seconds: time limit.
        folder: folder for its output and the received records.
        silent_url: endpoint of a collector that never answers.
    """

    def __init__(self, scenario: Scenario, count: int, seconds: float, folder: Path, silent_url: str) -> None:
        self._scenario = scenario
        self._seconds = seconds
        self._folder = folder
        self._ledger = folder / "ledger"
        self._silent_url = silent_url
        self._memory: list[float] = []
        self._first: Usage | None = None
        self._last: Usage | None = None
        self.report = Report(scenario.name, scenario.unit, count)

    def run(self) -> Report:
        """Run the scenario until its process has ended."""
        self._folder.mkdir(parents=True)
        began = time.monotonic()
        with Collector(self._folder / "accepted") as collector:
            with (self._folder / "output").open("wb") as output:
                process = self._start(collector, output)
                try:
                    status = self._watch(process, collector)
                finally:
                    _end_group(process)
            if status:
                self.report.faults.append(f"CRASH: ended with {status}")
            self._judge(collector)
            left = find_left_exporters(str(self._ledger), timeout_s=_EXPORTER_END_S)
            self.report.faults += [f"LEFT: exporter process {pid} has not ended" for pid in left]
        self.report.seconds = time.monotonic() - began
        return self.report

    def _start(self, collector: Collector, output: Any) -> subprocess.Popen[bytes]:
        scenario = self._scenario
        env = {name: value for name, value in os.environ.items() if not name.startswith(_CLEARED_PREFIXES)}
        env |= {
            "PYTHONPATH": str(BENCHMARKS),
            "PYTHONWARNINGS": "ignore::DeprecationWarning",  # newer versions warn of forks beside threads
            "OTEL_SERVICE_NAME": "soak",
            "OTEL_EXPORTER_OTLP_TIMEOUT": "1",
            "SPLUNK_PROFILER_ENABLED": "true",
            "SPLUNK_PROFILER_LOGS_ENDPOINT": collector.url,
            "SPLUNK_PROFILER_CALL_STACK_INTERVAL": "20",
            "SPLUNK_PROFILER_EXPORT_INTERVAL": "100",
            "SPLUNK_PROFILER_MAX_OVERHEAD": "off",
            "SPLUNK_PROFILER_EXPORTER": scenario.exporter,
            "SPLUNK_PROFILER_WALKER": scenario.walker,
            "SPLUNK_PROFILER_DATA_FORMAT": "text" if scenario.format == "text" else "pprof-gzip-base64",
            "SOAK_SILENT": self._silent_url,
            ledger.LEDGER: str(self._ledger),
            **scenario.settings,
        }
        command = [sys.executable, "-m", f"soak.{scenario.program}", str(self.report.expected), str(self._seconds)]
        return subprocess.Popen(
            command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output, start_new_session=True
        )

    def _watch(self, process: subprocess.Popen[bytes], collector: Collector) -> int | None:
        """Follow the output of the process until its end, and return the exit code; None if it hangs."""
        assert process.stdout is not None
        disturbance: Generator[float, None, None] | None = None
        end_at: float | None = None
        began = last_progress_s = next_disturb_s = time.monotonic()
        rest = b""
        while True:
            wait_s = _POLL_S if disturbance is None else min(max(next_disturb_s - time.monotonic(), 0), _POLL_S)
            if select.select([process.stdout], [], [], wait_s)[0]:
                more = os.read(process.stdout.fileno(), 1 << 16)
                if not more:
                    return self._wait_for_exit(process)
                *lines, rest = (rest + more).split(b"\n")
                for message in map(json.loads, lines):
                    last_progress_s = time.monotonic()
                    if "ready" in message and self._scenario.disturb is not None:
                        disturbance, next_disturb_s = (
                            self._scenario.disturb(process.send_signal, collector),
                            last_progress_s,
                        )
                    if "quiet" in message:
                        recovers = disturbance is not None and self._scenario.is_lossless
                        end_at = last_progress_s + (_RECOVERY_S if recovers else 0)
                        disturbance = None  # which closes it: it undoes what it has done
                        collector.switch("ok")
                    self._handle_message(message, process)
            now = time.monotonic()
            if end_at is not None and now >= end_at:
                end_at, last_progress_s = None, now
                _request_end(process)
            if disturbance is not None and now >= next_disturb_s:
                next_disturb_s = now + next(disturbance)
            # The parent notices a hanging child earlier.
            if now - last_progress_s > 2 * HANG_S or now - began > self._seconds + 4 * HANG_S:
                self.report.faults.append(f"HANG: no progress after {self.report.done} {self.report.unit}")
                stacks_of(process.pid)
                return None
            self._measure(process.pid)

    def _wait_for_exit(self, process: subprocess.Popen[bytes]) -> int | None:
        try:
            return process.wait(HANG_S)
        except subprocess.TimeoutExpired:
            self.report.faults.append("HANG: the process does not end")
            stacks_of(process.pid)
            return None

    def _handle_message(self, message: dict[str, Any], process: subprocess.Popen[bytes]) -> None:
        self.report.done = message.get("done", self.report.done)
        self.report.facts |= message.get("result", {})
        if "ready" in message:
            self._first = usage_of(process.pid)
        if "quiet" in message:
            self._last = usage_of(process.pid)

    def _measure(self, pid: int) -> None:
        usage = usage_of(pid)
        if self._first is not None and self._last is None and usage is not None:
            self._memory.append(usage.rss_mib)

    def _judge(self, collector: Collector) -> None:
        report = self.report
        report.faults += [f"{count} x {fault}" for fault, count in report.facts.pop("faults", {}).items()]
        if self._first is not None and self._last is not None and self._memory:
            report.memory = self._first.rss_mib, self._last.rss_mib
            report.faults += find_growth_faults(self._first, self._last, self._memory)
        delivered: Counter[int] = Counter()
        lost = 0
        for line in ledger.read(self._ledger):
            timeout_s, pid = line.pop("timeout_s"), line.pop("pid")
            report.records.update(line)
            delivered[pid] += line["delivered"]
            accounted = sum(count for name, count in line.items() if name != "recorded")
            if accounted < line["recorded"]:
                report.faults.append(f"LOST: {line['recorded']} records, {accounted} accounted for")
            lost += line["queue_full"] + line["rejected"]
            lost += line["lost_at_exit"] if timeout_s > _MIN_FULL_STOP_S else 0
        if not report.records["recorded"] and self._scenario.program != "endings":  # it has no ledger
            report.faults.append("LOST: no process has written of a record")
        if lost and self._scenario.is_lossless:
            report.faults.append(f"LOST: {lost} records were dropped")
        accepted = collector.accepted()
        for pid, count in delivered.items():
            arrived = accepted.get(pid, (0, 0))[1]
            report.arrived += min(arrived, count)
            if arrived < count:
                report.faults.append(f"LOST: process {pid} delivered {count} records, {arrived} have arrived")


def _request_end(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.write(b"end\n")
    process.stdin.flush()


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """Kill the process group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()
