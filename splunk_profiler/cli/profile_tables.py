"""Draws profiles that `profiles` has added up: the top by CPU and by wall time, for each endpoint, your code first.

Runs on the main thread of `report`; reads no data itself.
"""

from __future__ import annotations

from typing import Any

from rich.table import Table

from splunk_profiler.cli import tables
from splunk_profiler.cli.profiles import (
    APPLICATION,
    OUTSIDE,
    PROCESS,
    UNNAMED,
    VALUES,
    Endpoint,
    Function,
    Profiles,
    Spent,
)
from splunk_profiler.cli.terminal import Terminal, text

_TITLES = {"cpu": "CPU time", "wall": "wall time (waiting included)"}
_LAST = (UNNAMED, OUTSIDE, PROCESS)
_LEAST_SHARE = 0.005  # of an endpoint's time: less is not worth a line


def draw(console: Terminal, profiles: Profiles, *, top: int, endpoints: int) -> None:
    """Write the tables."""
    for value in VALUES:
        tables.heading(console, f"Aggregated profile by {_TITLES[value]}, for each endpoint: your code, then libraries")
        console.print(_table(profiles, value, top, endpoints))


def as_data(profiles: Profiles) -> dict[str, Any]:
    """The numbers as plain values."""
    return {
        "records": profiles.records,
        "samples": profiles.samples,
        "services": dict(profiles.services),
        "first_time_ns": profiles.first_ns,
        "last_time_ns": profiles.last_ns,
        "records_by_period_ms": {str(period): count for period, count in profiles.periods_ms.items()},
        **_spent_data("", profiles.spent),
        "endpoints": {
            name: {
                "samples": endpoint.samples,
                **_spent_data("", endpoint.spent),
                "functions": [_function_data(each) for each in endpoint.functions.values()],
            }
            for name, endpoint in _ranked(profiles, "cpu")
        },
    }


def _spent_data(prefix: str, spent: Spent) -> dict[str, int]:
    return {f"{prefix}cpu_ns": spent.cpu, f"{prefix}wall_ns": spent.wall}


def _function_data(function: Function) -> dict[str, Any]:
    place = function.place
    return {
        "function": place.function,
        "file": place.file,
        "line": place.line,
        "kind": place.kind,
        "distribution": place.distribution,
        **_spent_data("own_", function.own),
        **_spent_data("direct_", function.direct),
        **_spent_data("total_", function.total),
    }


def _ranked(profiles: Profiles, value: str) -> list[tuple[str, Endpoint]]:
    """Endpoints, those with most of `value` first; what is in none of them comes last."""

    def rank(item: tuple[str, Endpoint]) -> tuple[int, int]:
        name, endpoint = item
        return (_LAST.index(name) + 1 if name in _LAST else 0, -getattr(endpoint.spent, value))

    return sorted(profiles.endpoints.items(), key=rank)


def _table(profiles: Profiles, value: str, top: int, endpoints: int) -> Table:
    table = tables.table("endpoint, function", "time", "share", "total", "of")
    ranked = [item for item in _ranked(profiles, value) if getattr(item[1].spent, value)]
    whole = getattr(profiles.spent, value)
    for number, (name, endpoint) in enumerate(ranked):
        if number == endpoints:
            table.add_row(text(f"and {len(ranked) - endpoints} more (--spans)", style="dim"))
            break
        spent = getattr(endpoint.spent, value)
        table.add_row(text(name, style="bold"), tables.duration(spent), tables.percent(spent, whole))
        for function, own in _rows(endpoint, value, top):
            _add_row(table, function, own, value, spent)
    return table


def _rows(endpoint: Endpoint, value: str, top: int) -> list[tuple[Function, int]]:
    """Functions of the application with the time of what they did themselves or had libraries do, then of libraries."""
    least = max(getattr(endpoint.spent, value) * _LEAST_SHARE, 1)
    found = []
    for own, yours, most in (("direct", True, top), ("own", False, -(-top // 2))):
        timed = [
            (function, getattr(getattr(function, own), value))
            for function in endpoint.functions.values()
            if (function.place.kind == APPLICATION) is yours
        ]
        timed.sort(key=lambda item: -item[1])
        found += [item for item in timed[:most] if item[1] >= least]
    return found


def _add_row(table: Table, function: Function, own: int, value: str, whole: int) -> None:
    place = function.place
    yours = place.kind == APPLICATION
    source = place.distribution.replace("==", " ") or ("your code" if yours else "")
    table.add_row(
        f"  {place.function}",
        tables.duration(own),
        tables.percent(own, whole),
        tables.percent(getattr(function.total, value), whole),
        source,
        style="" if yours else "dim",
    )
