"""Tables of the sums of `memory_profiles`: the lines that have grown most, and those that allocate most.

Runs on the main thread of `report`; reads no data itself.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.table import Table

from splunk_profiler.cli import tables
from splunk_profiler.cli.memory_profiles import LineMemory, MemoryProfiles
from splunk_profiler.cli.terminal import Terminal


def draw(console: Terminal, memory: MemoryProfiles, *, top: int) -> None:
    """Print the tables."""
    lines = memory.lines()
    in_use = [line for line in lines if line.in_use or line.grown]
    if in_use:
        title = "Memory in use at the end, by the line that allocated it: what grew most comes first"
        tables.print_section(console, title, _table(in_use[:top], has_heaps=True))
    if lines:
        lines.sort(key=lambda line: -line.allocated)
        tables.print_section(console, "Lines that allocated most", _table(lines[:top], has_heaps=memory.has_heaps))


def to_dict(memory: MemoryProfiles) -> dict[str, Any]:
    """Return the numbers for JSON."""
    return {
        "records": memory.records,
        "lines": [
            {
                **asdict(line.place),
                "allocated_bytes": line.allocated,
                "in_use_bytes": line.in_use if memory.has_heaps else None,
                "grown_bytes": line.grown if memory.has_heaps else None,
            }
            for line in memory.lines()
        ],
    }


def _table(lines: list[LineMemory], *, has_heaps: bool) -> Table:
    of_heaps = ("grown", "in use") if has_heaps else ()
    table = tables.table("function", *of_heaps, "allocated", "at")
    for place, allocated, in_use, grown in lines:
        sizes = [_size(size) for size in ((grown, in_use) if has_heaps else ())]
        table.add_row(place.function, *sizes, _size(allocated), tables.place(place.file, place.line or None))
    return table


def _size(size: int) -> str:
    return f"{size / 2**30:,.1f} GiB" if abs(size) >= 2**30 else f"{size / 2**20:,.1f} MiB"
