"""Questions that tests ask of reports of the inspector."""

from __future__ import annotations

from splunk_profiler.inspector import Reader, Report
from splunk_profiler.inspector.model import Interface, Level, ThreadReading


def read(pid: int, *, strict_host: bool = False) -> Report:
    """Read process `pid` once."""
    with Reader(pid, strict_host=strict_host) as reader:
        return reader.read()


def reason_codes(report: Report, level: Level = Level.BLOCKS) -> set[tuple[Interface, str]]:
    return {(reason.interface, reason.code) for reason in report.reasons if reason.level is level}


def first_thread(report: Report) -> ThreadReading:
    return next(thread for thread in report.threads if thread.tid == report.pid)
