"""Search for the processes that other processes have forked."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

from splunk_profiler.inspector.proc_files import read_stat

_PROC = Path("/proc")


def descendants(pids: Collection[int]) -> set[int]:
    """Return the live processes that `pids` and their descendants have forked.

    A process may be missing if it is forked or ends during the search.
    It is missing if its parent ended before the search.
    """
    # The kernel keeps lists of children if it was built with CONFIG_PROC_CHILDREN.
    has_lists = (_PROC / "thread-self" / "children").exists()
    return _collect(pids, _list_children) if has_lists else search_descendants(pids)


def search_descendants(pids: Collection[int]) -> set[int]:
    """Return the same as `descendants`, from the parent that every process names."""
    children: dict[int, set[int]] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit() and (stat := read_stat(entry)):
            children.setdefault(stat.parent_pid, set()).add(int(entry.name))
    return _collect(pids, lambda pid: children.get(pid, set()))


def _collect(pids: Collection[int], children_of: Callable[[int], set[int]]) -> set[int]:
    found: set[int] = set()
    pending_pids = list(pids)
    while pending_pids:
        new = children_of(pending_pids.pop()) - found
        found |= new
        pending_pids += new
    return found


def _list_children(pid: int) -> set[int]:
    try:
        tasks = list((_PROC / str(pid) / "task").iterdir())
    except OSError:
        return set()
    return {int(child) for task in tasks for child in _read_children(task).split()}


def _read_children(task: Path) -> str:
    try:
        return (task / "children").read_text("ascii")
    except OSError:  # the thread has ended
        return ""
