"""Checks of what became of the records of a running process, which its exporter process says.

Linux only: the token that the exporter wants is in its environment, which its user and root can read. Runs on the main
thread of `doctor`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from splunk_profiler.cli.checks import Finding, failure, good, note, warning
from splunk_profiler.cli.errors import CommandError
from splunk_profiler.cli.process_checks import ExporterEnd, environment_of
from splunk_profiler.exporter_process.__main__ import VARIABLE
from splunk_profiler.exporter_process.loop_blockers import LoopBlocker
from splunk_profiler.exporter_process.status import HostStatus, StatusError, ask

_TOKEN = re.compile("[0-9a-f]{32}")
_MAX_BLOCKERS = 5  # shown
_RECENT_S = 900.0  # a host that still samples exports once in 600 s at least, and fails again


def ask_exporter(exporter: ExporterEnd) -> HostStatus:
    """Ask an exporter process what it knows of the process at the other end of this connection.

    Raises:
        StatusError: it does not say.
    """
    try:
        token = _TOKEN.fullmatch(json.loads((environment_of(exporter.pid) or {})[VARIABLE])["token"])
    except CommandError as error:
        raise StatusError(str(error)) from None
    except (ValueError, KeyError, TypeError, RecursionError):
        token = None
    if token is None:
        raise StatusError("it has ended, or is of another version of splunk-profiler")
    return ask(token[0], exporter.end.name, exporter.end.inode)


def unknown(reason: StatusError) -> Finding:
    """Return the finding that the exporter process does not say what became of the records."""
    remedy = "the log of the process says what is not delivered (logger splunk_profiler)"
    return warning("records", f"the exporter process does not say what became of them: {reason}", remedy)


def check_records(status: HostStatus) -> Iterator[Finding]:
    """Say what became of the records, what was lost and why, and what blocked the event loop for longest."""
    counters, age = status.counters, _duration(status.age_s)
    noun = "profiles" if status.has_profiles else "records"
    fact = f"{counters.recorded:,} {noun} made in {age}, {counters.delivered:,} sent, {counters.waiting:,} waiting"
    yield (note if not counters.recorded else good)("records", fact)
    yield from _check_last_results(status)
    if lost := _losses(status):
        yield warning("lost", "; ".join(lost))
    if status.period_ms > status.configured_period_ms > 0:
        fact = f"a snapshot each {status.period_ms:,} ms, not {status.configured_period_ms:,} ms, to keep its own limit"
        yield warning("interval", fact, "raise SPLUNK_PROFILER_MAX_OVERHEAD or SPLUNK_PROFILER_CALL_STACK_INTERVAL")

    for blocker in status.loop_blockers[:_MAX_BLOCKERS]:
        yield warning("event loop", _describe(blocker))


def _check_last_results(status: HostStatus) -> Iterator[Finding]:
    delivered_s, failed_s = status.delivered_age_s, status.failed_age_s
    sent = "nothing delivered yet" if delivered_s is None else f"last delivered {_duration(delivered_s)} ago"
    fact = f"{sent}, to {status.destination}"
    if failed_s is None:
        yield note("delivery", fact) if delivered_s is None else good("delivery", fact)
        return
    fact = f"{fact}; failed {_duration(failed_s)} ago: {status.failure}"
    yield failure("delivery", fact) if _is_failing(status) else warning("delivery", fact)


def is_delivering(status: HostStatus) -> bool:
    """Return True if records were delivered of late, and no later ones have failed."""
    delivered_s = status.delivered_age_s
    return delivered_s is not None and delivered_s < _RECENT_S and not _is_failing(status)


def _is_failing(status: HostStatus) -> bool:
    delivered_s, failed_s = status.delivered_age_s, status.failed_age_s
    if failed_s is None or (delivered_s is not None and failed_s >= delivered_s):
        return False
    return status.counters.waiting > 0 or failed_s < _RECENT_S


def _losses(status: HostStatus) -> list[str]:
    counters = status.counters
    reasons = {
        "because the queue was full, oldest first": counters.queue_full,
        "because the receiver refused them": counters.rejected,
        "snapshots before they reached the exporter process, which was busy or not there": status.lost_snapshots,
    }
    return [f"{count:,} {reason}" for reason, count in reasons.items() if count]


def _describe(blocker: LoopBlocker) -> str:
    times = {0: "in blocks that began elsewhere", 1: "once"}.get(blocker.blocks, f"{blocker.blocks:,} times")
    inside = [f"{name} {text}" for name, text in (("task", blocker.task), ("endpoint", blocker.endpoint)) if text]
    where = f" ({', '.join(inside)})" if inside else ""
    return f"{blocker.function} blocked it {times}, for {_duration(blocker.blocked_ns / 1e9)} in total{where}"


def _duration(seconds: float) -> str:
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:,.0f} min" if seconds < 7200 else f"{seconds / 3600:,.0f} h"
