"""The values that threads have set in their contexts, for walkers that cannot read them from the interpreter.

In an event loop the running task decides: by its own context where it has one (CPython 3.12), else by the value that
it set last. Under gevent or eventlet the running greenlet decides. A value that came with a copied context, or was set
in trio, is missing. In another context that it enters by `Context.run`, a thread keeps the value of its own. `value_of`
runs on the ticker's thread, the rest on the application's threads: must be short and must not raise.
"""

from __future__ import annotations

import _thread
import sys
from contextvars import ContextVar
from typing import Any, Generic, TypeVar
from weakref import WeakValueDictionary, ref

from splunk_profiler.system.guard import Guard
from splunk_profiler.system.threads import real, real_get_ident

Value = TypeVar("Value")


class CurrentValue(Generic[Value]):
    """The current value of one thread, task or greenlet."""

    __slots__ = ("__weakref__", "attached", "first", "ident", "loop", "value")

    def __init__(self, ident: int) -> None:
        self.ident = ident  # of the thread
        self.value: Value | None = None
        self.attached: dict[int, Value | None] = {}  # ids of the tokens that are not detached so far → values before
        self.first: Value | None = None  # the last one entered above a value that came with a copied context
        self.loop: Any = None  # the event loop in which the thread set a value


class ContextValues(Generic[Value]):
    """The value of `variable` on each thread, as far as other threads can know it; `variable` is None if unknown."""

    def __init__(self, variable: ContextVar[Any] | None) -> None:
        self._variable = variable
        self._guard = Guard("recording a context")
        self._get_ident = real_get_ident()
        self._start_new_thread = real("_thread", "start_new_thread")
        self._local = real("_thread", "_local")()
        # A thread's value ends with its `_local`, so that a reused ident starts without one.
        self._by_thread: WeakValueDictionary[int, CurrentValue[Value]] = WeakValueDictionary()
        self._by_task: dict[ref[Any], CurrentValue[Value]] = {}
        self._by_greenlet: dict[ref[Any], CurrentValue[Value]] = {}

    def value_of(self, ident: int) -> Value | None:
        """Return the value of the thread with this ident, or None. Under gevent this looks at all greenlets."""
        if _thread.start_new_thread is not self._start_new_thread:
            return self._value_of_running_greenlet(ident)
        current = self._by_thread.get(ident)
        if current is None:
            return None
        loop = current.loop
        if loop is not None and loop.is_closed():
            loop = current.loop = None
        # Threads may take turns to run one loop; that of uvloop does not say which thread runs it.
        is_running_here = loop is not None and getattr(loop, "_thread_id", ident) == ident
        task = sys.modules["asyncio"].current_task(loop) if is_running_here else None
        if task is not None:
            context_of = getattr(task, "get_context", None)  # CPython 3.12
            if context_of is not None and self._variable is not None:
                value: Value | None = context_of().get(self._variable)
                return value
            current = self._by_task.get(ref(task))
        return None if current is None else current.value

    def clear(self) -> None:
        """Forget all values."""
        self._local = real("_thread", "_local")()
        for known in (self._by_thread, self._by_task, self._by_greenlet):
            known.clear()

    def _current(self) -> CurrentValue[Value]:
        """Return the place for the value of the calling thread, or of its task or greenlet."""
        if _thread.start_new_thread is not self._start_new_thread:  # threads are greenlets
            return _find_or_add(self._by_greenlet, sys.modules["greenlet"].getcurrent(), self._get_ident())
        current: CurrentValue[Value] | None = getattr(self._local, "current", None)
        if current is None:
            current = self._local.current = CurrentValue(self._get_ident())
            self._by_thread[current.ident] = current
        modules = sys.modules
        running_loop = getattr(modules.get("asyncio"), "_get_running_loop", None)  # missing during the import
        loop = running_loop and running_loop()
        is_in_trio = "trio" in modules and _is_in_trio()
        if loop is None and not is_in_trio:
            return current
        current.loop = loop
        task = None if is_in_trio else sys.modules["asyncio"].current_task(loop)
        if task is not None:
            return _find_or_add(self._by_task, task, current.ident)
        current.value = None
        return CurrentValue(current.ident)  # used once: nothing says later what runs now

    def _value_of_running_greenlet(self, ident: int) -> Value | None:
        for reference, current in self._by_greenlet.copy().items():
            if current.value is not None and current.ident == ident:
                greenlet = reference()
                if greenlet and greenlet.gr_frame is None:  # it is neither dead nor suspended
                    return current.value
        return None


def _is_in_trio() -> bool:
    """Return True if the calling thread runs a trio loop, whose tasks other threads cannot query."""
    in_trio_run = getattr(getattr(sys.modules["trio"], "lowlevel", None), "in_trio_run", None)
    return in_trio_run is None or bool(in_trio_run())


def _find_or_add(known: dict[ref[Any], CurrentValue[Value]], owner: Any, ident: int) -> CurrentValue[Value]:
    """Return the place of `owner`, a task or greenlet; it is forgotten when `owner` is."""
    current = known.get(ref(owner))
    if current is None:
        current = known[ref(owner, lambda ended: known.pop(ended, None))] = CurrentValue(ident)
    return current
