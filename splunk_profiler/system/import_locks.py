"""The import system's module locks, the threads that own them and those that wait for them.

In a forked child, a module that another thread of the parent was importing stays locked for ever: its owner is gone.
Reads private state of `importlib`. Runs on any thread; imports nothing of ours.
"""

from __future__ import annotations

import sys
from collections.abc import Collection
from importlib.machinery import ExtensionFileLoader
from types import ModuleType
from typing import Any


def is_importing() -> bool:
    """Return True while any thread imports: the import system keeps a lock for each module under way."""
    return bool(_import_state("_module_locks"))


def modules_held_by(threads: Collection[int]) -> list[str]:
    """Return the modules that `threads` (idents) are importing."""
    locks = ((name, reference()) for name, reference in list(_import_state("_module_locks").items()))
    return [name for name, lock in locks if getattr(lock, "owner", None) in threads]


def is_waiting_for(thread: int, other: int) -> bool:
    """Return True if `thread` waits for a module that `other` imports, directly or through further threads."""
    seen: set[int] = set()
    pending = [thread]
    while pending:
        ident = pending.pop()
        if ident in seen:
            continue
        seen.add(ident)
        owners = [lock.owner for lock in _locks_awaited_by(ident)]
        if other in owners:
            return True
        pending += [owner for owner in owners if owner is not None]
    return False


def is_loaded(name: str) -> bool:
    """Return True if a module is imported completely."""
    module = sys.modules.get(name)
    return module is not None and not _is_initializing(module)


def abandon(threads: Collection[int]) -> None:
    """Unlock, in a forked child, the modules that the lost `threads` were importing, so that they can be imported anew.

    An extension module that was half made cannot be imported anew: importing it raises `ImportError` from now on.
    """
    for name in modules_held_by(threads):
        _import_state("_module_locks").pop(name, None)
        module = sys.modules.get(name)
        if module is not None and _is_initializing(module):
            if isinstance(getattr(module.__spec__, "loader", None), ExtensionFileLoader):
                sys.modules[name] = None  # type: ignore[assignment]  # makes importing it an ImportError
            else:
                sys.modules.pop(name, None)
    for thread in threads:
        awaited = _import_state("_blocking_on").get(thread)
        if isinstance(awaited, list):
            awaited.clear()
        elif awaited is not None:
            del _import_state("_blocking_on")[thread]


def _is_initializing(module: ModuleType) -> bool:
    return bool(getattr(module.__spec__, "_initializing", False))


def _import_state(name: str) -> Any:
    kept = getattr(sys.modules.get("_frozen_importlib"), name, None)
    return {} if kept is None else kept


def _locks_awaited_by(thread: int) -> list[Any]:
    awaited = _import_state("_blocking_on").get(thread)  # one lock up to CPython 3.11, then a list
    return list(awaited) if isinstance(awaited, list) else [] if awaited is None else [awaited]
