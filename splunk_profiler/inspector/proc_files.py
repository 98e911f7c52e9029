"""Processes and threads as ``/proc`` lists them, and why the kernel refuses access to one."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from splunk_profiler.inspector.errors import NotPermittedError

_PROC = Path("/proc")
_PTRACE_SCOPE_PATH = Path("/proc/sys/kernel/yama/ptrace_scope")


class Task(NamedTuple):
    """A process or thread, with those fields of its ``stat`` that matter here.

    The start time, in clock ticks since boot, tells it from a later one of the same id.
    """

    tid: int
    name: str
    state: str
    parent_pid: int
    start_time: str

    @property
    def is_alive(self) -> bool:
        """True if it has not ended."""
        return self.state not in "ZX"

    @property
    def is_running(self) -> bool:
        """True if it is on a processor or waits for one."""
        return self.state == "R"

    @property
    def can_stop(self) -> bool:
        """True if it would stop soon after a request (D is an uninterruptible sleep)."""
        return self.is_alive and self.state != "D"


def read_task(folder: Path) -> Task | None:
    """Return the process or thread in `folder`, whose name is its id; None if it has ended."""
    try:
        text = (folder / "stat").read_text("utf-8", "replace")
    except OSError:
        return None
    # The name stands in parentheses and may contain parentheses itself.
    start, end = text.index("("), text.rindex(")")
    fields = text[end + 2 :].split()
    return Task(int(folder.name), text[start + 1 : end], fields[0], int(fields[1]), fields[19])


def read_tasks(folder: Path) -> list[Task]:
    """Return the processes or threads in `folder`, without those that end meanwhile, by ascending id.

    Raises:
        FileNotFoundError: the process has ended.
    """
    ids = sorted(int(entry.name) for entry in folder.iterdir() if entry.name.isdigit())
    found = (read_task(folder / str(one)) for one in ids)
    return [task for task in found if task is not None]


def read_status(folder: Path) -> dict[str, str]:
    """Return ``status`` in `folder`, name to value; empty if the process or thread has ended."""
    try:
        text = (folder / "status").read_text("utf-8", "replace")
    except OSError:
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in text.splitlines())}


def find_descendants(pids: Collection[int]) -> set[int]:
    """Return the live processes that `pids` and their descendants have forked.

    A process may be missing if it is forked or ends during the search.
    It is missing if its parent ended before the search.
    """
    processes = read_tasks(_PROC)
    found: set[int] = set()
    parents = set(pids)
    while parents:
        parents = {process.tid for process in processes if process.parent_pid in parents} - found
        found |= parents
    return found


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
        hints.append("kernel.yama.ptrace_scope is 3: no process may, until the next boot with another setting")
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
