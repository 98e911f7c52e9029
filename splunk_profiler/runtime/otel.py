"""Shadows each thread's current OpenTelemetry context, for walkers that cannot read it from the interpreter.

Decorates `attach` and `detach` of the runtime-context *instance* that is loaded, so that callers who imported
OpenTelemetry's functions early are seen too. Exact for threads; approximate for asyncio, where a task switch
changes the context without a call. Runs on the application's threads: must be short and must not raise.
"""

from __future__ import annotations

import _thread
from collections.abc import Callable
from threading import get_ident
from typing import Any


class _Life:
    """Sits in a thread's local memory and forgets the thread's context when the thread ends.

    A new thread that gets the old one's ident starts without its span.
    """

    def __init__(self, current: dict[int, Any]) -> None:
        self._current = current
        self._ident = get_ident()

    def __del__(self) -> None:
        self._current.pop(self._ident, None)


class ContextShadow:
    """Remembers the context that each thread attached last.

    Args:
        runtime: the runtime context whose methods are decorated.
        on_attach: called on every attach, before anything else; must not raise.
    """

    def __init__(self, runtime: Any, on_attach: Callable[[], None]) -> None:
        self._runtime = runtime
        self._on_attach = on_attach
        self._current: dict[int, Any] = {}
        self._local = _thread._local()

    def install(self) -> None:
        """Decorate; calling it twice is one decoration."""
        if "attach" in vars(self._runtime):
            return
        attach, detach = self._runtime.attach, self._runtime.detach

        def shadowing_attach(context: Any) -> Any:
            self._on_attach()
            token = attach(context)
            self._remember(context)
            return token

        def shadowing_detach(token: Any) -> None:
            try:
                detach(token)
            finally:
                self._remember(self._runtime.get_current())

        self._runtime.attach = shadowing_attach
        self._runtime.detach = shadowing_detach

    def remove(self) -> None:
        """Undo `install`."""
        for name in ("attach", "detach"):
            vars(self._runtime).pop(name, None)
        self._current.clear()

    def context_of(self, ident: int) -> Any | None:
        """The context that the thread with this ident attached last, or None."""
        return self._current.get(ident)

    def _remember(self, context: Any) -> None:
        if context:
            if not hasattr(self._local, "life"):
                self._local.life = _Life(self._current)
            self._current[get_ident()] = context
        else:
            self._current.pop(get_ident(), None)
