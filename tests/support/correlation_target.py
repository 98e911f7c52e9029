"""Output of targets on their exported spans (`targets/printed_spans.py`), and messages of a host profiler to them."""

from __future__ import annotations

import hashlib
import json
import time
from base64 import urlsafe_b64encode
from collections import Counter
from pathlib import Path
from typing import Any

from host_profiler import HostProfiler
from publishing_target import publishing_settings
from target_process import Target

from splunk_profiler.inspector import Reader

SAMPLES_PER_TRANSACTION = 5  # of each transaction
_QUIET = {"PYTHONWARNINGS": "ignore::DeprecationWarning"}  # newer versions warn of forks beside threads


def correlation_settings(folder: Path, profiles: Path, mode: str = "true") -> dict[str, str]:
    """Return the settings of a service with its socket in `folder`; ``auto`` needs sampling, to files in `profiles`."""
    env = publishing_settings(folder, ELASTIC_OTEL_UNIVERSAL_PROFILING_INTEGRATION_ENABLED=mode, **_QUIET)
    if mode == "auto":
        env |= {"SPLUNK_PROFILER_ENABLED": "true", "SPLUNK_PROFILER_OUTPUT": f"file:{profiles}"}
    return env


def socket_of(pid: int) -> str:
    """Read the socket's path from the storage of process `pid`, once a thread of the profiler has published that."""
    deadline = time.monotonic() + 60
    with Reader(pid, strict_host=True) as reader:
        while (report := reader.read()).storage is None:
            assert time.monotonic() < deadline, report.reasons
    assert report.socket_accepted, report.reasons
    return report.storage.socket_path


def register(target: Target, host: HostProfiler, delay_ms: int = 60_000) -> None:
    """Register with the target's first process, which defers its transactions that long."""
    host.register(delay_ms)
    target.find("(has registered)")


def stack_of(number: int) -> bytes:
    """Return a unique stack-trace id for a process id or a span id."""
    return hashlib.blake2b(str(number).encode(), digest_size=16).digest()


def ids_of(number: int) -> dict[str, int]:
    """Return the expected ids on a transaction with `SAMPLES_PER_TRANSACTION` samples of `stack_of`."""
    return {urlsafe_b64encode(stack_of(number)).rstrip(b"=").decode(): SAMPLES_PER_TRANSACTION}


def report_to(host: HostProfiler, process: dict[str, Any], stack: bytes) -> None:
    """Send samples of the transaction that a process has announced."""
    for _ in range(SAMPLES_PER_TRANSACTION):
        host.report_ids(process["trace_id"], process["span_id"], stack)


def report_to_each(target: Target, processes: list[dict[str, Any]], mode: str) -> set[str]:
    """Send each process samples of its own stack and transaction; return the sockets.

    In ``auto``, returns when each has heard that there is a profiler: only what ends from then on waits.
    """
    sockets = {process["pid"]: socket_of(process["pid"]) for process in processes}
    for process in processes:
        with HostProfiler(sockets[process["pid"]]) as host:
            report_to(host, process, stack_of(process["pid"]))
    for pid in sockets if mode == "auto" else ():
        target.find(rf'^log {{"pid": {pid}, .*(has registered|sends stack traces)')
    return set(sockets.values())


def exported(target: Target) -> list[dict[str, Any]]:
    """Return the exported spans so far."""
    return [json.loads(line) for line in target.lines(0, "exported ")]


def names(target: Target, exporter: str = "simple") -> list[str]:
    """Return the names of an exporter's spans, in order."""
    return [one["name"] for one in exported(target) if one["exporter"] == exporter]


def by_process(target: Target, name: str, exporter: str = "simple") -> dict[int, Any]:
    """Return the ids on each process's only span of this name."""
    found = [(one["pid"], one["ids"]) for one in exported(target) if (one["name"], one["exporter"]) == (name, exporter)]
    assert len(found) == len(dict(found)), f"{name!r} was exported twice: {Counter(pid for pid, _ in found)}"
    return dict(found)
