"""Patches of methods on one object of the application, undone only where no other patch replaced them since.

Runs on the threads that start and stop the profiler. Imports nothing of ours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

_MISSING = object()


class MethodPatch:
    """A replacement of methods on one object; its class stays as it is.

    A replacement must do the work of the original even after `remove`: a later patch may still call it.
    """

    def __init__(self, target: Any) -> None:
        self._target = target
        self._replacements: dict[str, Any] = {}
        self._originals: dict[str, Any] = {}

    @property
    def is_installed(self) -> bool:
        """True from `install` to `remove`."""
        return bool(self._replacements)

    def install(self, functions: Mapping[str, Callable[..., Any]]) -> None:
        """Replace the methods of these names by `functions`, unless a replacement is installed already."""
        if self._replacements:
            return
        instance_dict = vars(self._target)
        self._originals = {name: instance_dict.get(name, _MISSING) for name in functions}
        self._replacements = dict(functions)
        instance_dict.update(functions)

    def remove(self) -> None:
        """Restore the originals, except where another patch has replaced ours."""
        instance_dict = vars(self._target)
        for name, function in [*self._replacements.items()]:
            original = self._originals[name]
            if instance_dict.get(name) is function and original is _MISSING:
                del instance_dict[name]
            elif instance_dict.get(name) is function:
                instance_dict[name] = original
            self._replacements.pop(name, None)  # last: an interrupted call can be repeated
