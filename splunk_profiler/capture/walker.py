"""The choice of the walker of this process, its ticker, and the contract of both walkers.

Imports neither configuration nor OpenTelemetry.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from splunk_profiler.capture.frames import is_gil_enabled
from splunk_profiler.capture.portable import PortableTicker
from splunk_profiler.capture.portable_gc import CollectionLog
from splunk_profiler.capture.schedule import TraceFilter
from splunk_profiler.capture.symbolizer import Symbolizer
from splunk_profiler.model import Stack
from splunk_profiler.raw import RawCollection, RawSnapshot, TickerCounters
from splunk_profiler.system.threads import active_threads

_RING_SIZE = 64


class Ticker(Protocol):
    """The contract of both walkers; ``_walker.pyi`` documents the methods."""

    def run(self, period_ns: int, focused_period_ns: int = 0) -> None:
        """Capture at absolute deadlines until `stop`; the body of a thread."""

    def set_periods(self, period_ns: int, focused_period_ns: int = 0) -> None:
        """Change the periods of a running ticker."""

    def notify_trace_added(self) -> None:
        """Announce that a trace was added to the focus."""

    def stop(self) -> None:
        """Make `run` and `drain` return, for good."""

    def capture(self, *, is_focused: bool = False) -> None:
        """Take one snapshot into the ring."""

    def drain(self, timeout_ns: int) -> Sequence[RawSnapshot]:
        """Return the snapshots of the ring, oldest first."""

    @property
    def on_gc_event(self) -> Callable[[str, dict[str, Any]], None]:
        """A callback for `gc.callbacks`."""

    def drain_collections(self) -> Sequence[RawCollection]:
        """Return the kept collections, oldest first."""

    def counters(self) -> TickerCounters:
        """Return the counters since the ticker was made."""


@dataclass(frozen=True, slots=True)
class WalkerChoice:
    """The walker in use: ``native``, ``portable`` or ``none``, and the reason as a sentence for the log."""

    name: str
    reason: str


def choose_walker(preference: str = "auto") -> WalkerChoice:
    """Choose the walker for this interpreter; `preference` is ``auto``, ``native`` or ``portable``. Never raises."""
    if not is_gil_enabled():
        return WalkerChoice(
            "none", "the GIL is off, and frames of threads that run cannot be read safely (PYTHON_GIL=1 turns it on)"
        )
    if preference == "portable":
        return WalkerChoice("portable", "it was asked for")
    if not sys.platform.startswith("linux"):
        return WalkerChoice("portable", f"the native walker runs on Linux, this is {sys.platform}")
    try:
        import splunk_profiler._walker  # noqa: F401, PLC0415  # tests the import
    except ImportError as error:
        version = f"{sys.implementation.name} {sys.version_info.major}.{sys.version_info.minor}"
        return WalkerChoice("portable", f"the native walker is not there for {version} ({error})")
    return WalkerChoice("native", f"it was built for CPython {sys.version_info.major}.{sys.version_info.minor}")


def make_ticker(
    choice: WalkerChoice,
    context_var: ContextVar[Any] | None,
    context_of: Callable[[int], Any | None],
    max_depth: int,
    *,
    labels_var: ContextVar[Any] | None = None,
    labels_of: Callable[[int], Any | None] = lambda _: None,
    trace_filter: TraceFilter | None = None,
) -> Ticker:
    """Make a ticker of the chosen kind, which keeps `max_depth` frames of a stack, from the leaf.

    The native walker reads `context_var` and `labels_var`; the portable one calls `context_of` and `labels_of` with
    idents of threads. Threads of the traces in `trace_filter` are captured more often.
    """
    symbolizer = Symbolizer()
    if choice.name == "native":
        from splunk_profiler import _walker  # noqa: PLC0415  # missing on some systems

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
    """Return a getter of the variable's value on the calling thread."""
    return (lambda: None) if variable is None else partial(variable.get, None)
