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
        self._replacements: dict[str, Any] = {}
        self._originals: dict[str, Any] = {}

    @property
    def is_installed(self) -> bool:
        """Whether `install` has been called, and not `remove` since."""
        return bool(self._replacements)

    def install(self, functions: Mapping[str, Callable[..., Any]]) -> None:
        """Put `functions` in place of the methods of these names; does nothing while some are there."""
        if self._replacements:
            return
        instance_dict = vars(self._target)
        self._originals = {name: instance_dict.get(name, _MISSING) for name in functions}
        self._replacements = dict(functions)
        instance_dict.update(functions)

    def remove(self) -> None:
        """Put back what was there, except where somebody else's stands now."""
        instance_dict = vars(self._target)
        for name, function in [*self._replacements.items()]:
            original = self._originals[name]
            if instance_dict.get(name) is function and original is _MISSING:
                del instance_dict[name]
            elif instance_dict.get(name) is function:
                instance_dict[name] = original
            self._replacements.pop(name, None)  # only now: who is interrupted here can be called again
