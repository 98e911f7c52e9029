"""Choose the walker of this process and make its ticker; the contract that both walkers keep.

Imports neither configuration nor OpenTelemetry.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from splunk_profiler.capture.portable import PortableTicker, is_gil_enabled
from splunk_profiler.capture.portable_gc import CollectionLog
from splunk_profiler.capture.schedule import TraceFilter
from splunk_profiler.capture.symbolizer import Symbolizer
from splunk_profiler.model import Stack
from splunk_profiler.raw import RawCollection, RawSnapshot, TickerCounters
from splunk_profiler.system.threads import active_threads

_RING_SIZE = 64


class Ticker(Protocol):
    """The contract of both walkers; see ``_walker.pyi``."""

    def run(self, period_ns: int, focused_period_ns: int = 0) -> None: ...
    def set_periods(self, period_ns: int, focused_period_ns: int = 0) -> None: ...
    def notify_trace_added(self) -> None: ...
    def stop(self) -> None: ...
    def capture(self, *, is_focused: bool = False) -> None: ...
    def drain(self, timeout_ns: int) -> Sequence[RawSnapshot]: ...
    @property
    def on_gc_event(self) -> Callable[[str, dict[str, Any]], None]: ...
    def drain_collections(self) -> Sequence[RawCollection]: ...
    def counters(self) -> TickerCounters: ...


@dataclass(frozen=True, slots=True)
class WalkerChoice:
    """Which walker serves and why: ``native``, ``portable`` or ``none``, and a sentence for the log."""

    name: str
    reason: str


def choose_walker(preference: str = "auto") -> WalkerChoice:
    """The walker for this interpreter; `preference` is ``auto``, ``native`` or ``portable``. Never raises."""
    if not is_gil_enabled():
        return WalkerChoice(
            "none", "the GIL is off, and frames of threads that run cannot be read safely (PYTHON_GIL=1 turns it on)"
        )
    if preference == "portable":
        return WalkerChoice("portable", "it was asked for")
    if not sys.platform.startswith("linux"):
        return WalkerChoice("portable", f"the native walker runs on Linux, this is {sys.platform}")
    try:
        import splunk_profiler._walker  # noqa: F401, PLC0415  # the choice is whether it can be imported
    except ImportError as error:
        version = f"{sys.implementation.name} {sys.version_info.major}.{sys.version_info.minor}"
        return WalkerChoice("portable", f"the native walker is not there for {version} ({error})")
    return WalkerChoice("native", f"it was built for CPython {sys.version_info.major}.{sys.version_info.minor}")


def _no_labels(_ident: int) -> None:
    """No thread has any."""


def make_ticker(
    choice: WalkerChoice,
    context_var: ContextVar[Any] | None,
    context_of: Callable[[int], Any | None],
    max_depth: int,
    *,
    labels_var: ContextVar[Any] | None = None,
    labels_of: Callable[[int], Any | None] = _no_labels,
    trace_filter: TraceFilter | None = None,
) -> Ticker:
    """A ticker of the chosen kind.

    Args:
        choice: of `choose_walker`.
        context_var: holds the OpenTelemetry context; read by the native walker.
        context_of: thread ident → context; asked by the portable walker.
        max_depth: frames kept of a stack, from the leaf.
        labels_var: holds the user's labels; None: they are not wanted.
        labels_of: thread ident → labels; asked by the portable walker.
        trace_filter: the traces whose threads are looked at more often.
    """
    symbolizer = Symbolizer()
    if choice.name == "native":
        from splunk_profiler import _walker  # noqa: PLC0415  # not there on every system

        native: Ticker = _walker.Ticker(
            context_var=context_var,
            labels_var=labels_var,
            max_depth=max_depth,
            make_frame=symbolizer.frame,
            make_stack=Stack,
            ring_size=_RING_SIZE,
            trace_filter=None if trace_filter is None else (trace_filter.traces, trace_filter.span_key),
            threads=active_threads(),
        )
        return native
    return PortableTicker(
        context_of=context_of,
        labels_of=labels_of,
        max_depth=max_depth,
        make_frame=symbolizer.frame,
        make_stack=Stack,
        ring_size=_RING_SIZE,
        collections=CollectionLog(_make_getter(context_var), _make_getter(labels_var), max_depth),
        trace_filter=trace_filter,
    )


def _make_getter(variable: ContextVar[Any] | None) -> Callable[[], Any | None]:
    """The value that a variable has for the calling thread."""
    return (lambda: None) if variable is None else partial(variable.get, None)
