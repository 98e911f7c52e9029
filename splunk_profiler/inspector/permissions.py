"""Explanations of why the kernel refuses access to a process, with remedies."""

from __future__ import annotations

import os
from pathlib import Path

from splunk_profiler.inspector.errors import NotPermittedError
from splunk_profiler.inspector.proc_files import read_status

_PTRACE_SCOPE_PATH = Path("/proc/sys/kernel/yama/ptrace_scope")


def not_permitted(pid: int, what: str) -> NotPermittedError:
    """Return the error for a refusal; `what` names the refused action."""
    hints = []
    owner_uid, uid = _owner_uid(pid), os.geteuid()
    if owner_uid is not None and owner_uid != uid:
        hints.append(f"process {pid} belongs to user {owner_uid} and this is user {uid}: run as that user, or as root")
    scope = _ptrace_scope()
    if scope in (1, 2) and uid != 0:
        hints.append(f"kernel.yama.ptrace_scope is {scope}: run as root, or sysctl kernel.yama.ptrace_scope=0")
    if scope == 3:
        hints.append("kernel.yama.ptrace_scope is 3: nobody may, until the next boot with another setting")
    if not hints:
        hints.append(
            "run as the user of the process (or as root) with CAP_SYS_PTRACE; in a container, add that capability"
        )
    return NotPermittedError(f"{what}; " + "; ".join(hints))


def _owner_uid(pid: int) -> int | None:
    uids = read_status(Path(f"/proc/{pid}")).get("Uid")
    return int(uids.split()[1]) if uids else None  # real, effective, saved, file system


def _ptrace_scope() -> int | None:
    try:
        return int(_PTRACE_SCOPE_PATH.read_text("ascii"))
    except (OSError, ValueError):
        return None
