"""Each thread's current OpenTelemetry context, for walkers that cannot read it from the interpreter.

Patches `attach` and `detach` of the runtime-context *instance*, so that callers with earlier
imports of OpenTelemetry's functions are covered. Exact for spans that a thread, task or greenlet
opens itself. Runs on the application's threads: must be short and must not raise.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from splunk_profiler.otel import spans
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
        attach, detach = self._runtime.attach, self._runtime.detach

        def tracked_attach(context: Any) -> Any:
            self._on_attach()
            token = attach(context)
            if self._patch.is_installed:
                self._record_attached(token, context)
            return token

        def tracked_detach(token: Any) -> None:
            try:
                detach(token)
            finally:
                self._record_detached(token)

        self._patch.install({"attach": tracked_attach, "detach": tracked_detach})

    def remove(self) -> None:
        """Undo `install`."""
        self._patch.remove()
        self.clear()

    def _record_attached(self, token: Any, context: Any) -> None:
        try:
            current = self._current()
            attached = current.attached
            attached[id(token)] = current.value
            if len(attached) > _MAX_ATTACHED:
                del attached[next(iter(attached))]
            current.value = context or None
        except Exception as error:  # the application needs its token
            self._guard.note(error)

    def _record_detached(self, token: Any) -> None:
        """Record which context is current now.

        That one may belong to another task or to a copied context that ends without a call; it
        would then stay for ever. So it counts only if it was current when `token` was made.
        """
        try:
            current = self._current()
            previous = current.attached.pop(id(token), None)
            current.value = previous if previous is not None and self._is_current(previous) else None
        except Exception as error:
            self._guard.note(error)

    def _is_current(self, context: Any) -> bool:
        current = self._runtime.get_current()
        # Holders other than OpenTelemetry's may make a context at each call.
        return current is context or (self._variable is None and spans.span_ref(current) == spans.span_ref(context))
