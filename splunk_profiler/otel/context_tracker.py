"""Shadows each thread's current OpenTelemetry context, for walkers that cannot read it from the interpreter.

Decorates `attach` and `detach` of the runtime-context *instance* that is loaded, so that callers who imported
OpenTelemetry's functions early are seen too. Exact for spans that a thread opens itself; approximate for
asyncio and for copied contexts (`asyncio.to_thread`), where the context changes without a call: there a span
may be missing. Runs on the application's threads: must be short and must not raise.
"""

from __future__ import annotations

import _thread
from collections import deque
from collections.abc import Callable
from threading import get_ident
from typing import Any

from splunk_profiler.system.method_patch import MethodPatch

_MAX_ATTACHED = 256  # attached and not detached, of one thread; a program that never detaches must not fill memory


class _ThreadState:
    """What one thread attached and has not detached yet; it sits in the thread's local memory.

    Forgets the thread's context when the thread ends, so that a new one that gets its ident starts without it.
    """

    def __init__(self, current: dict[int, Any]) -> None:
        self.attached: deque[tuple[Any, Any]] = deque(maxlen=_MAX_ATTACHED)  # (context, what was current before)
        self._current = current
        self._ident = get_ident()

    def __del__(self) -> None:
        self._current.pop(self._ident, None)

    def push_context(self, context: Any) -> None:
        """`context` was attached on this thread."""
        self.attached.append((context, self._current.get(self._ident)))
        self._set_current(context)

    def pop_context(self, detached: Any, restored: Any) -> None:
        """`detached` was detached on this thread and `restored` is current.

        `restored` may be the context of another task or of a copied context that is about to be left without a
        word, and would then stand for ever. It counts only if it is what stood here when `detached` was attached.
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
        self._patch = MethodPatch(runtime)

    def install(self) -> None:
        """Decorate; calling it twice is one decoration."""
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
        """The context that the thread with this ident attached last, or None."""
        return self._current.get(ident)

    def _thread_state(self) -> _ThreadState:
        state: _ThreadState | None = getattr(self._local, "state", None)
        if state is None:
            state = self._local.state = _ThreadState(self._current)
        return state
