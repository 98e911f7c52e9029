"""Raised exceptions as events, by way of `sys.monitoring` (CPython 3.12 and newer).

The native ticker records them (`native/walker/exceptions.c`), on the thread that raises. This module takes
the id of a tool, registers the callback, and names the types. No code of an exception or its class runs.
In C the callback takes 14 to 28 ns, in Python 98, so the portable walker records none.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from splunk_profiler.capture.events.source import EventSource
from splunk_profiler.config import Config
from splunk_profiler.model import Event, EventKind, Frame, Stack, ValueType
from splunk_profiler.raw import RawEvent, RecordedEvent
from splunk_profiler.system.guard import logger

if TYPE_CHECKING:
    from splunk_profiler import _walker

EXCEPTION_KIND = EventKind("exception", count=ValueType("exceptions", "count"))
OTHER_TYPES = "(other types)"
_TOOL_NAME = "splunk-profiler"
# A debugger, coverage, cProfile and an optimizer have 0, 1, 2 and 5. Even if unused now: they may begin any time.
# ddtrace needs both: 4 for a profiler's exceptions, 3 from CPython 3.15 on for all that it wraps.
_TOOL_IDS = (3, 4) if sys.version_info < (3, 15) else (4, 3)
_MAX_TYPES = 200
_MAX_NAME_CHARACTERS = 200
# As they are in the class itself: a metaclass may have others of these names.
_module_of, _qualname_of = (type.__dict__[name].__get__ for name in ("__module__", "__qualname__"))


class ExceptionSource(EventSource):
    """The source of exceptions, which `ticker` records, whether it runs or not."""

    def __init__(self, ticker: _walker.Ticker[Frame, Stack]) -> None:
        self._ticker = ticker
        self._tool_id: int | None = None
        self._types: set[str] = set()

    def start(self) -> None:
        """Register the callback, if a tool id is free."""
        monitoring = _monitoring()
        if self._tool_id is not None:
            return
        for tool_id in _TOOL_IDS:
            with suppress(ValueError):  # it is taken
                monitoring.use_tool_id(tool_id, _TOOL_NAME)
                self._tool_id = tool_id
                break
        else:
            names = " and ".join(str(monitoring.get_tool(tool_id)) for tool_id in _TOOL_IDS)
            logger.warning("raised exceptions are not sampled: %s use the free tool ids of sys.monitoring", names)
            return
        monitoring.register_callback(tool_id, monitoring.events.RAISE, self._ticker.on_raise)
        monitoring.set_events(tool_id, monitoring.events.RAISE)

    def stop(self) -> None:
        """Unregister the callback and give the tool id back."""
        tool_id, self._tool_id = self._tool_id, None
        monitoring = _monitoring()
        if tool_id is not None and monitoring.get_tool(tool_id) == _TOOL_NAME:  # else another tool has taken it away
            monitoring.set_events(tool_id, 0)
            monitoring.register_callback(tool_id, monitoring.events.RAISE, None)
            monitoring.free_tool_id(tool_id)

    def drain(self) -> Sequence[RawEvent]:
        """Return the recorded exceptions as events."""
        return [self._make_event(raised) for raised in self._ticker.drain_exceptions()]

    def _make_event(self, raised: RecordedEvent) -> RawEvent:
        name = qualified_name(raised.details[0])
        if name not in self._types and len(self._types) >= _MAX_TYPES:
            name = OTHER_TYPES
        self._types.add(name)
        event = Event(EXCEPTION_KIND, (("exception.type", name),), raised.event_count, 0)
        return RawEvent(raised.time_ns, raised.thread, event)


def make_exception_source(config: Config, ticker: Any, native: bool) -> ExceptionSource | None:
    """Return the source; None if it is off, or not possible here, which the log then says."""
    if not config.samples_exceptions:
        return None
    reason = unavailable_reason(native=native)
    if reason:
        logger.warning("raised exceptions are not sampled: %s", reason)
        return None
    return ExceptionSource(ticker)


def unavailable_reason(*, native: bool) -> str:
    """Return the reason why this interpreter cannot sample exceptions; empty if it can."""
    if not hasattr(sys, "monitoring"):
        version = f"{sys.implementation.name} {sys.version_info.major}.{sys.version_info.minor}"
        return f"that takes CPython 3.12 or newer, and this is {version}"
    return "" if native else "the portable walker does not record them"


def qualified_name(exception_type: type) -> str:
    """Return the name of a class with its module, unless this is ``builtins``. Runs none of the class's code."""
    texts = []
    for name_of in (_module_of, _qualname_of):
        text: Any = ""
        with suppress(AttributeError):  # the class has lost its module
            text = name_of(exception_type)
        # `isinstance` would ask the text for its class.
        texts.append(str.__str__(text) if issubclass(type(text), str) else "")
    module, qualname = texts
    name = qualname if module in ("", "builtins") else f"{module}.{qualname}"
    return name if len(name) <= _MAX_NAME_CHARACTERS else name[: _MAX_NAME_CHARACTERS - 1] + "…"


def _monitoring() -> Any:
    return sys.monitoring  # type: ignore[attr-defined,unused-ignore]  # CPython 3.12
