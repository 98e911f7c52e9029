"""Each thread's current OpenTelemetry context, for walkers that cannot read it from the interpreter.

Patches `attach` and `detach` of the runtime-context *instance*, so that callers with earlier
imports of OpenTelemetry's functions are covered. Exact for spans that a thread, task or greenlet
opens itself. Runs on the application's threads: must be short and must not raise.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from splunk_profiler.system.context_values import ContextValues
from splunk_profiler.system.method_patch import MethodPatch

_MAX_ATTACHED = 256  # per thread, task or greenlet; bounds the memory of programs that never detach


class ContextTracker(ContextValues[Any]):
    """A tracker of the context that each thread, task or greenlet attached last.

    Args:
        variable: variable of the current context; None if `runtime` keeps it elsewhere.
        on_attach: called before each attach; must not raise.
    """

    def __init__(self, runtime: Any, variable: ContextVar[Any] | None, on_attach: Callable[[], None]) -> None:
        super().__init__(variable)
        self._runtime = runtime
        self._on_attach = on_attach
        self._patch = MethodPatch(runtime)

    def install(self) -> None:
        """Patch the methods, once."""
        if self._patch.is_installed:
            return
        attach, detach, get_current = self._runtime.attach, self._runtime.detach, self._runtime.get_current

        def tracked_attach(context: Any) -> Any:
            self._on_attach()
            token = attach(context)
            if self._patch.is_installed:
                self._record_attached(context)
            return token

        def tracked_detach(token: Any) -> None:
            detached = get_current()
            try:
                detach(token)
            finally:
                self._record_detached(detached)

        self._patch.install({"attach": tracked_attach, "detach": tracked_detach})

    def remove(self) -> None:
        """Undo `install`."""
        self._patch.remove()
        self.clear()

    def _record_attached(self, context: Any) -> None:
        try:
            current = self._current()
            current.attached.append((context, current.value))
            if len(current.attached) > _MAX_ATTACHED:
                del current.attached[0]
            current.value = context or None
        except Exception as error:  # the application needs its token
            self._guard.note(error)

    def _record_detached(self, detached: Any) -> None:
        """Record that `detached` was detached, and which context is current now.

        That one may belong to another task or to a copied context that ends without a call; it
        would then stay for ever. So it counts only if it was current when `detached` was attached.
        """
        try:
            current, previous, restored = self._current(), None, self._runtime.get_current()
            attached = current.attached
            for position in range(len(attached) - 1, -1, -1):
                if attached[position][0] is detached:
                    previous = attached.pop(position)[1]
                    break
            current.value = restored or None if restored is previous else None
        except Exception as error:
            self._guard.note(error)
