"""Tables of the sums of `profiles`: for each endpoint the top functions by CPU and by wall time, your code first.

Then raised exceptions. Runs on the main thread of `report`; reads no data itself.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, TypeVar

from rich.table import Table

from splunk_profiler.cli import tables
from splunk_profiler.cli.profiles import (
    VALUES,
    EndpointTimes,
    EventTotals,
    FunctionTimes,
    HoldPlace,
    LoopBlockPlace,
    Profiles,
    TaskPlace,
    TimeTotals,
    WaitPlace,
)
from splunk_profiler.cli.terminal import Terminal, text
from splunk_profiler.pipeline.waits import IDLE
from splunk_profiler.viewer.profile_messages import APPLICATION, NOT_SAMPLED, OUTSIDE, UNNAMED

_TITLES = {"cpu": "CPU time", "wall": "wall time (waiting included)"}
_TRAILING_ENDPOINTS = (UNNAMED, OUTSIDE, NOT_SAMPLED)
_MAX_EXCEPTIONS = 20  # types and places shown
_Place = TypeVar("_Place", HoldPlace, LoopBlockPlace, TaskPlace)
_MIN_SHARE = 0.005  # of an endpoint's time, for a function to be shown


def draw(console: Terminal, profiles: Profiles, *, top: int, endpoints: int) -> None:
    """Print the tables."""
    for value in VALUES:
        title = f"Aggregated profile by {_TITLES[value]}, for each endpoint: your code, then libraries"
        tables.print_section(console, title, _table(profiles, value, top, endpoints))
    if waits := _contended(profiles):
        tables.print_section(console, "Waits for locks and the like", _wait_table(waits, 3 * top))
    if profiles.lock_holds:
        tables.print_section(console, "Held a lock that others waited for", _hold_table(profiles, 3 * top))
    if profiles.task_waits:
        tables.print_section(console, "Waiting tasks, by the nearest line of your code", _task_table(profiles, 3 * top))
    if profiles.loop_blocks:
        tables.print_section(console, "Functions that blocked the event loop", _loop_table(profiles, 3 * top))
    if profiles.exceptions:
        tables.print_section(
            console, "Raised exceptions, by type and the nearest line of your code", _exceptions_table(profiles)
        )


def to_dict(profiles: Profiles) -> dict[str, Any]:
    """Return the numbers for JSON."""
    return {
        "records": profiles.records,
        "samples": profiles.samples,
        "services": dict(profiles.services),
        "first_time_ns": profiles.first_ns,
        "last_time_ns": profiles.last_ns,
        "gil_waits": profiles.gil_waits._asdict(),
        "loop_blocks": _events_to_dicts(profiles.loop_blocks, "count", "blocked_ns"),
        "task_waits": _events_to_dicts(profiles.task_waits, "count", "wait_ns"),
        "waits": [{**place._asdict(), "wall_ns": wall_ns} for place, wall_ns in profiles.waits.most_common()],
        "lock_holds": _events_to_dicts(profiles.lock_holds, "waiters", "delay_ns"),
        "records_by_period_ms": {str(period): count for period, count in profiles.periods_ms.items()},
        **_times_to_dict("", profiles.spent),
        "endpoints": {
            name: {
                "samples": endpoint.samples,
                **_times_to_dict("", endpoint.spent),
                "functions": [_function_to_dict(each) for each in endpoint.functions.values()],
            }
            for name, endpoint in _rank_endpoints(profiles, "cpu")
        },
        "exceptions": [
            {"type": name, "count": count, **asdict(place)}
            for (name, place), count in profiles.exceptions.most_common()
        ],
    }


def _ranked(events: dict[_Place, EventTotals]) -> list[tuple[_Place, EventTotals]]:
    return sorted(events.items(), key=lambda item: -item[1].time_ns)


def _events_to_dicts(events: dict[_Place, EventTotals], count: str, time: str) -> list[dict[str, Any]]:
    return [{**place._asdict(), count: totals.count, time: totals.time_ns} for place, totals in _ranked(events)]


def _contended(profiles: Profiles) -> list[tuple[WaitPlace, int]]:
    """Return the waits, longest first, without those for work."""
    return [item for item in profiles.waits.most_common() if item[0].kind != IDLE]


def _wait_table(waits: list[tuple[WaitPlace, int]], rows: int) -> Table:
    table = tables.table("waited in", "line", "for", "time", "share", "called by")
    whole = sum(wall_ns for _, wall_ns in waits)
    for place, wall_ns in waits[:rows]:
        caller = "" if place.caller == place.function else place.caller
        time, share = tables.duration(wall_ns), tables.percent(wall_ns, whole)
        table.add_row(place.function, f"{place.line}", place.kind, time, share, caller)
    return table


def _hold_table(profiles: Profiles, rows: int) -> Table:
    table = tables.table("held by", "others waited", "share", "inside", "at")
    ranked = _ranked(profiles.lock_holds)
    whole = sum(holds.time_ns for _, holds in ranked)
    for place, holds in ranked[:rows]:
        time, share = tables.duration(holds.time_ns), tables.percent(holds.time_ns, whole)
        table.add_row(place.function, time, share, place.inside, tables.place(place.file, place.line))
    return table


def _task_table(profiles: Profiles, rows: int) -> Table:
    table = tables.table("waited in", "for", "time", "share", "tasks", "awaits", "at")
    ranked, duration_ns = _ranked(profiles.task_waits), max(profiles.last_ns - profiles.first_ns, 1)
    whole = sum(waits.time_ns for _, waits in ranked)
    for place, waits in ranked[:rows]:
        time, share = tables.duration(waits.time_ns), tables.percent(waits.time_ns, whole)
        number = f"{waits.time_ns / duration_ns:,.1f}"
        at = tables.place(place.file, place.line)
        table.add_row(place.function, place.kind, time, share, number, place.awaits, at)
    return table


def _loop_table(profiles: Profiles, rows: int) -> Table:
    table = tables.table("function", "blocked", "times", "on average", "task", "of")
    for blocker, blocks in _ranked(profiles.loop_blocks)[:rows]:
        average_ns = blocks.time_ns // max(blocks.count, 1)
        blocked, average = tables.duration(blocks.time_ns), tables.duration(average_ns)
        table.add_row(blocker.function, blocked, f"{blocks.count:,}", average, blocker.task, blocker.endpoint)
    return table


def _times_to_dict(prefix: str, spent: TimeTotals) -> dict[str, int]:
    return {f"{prefix}cpu_ns": spent.cpu, f"{prefix}wall_ns": spent.wall}


def _function_to_dict(function: FunctionTimes) -> dict[str, Any]:
    return {
        **asdict(function.place),
        **_times_to_dict("own_", function.own),
        **_times_to_dict("direct_", function.direct),
        **_times_to_dict("total_", function.total),
    }


def _rank_endpoints(profiles: Profiles, value: str) -> list[tuple[str, EndpointTimes]]:
    """Return the endpoints, most of `value` first; samples without an endpoint come last."""

    def rank(item: tuple[str, EndpointTimes]) -> tuple[int, int]:
        name, endpoint = item
        group = _TRAILING_ENDPOINTS.index(name) + 1 if name in _TRAILING_ENDPOINTS else 0
        return group, -getattr(endpoint.spent, value)

    return sorted(profiles.endpoints.items(), key=rank)


def _table(profiles: Profiles, value: str, top: int, endpoints: int) -> Table:
    table = tables.table("endpoint, function", "time", "share", "total", "of")
    ranked = [item for item in _rank_endpoints(profiles, value) if getattr(item[1].spent, value)]
    whole = getattr(profiles.spent, value)
    for name, endpoint in ranked[:endpoints]:
        spent = getattr(endpoint.spent, value)
        table.add_row(text(name, style="bold"), tables.duration(spent), tables.percent(spent, whole))
        for function, own in _top_functions(endpoint, value, top):
            _add_row(table, function, own, value, spent)
    if len(ranked) > endpoints:
        table.add_row(text(f"and {len(ranked) - endpoints} more (--spans)", style="dim"))
    return table


def _exceptions_table(profiles: Profiles) -> Table:
    table = tables.table("exception, function", "number", "share", "at")
    ranked, whole = profiles.exceptions.most_common(), profiles.exceptions.total()
    for (name, place), count in ranked[:_MAX_EXCEPTIONS]:
        at = tables.place(place.file, place.line)
        table.add_row(f"{name} in {place.function}", f"{count:,}", tables.percent(count, whole), at)
    if len(ranked) > _MAX_EXCEPTIONS:
        table.add_row(text(f"and {len(ranked) - _MAX_EXCEPTIONS} more", style="dim"))
    return table


def _top_functions(endpoint: EndpointTimes, value: str, top: int) -> list[tuple[FunctionTimes, int]]:
    """Return the application's functions with their direct time, then the libraries' with their own time."""
    min_ns = max(getattr(endpoint.spent, value) * _MIN_SHARE, 1)
    found = []
    for own, is_application, max_count in (("direct", True, top), ("own", False, -(-top // 2))):
        timed = [
            (function, getattr(getattr(function, own), value))
            for function in endpoint.functions.values()
            if (function.place.kind == APPLICATION) is is_application
        ]
        timed.sort(key=lambda item: -item[1])
        found += [item for item in timed[:max_count] if item[1] >= min_ns]
    return found


def _add_row(table: Table, function: FunctionTimes, own: int, value: str, whole: int) -> None:
    place = function.place
    is_application = place.kind == APPLICATION
    source = place.distribution.replace("==", " ") or ("your code" if is_application else "")
    share, total_share = tables.percent(own, whole), tables.percent(getattr(function.total, value), whole)
    style = "" if is_application else "dim"
    table.add_row(f"  {place.function}", tables.duration(own), share, total_share, source, style=style)
