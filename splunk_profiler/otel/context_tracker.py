"""Each thread's current OpenTelemetry context, for walkers that cannot read it from the interpreter.

Patches `attach` and `detach` of the runtime-context *instance*, so that callers with earlier
imports of OpenTelemetry's functions are covered. Exact for spans that a thread opens itself.
Approximate for asyncio and copied contexts (`asyncio.to_thread`), where the context changes without
a call: there a span may be missing. Runs on the application's threads: must be short and must not
raise.
"""

from __future__ import annotations

import _thread
from collections import deque
from collections.abc import Callable
from threading import get_ident
from typing import Any

from splunk_profiler.system.method_patch import MethodPatch

_MAX_ATTACHED = 256  # per thread; bounds the memory of programs that never detach


class _ThreadState:
    """The attached contexts of one thread, in its thread-local memory.

    Its destruction at the thread's end forgets the thread's context, so that a reused ident starts
    without one.
    """

    def __init__(self, current: dict[int, Any]) -> None:
        self.attached: deque[tuple[Any, Any]] = deque(maxlen=_MAX_ATTACHED)  # (context, previous context)
        self._current = current
        self._ident = get_ident()

    def __del__(self) -> None:
        self._current.pop(self._ident, None)

    def push_context(self, context: Any) -> None:
        """Record that this thread attached `context`."""
        self.attached.append((context, self._current.get(self._ident)))
        self._set_current(context)

    def pop_context(self, detached: Any, restored: Any) -> None:
        """Record that this thread detached `detached`, after which `restored` is current.

        `restored` may belong to another task or to a copied context that ends without a call; it
        would then stay for ever. So it counts only if it was current when `detached` was attached.
        """
        previous = None
        for position in reversed(range(len(self.attached))):
            if self.attached[position][0] is detached:
                previous = self.attached[position][1]
                del self.attached[position]
                break
        self._set_current(restored if restored is previous else None)

    def _set_current(self, context: Any) -> None:
        if context:
            self._current[self._ident] = context
        else:
            self._current.pop(self._ident, None)


class ContextTracker:
    """A tracker of the context that each thread attached last; first calls `on_attach`, which must not raise."""

    def __init__(self, runtime: Any, on_attach: Callable[[], None]) -> None:
        self._runtime = runtime
        self._on_attach = on_attach
        self._current: dict[int, Any] = {}
        self._local = _thread._local()
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
                self._thread_state().push_context(context)
            return token

        def tracked_detach(token: Any) -> None:
            detached = get_current()
            try:
                detach(token)
            finally:
                self._thread_state().pop_context(detached, get_current())

        self._patch.install({"attach": tracked_attach, "detach": tracked_detach})

    def remove(self) -> None:
        """Undo `install`."""
        self._patch.remove()
        self._current.clear()

    def context_of(self, ident: int) -> Any | None:
        """Return the context that the thread with this ident attached last, or None."""
        return self._current.get(ident)

    def _thread_state(self) -> _ThreadState:
        state: _ThreadState | None = getattr(self._local, "state", None)
        if state is None:
            state = self._local.state = _ThreadState(self._current)
        return state
