"""Reads memory, threads and descriptors of a process from the kernel, and finds growth in them."""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

MAX_GROWTH_MIB = 12.0  # growth of allocators without a leak
MAX_GROWTH_SHARE = 0.10
MAX_NEW_THREADS = 4  # of gRPC, which starts threads on demand
MAX_NEW_DESCRIPTORS = 4


class Usage(NamedTuple):
    """Resources of a process at one moment."""

    rss_mib: float
    threads: int
    descriptors: int


def usage_of(pid: int) -> Usage | None:
    """Read the resources of process `pid`; None if it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text("utf-8")
        fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
        descriptors = len(os.listdir(f"/proc/{pid}/fd"))  # noqa: PTH208  # only their number
        return Usage(int(fields["VmRSS"].split()[0]) / 1024, int(fields["Threads"]), descriptors)
    except (OSError, KeyError):
        return None


def growth_of(memory: Sequence[float]) -> float:
    """Return the growth in MiB from the second to the last sixth of a run; the first is the start."""
    sixth = max(len(memory) // 6, 1)
    return statistics.median(memory[-sixth:]) - statistics.median(memory[sixth : 2 * sixth] or memory)


def find_growth_faults(first: Usage, last: Usage, memory: Sequence[float]) -> list[str]:
    """Return a fault for each resource that has grown between two moments at rest."""
    faults = []
    growth, base = growth_of(memory), memory[len(memory) // 6]
    if growth > MAX_GROWTH_MIB + MAX_GROWTH_SHARE * base:
        faults.append(f"memory grew by {growth:.0f} MiB from {base:.0f}")
    if last.threads > first.threads + MAX_NEW_THREADS:
        faults.append(f"{last.threads - first.threads} more threads at the end")
    if last.descriptors > first.descriptors + MAX_NEW_DESCRIPTORS:
        faults.append(f"{last.descriptors - first.descriptors} more descriptors at the end")
    return faults
