"""Tables of the sums of `profiles`: for each endpoint the top functions by CPU and by wall time, your code first.

Runs on the main thread of `report`; reads no data itself.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.table import Table

from splunk_profiler.cli import tables
from splunk_profiler.cli.profiles import (
    APPLICATION,
    NOT_SAMPLED,
    OUTSIDE,
    UNNAMED,
    VALUES,
    EndpointTimes,
    FunctionTimes,
    Profiles,
    TimeTotals,
)
from splunk_profiler.cli.terminal import Terminal, text

_TITLES = {"cpu": "CPU time", "wall": "wall time (waiting included)"}
_TRAILING_ENDPOINTS = (UNNAMED, OUTSIDE, NOT_SAMPLED)
_MIN_SHARE = 0.005  # of an endpoint's time, for a function to be shown


def draw(console: Terminal, profiles: Profiles, *, top: int, endpoints: int) -> None:
    """Print the tables."""
    for value in VALUES:
        title = f"Aggregated profile by {_TITLES[value]}, for each endpoint: your code, then libraries"
        tables.print_section(console, title, _table(profiles, value, top, endpoints))


def to_dict(profiles: Profiles) -> dict[str, Any]:
    """Return the numbers for JSON."""
    return {
        "records": profiles.records,
        "samples": profiles.samples,
        "services": dict(profiles.services),
        "first_time_ns": profiles.first_ns,
        "last_time_ns": profiles.last_ns,
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
    }


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
