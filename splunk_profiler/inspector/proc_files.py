"""Parsers of the files ``stat`` and ``status`` in ``/proc``."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class Stat(NamedTuple):
    """The fields of ``stat`` that matter here.

    The start time, in clock ticks since boot, tells a process from a later one of the same id.
    """

    name: str
    state: str
    parent_pid: int
    start_time: str


def read_stat(folder: Path) -> Stat | None:
    """Return the fields of ``stat`` in `folder`; None if the process or thread has ended."""
    try:
        text = (folder / "stat").read_text("utf-8", "replace")
    except OSError:
        return None
    # The name stands in parentheses and may contain parentheses itself.
    start, end = text.index("("), text.rindex(")")
    fields = text[end + 2 :].split()
    return Stat(text[start + 1 : end], fields[0], int(fields[1]), fields[19])


def read_status(folder: Path) -> dict[str, str]:
    """Return ``status`` in `folder`, name to value; empty if the process or thread has ended."""
    try:
        text = (folder / "status").read_text("utf-8", "replace")
    except OSError:
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in text.splitlines())}
