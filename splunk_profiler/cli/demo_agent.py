"""The demo's stand-in for a host profiler: its permission to read the service, and a summary of its log.

Runs on the main thread of `demo`. Imports nothing of ours.
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
    """Return a function that lets descendants of `parent` read the process that calls it; None outside Linux.

    With ``kernel.yama.ptrace_scope`` 1 only ancestors may trace a process, and the process that it names by
    PR_SET_PTRACER, with its descendants. That outlasts an `exec`. Without Yama the call has no effect.
    """
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl
    prctl.argtypes = (ctypes.c_int, *[ctypes.c_ulong] * 4)

    def set_ptracer() -> None:
        prctl(_PR_SET_PTRACER, parent, 0, 0, 0)

    return set_ptracer


def summarize_log(log: Path) -> str:
    """Return one line on the agent's JSON lines in `log`: what it sent, or why it sent nothing."""
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
