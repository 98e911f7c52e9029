"""Questions that tests ask of reports of the inspector."""

from __future__ import annotations

from splunk_profiler.inspector import Report
from splunk_profiler.inspector.model import Interface, Level, ThreadReading


def reason_codes(report: Report, level: Level = Level.BLOCKS) -> set[tuple[Interface, str]]:
    return {(reason.interface, reason.code) for reason in report.reasons if reason.level is level}


def first_thread(report: Report) -> ThreadReading:
    return next(thread for thread in report.threads if thread.tid == report.pid)
