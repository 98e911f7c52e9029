"""The choice of the walker of this process, and its ticker. Imports neither configuration nor OpenTelemetry."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from splunk_profiler.capture.symbolizer import Symbolizer
from splunk_profiler.model import Frame, Stack
from splunk_profiler.raw import TraceFilter
from splunk_profiler.system.gil import is_gil_enabled
from splunk_profiler.system.threads import active_threads

if TYPE_CHECKING:
    from splunk_profiler import _walker
    from splunk_profiler.capture.portable import PortableTicker

Ticker: TypeAlias = "_walker.Ticker[Frame, Stack] | PortableTicker"  # same methods; `_walker.pyi` documents them
_RING_SIZE = 256


class WalkerChoice(NamedTuple):
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
    labels_of: Callable[[int], Any | None] | None = None,
    trace_filter: TraceFilter | None = None,
    exception_interval: int = 1,
    collection_interval_ns: int = 10_000_000,
    skips_quiet: bool = False,
) -> Ticker:
    """Make a ticker of the chosen kind, which keeps `max_depth` frames of a stack, from the leaf.

    Of each generation it keeps one collection of garbage in `collection_interval_ns`, which stands for the others.
    With `skips_quiet` the native one only counts deadlines at which no thread has run since the previous capture.
    The native walker reads `context_var`, `labels_var`; the portable one calls `context_of`, `labels_of` with idents.
    """
    symbolizer = Symbolizer()
    if choice.name == "native":
        from splunk_profiler import _walker  # noqa: PLC0415  # missing on some systems

        return _walker.Ticker(
            context_var=context_var,
            labels_var=labels_var,
            max_depth=max_depth,
            make_frame=symbolizer.frame,
            make_stack=Stack,
            ring_size=_RING_SIZE,
            trace_filter=None if trace_filter is None else (trace_filter.traces, trace_filter.span_key),
            threads=active_threads(),
            exception_interval=exception_interval,
            min_collection_interval_ns=collection_interval_ns,
            skips_quiet=skips_quiet,
        )
    from splunk_profiler.capture.portable import PortableTicker  # noqa: PLC0415  # needless where the native one serves
    from splunk_profiler.capture.portable_gc import CollectionLog  # noqa: PLC0415

    return PortableTicker(
        context_of=context_of,
        labels_of=labels_of,
        max_depth=max_depth,
        make_frame=symbolizer.frame,
        make_stack=Stack,
        ring_size=_RING_SIZE,
        collections=CollectionLog(context_var, labels_var, max_depth, collection_interval_ns),
        trace_filter=trace_filter,
    )
