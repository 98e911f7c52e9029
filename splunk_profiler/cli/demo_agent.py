"""The demo's stand-in for a host profiler: that it may read the service, and what it said.

Runs on the main thread of `demo`. Knows nothing of how host profilers read; imports nothing of ours.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

_PR_SET_PTRACER = 0x59616D61
_PREFIX = "splunk-profiler: error: "


def make_ptrace_hook(parent: int) -> Callable[[], None] | None:
    """What a process is to call before it becomes another program, so that descendants of `parent` may read it.

    Where Yama restricts who may trace whom (``kernel.yama.ptrace_scope`` 1), only the ancestors of a process may, and
    whom it has named itself. That still holds when the process becomes another program. Elsewhere it does nothing.
    """
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl
    prctl.argtypes = (ctypes.c_int, *[ctypes.c_ulong] * 4)

    def set_ptracer() -> None:
        prctl(_PR_SET_PTRACER, parent, 0, 0, 0)

    return set_ptracer


def summarize_log(log: Path) -> str:
    """One line on what the agent said in `log`, its lines of JSON: what it sent, or why it sent nothing."""
    events, other_lines = _read(log)
    totals = events[-1] if events and events[-1].get("event") == "totals" else {}
    if totals.get("processes"):
        lost = f"; {totals['lost_samples']:,} were lost" if totals.get("lost_samples") else ""
        return f"sent {totals.get('samples', 0):,} samples of transactions to the service{lost}"
    reasons = [reason["text"] for event in events if event.get("event") == "unseen" for reason in event["reasons"]]
    why = other_lines[-1] if other_lines else reasons[-1] if reasons else "it does not say why"
    return f"could not follow the service, and the demo went on without it: {why.removeprefix(_PREFIX)}"


def _read(log: Path) -> tuple[list[dict[str, Any]], list[str]]:
    events, other_lines = [], []
    for line in log.read_text(errors="replace").splitlines():
        try:
            events.append(dict(json.loads(line)))
        except (ValueError, TypeError):
            other_lines.append(line.strip())
    return events, other_lines
