"""Which processes others have forked.

Owns no thread. Must not import anything of the package.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

_PROC = Path("/proc")
_PARENT_FIELD = 1  # field of `stat`, counted from the one behind the name


def descendants(pids: Collection[int]) -> set[int]:
    """The processes that `pids` and their descendants have forked and that live, as far as they can be seen now.

    One that is forked or ends at this very moment may be missing, as is one whose parent has ended before it was seen.
    """
    return _list_descendants(pids) if (_PROC / "thread-self" / "children").exists() else search_descendants(pids)


def _list_descendants(pids: Collection[int]) -> set[int]:
    """From the kernel's own list, which it has if it was built with CONFIG_PROC_CHILDREN."""
    found: set[int] = set()
    pending_pids = list(pids)
    while pending_pids:
        children = _children(pending_pids.pop()) - found
        found |= children
        pending_pids += children
    return found


def search_descendants(pids: Collection[int]) -> set[int]:
    """By asking every process for its parent."""
    children: dict[int, list[int]] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit() and (stat := _read_text(entry / "stat")):
            parent = int(stat[stat.rindex(")") + 2 :].split()[_PARENT_FIELD])
            children.setdefault(parent, []).append(int(entry.name))
    found: set[int] = set()
    pending_pids = list(pids)
    while pending_pids:
        new = set(children.get(pending_pids.pop(), ())) - found
        found |= new
        pending_pids += new
    return found


def _children(pid: int) -> set[int]:
    try:
        tasks = list((_PROC / str(pid) / "task").iterdir())
    except OSError:
        return set()
    return {int(child) for task in tasks for child in _read_text(task / "children").split()}


def _read_text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:  # it has ended
        return ""
