"""Replaces methods of one object of the application, and undoes it only where nobody has replaced them since.

Runs on the threads that start and stop the profiler. Imports nothing of ours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

_MISSING = object()


class MethodPatch:
    """Puts functions in place of an object's methods.

    What is put must do the work of what was there even after `remove`: whoever has decorated over it keeps calling it.

    Args:
        target: the object; its class is left alone.
    """

    def __init__(self, target: Any) -> None:
        self._target = target
        self._ours: dict[str, Any] = {}
        self._before: dict[str, Any] = {}

    @property
    def installed(self) -> bool:
        """Whether `install` has been called, and not `remove` since."""
        return bool(self._ours)

    def install(self, functions: Mapping[str, Callable[..., Any]]) -> None:
        """Put `functions` in place of the methods of these names; does nothing while some are there."""
        if self._ours:
            return
        own = vars(self._target)
        self._before = {name: own.get(name, _MISSING) for name in functions}
        self._ours = dict(functions)
        own.update(functions)

    def remove(self) -> None:
        """Put back what was there, except where somebody else's stands now."""
        own = vars(self._target)
        for name, function in [*self._ours.items()]:
            before = self._before[name]
            if own.get(name) is function and before is _MISSING:
                del own[name]
            elif own.get(name) is function:
                own[name] = before
            self._ours.pop(name, None)  # only now: who is interrupted here can be called again
