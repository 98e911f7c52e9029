"""What the import system has under way: module locks, the threads that own them and those that wait for them.

In a forked child a module that a thread of the parent was importing stays locked for ever, since that thread is not
there. Reads what `importlib` keeps, which has no public name. Runs on any thread; imports nothing of ours.
"""

from __future__ import annotations

import sys
from collections.abc import Collection
from importlib.machinery import ExtensionFileLoader
from types import ModuleType
from typing import Any


def is_importing() -> bool:
    """Whether any thread is inside an import: the import system keeps a lock for each module under way."""
    return bool(_import_state("_module_locks"))


def modules_held_by(threads: Collection[int]) -> list[str]:
    """The modules that one of `threads`, given by idents, is importing."""
    return [name for name, lock in _owned_locks() if lock.owner in threads]


def is_waiting_for(thread: int, other: int) -> bool:
    """Whether `thread` waits, perhaps by way of further threads, for a module that `other` is importing."""
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
    """Whether a module has been imported and nobody is at it any more."""
    module = sys.modules.get(name)
    return module is not None and not _is_initializing(module)


def abandon(threads: Collection[int]) -> None:
    """In a forked child: let modules that `threads`, which are not there any more, were importing be imported anew.

    An extension module cannot be: where one was half-way made, importing it is an `ImportError` from now on.
    """
    for name in modules_held_by(threads):
        _import_state("_module_locks").pop(name, None)
        module = sys.modules.get(name)
        if module is not None and _is_initializing(module):
            if isinstance(getattr(module.__spec__, "loader", None), ExtensionFileLoader):
                sys.modules[name] = None  # type: ignore[assignment]  # the import system's sign for that
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


def _owned_locks() -> list[tuple[str, Any]]:
    found = ((name, reference()) for name, reference in list(_import_state("_module_locks").items()))
    return [(name, lock) for name, lock in found if getattr(lock, "owner", None) is not None]


def _locks_awaited_by(thread: int) -> list[Any]:
    """One lock up to CPython 3.11, then a list."""
    awaited = _import_state("_blocking_on").get(thread)
    return list(awaited) if isinstance(awaited, list) else [] if awaited is None else [awaited]
