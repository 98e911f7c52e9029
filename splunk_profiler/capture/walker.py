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

from splunk_profiler.capture.portable import PortableTicker, is_gil_on
from splunk_profiler.capture.portable_gc import CollectionLog
from splunk_profiler.capture.schedule import TraceFilter
from splunk_profiler.capture.symbolizer import Symbolizer
from splunk_profiler.model import Stack
from splunk_profiler.raw import RawCollection, RawSnapshot
from splunk_profiler.system.threads import living_threads

_RING_SIZE = 64


class Counters(Protocol):
    """Counts of a ticker since it was made; see ``_walker.pyi``."""

    @property
    def due(self) -> int: ...
    @property
    def captured(self) -> int: ...
    @property
    def by_pending_call(self) -> int: ...
    @property
    def missed(self) -> int: ...
    @property
    def overwritten(self) -> int: ...
    @property
    def late_ns_max(self) -> int: ...
    @property
    def late_ns_sum(self) -> int: ...
    @property
    def held_ns_sum(self) -> int: ...


class Ticker(Protocol):
    """The contract of both walkers; see ``_walker.pyi``."""

    def run(self, period_ns: int, focused_period_ns: int = 0) -> None: ...
    def pace(self, period_ns: int, focused_period_ns: int = 0) -> None: ...
    def focus(self) -> None: ...
    def stop(self) -> None: ...
    def capture(self, *, focused: bool = False) -> None: ...
    def drain(self, timeout_ns: int) -> Sequence[RawSnapshot]: ...
    @property
    def note_collection(self) -> Callable[[str, dict[str, Any]], None]: ...
    def drain_collections(self) -> Sequence[RawCollection]: ...
    def counters(self) -> Counters: ...


@dataclass(frozen=True, slots=True)
class Choice:
    """Which walker serves and why: ``native``, ``portable`` or ``none``, and a sentence for the log."""

    name: str
    reason: str


def choose_walker(wanted: str = "auto") -> Choice:
    """The walker for this interpreter; `wanted` is ``auto``, ``native`` or ``portable``. Never raises."""
    if not is_gil_on():
        return Choice(
            "none", "the GIL is off, and frames of threads that run cannot be read safely (PYTHON_GIL=1 turns it on)"
        )
    if wanted == "portable":
        return Choice("portable", "it was asked for")
    if not sys.platform.startswith("linux"):
        return Choice("portable", f"the native walker runs on Linux, this is {sys.platform}")
    try:
        import splunk_profiler._walker  # noqa: F401, PLC0415  # the choice is whether it can be imported
    except ImportError as error:
        version = f"{sys.implementation.name} {sys.version_info.major}.{sys.version_info.minor}"
        return Choice("portable", f"the native walker is not there for {version} ({error})")
    return Choice("native", f"it was built for CPython {sys.version_info.major}.{sys.version_info.minor}")


def _no_labels(_ident: int) -> None:
    """No thread has any."""


def make_ticker(
    choice: Choice,
    context_var: ContextVar[Any] | None,
    context_of: Callable[[int], Any | None],
    max_depth: int,
    *,
    labels_var: ContextVar[Any] | None = None,
    labels_of: Callable[[int], Any | None] = _no_labels,
    focus: TraceFilter | None = None,
) -> Ticker:
    """A ticker of the chosen kind.

    Args:
        choice: of `choose_walker`.
        context_var: holds the OpenTelemetry context; read by the native walker.
        context_of: thread ident → context; asked by the portable walker.
        max_depth: frames kept of a stack, from the leaf.
        labels_var: holds the user's labels; None: they are not wanted.
        labels_of: thread ident → labels; asked by the portable walker.
        focus: the traces whose threads are looked at more often.
    """
    namer = Symbolizer()
    if choice.name == "native":
        from splunk_profiler import _walker  # noqa: PLC0415  # not there on every system

        native: Ticker = _walker.Ticker(
            context_var=context_var,
            labels_var=labels_var,
            max_depth=max_depth,
            make_frame=namer.frame,
            make_stack=Stack,
            ring_size=_RING_SIZE,
            focus=None if focus is None else (focus.traces, focus.span_key),
            threads=living_threads(),
        )
        return native
    return PortableTicker(
        context_of=context_of,
        labels_of=labels_of,
        max_depth=max_depth,
        make_frame=namer.frame,
        make_stack=Stack,
        ring_size=_RING_SIZE,
        collections=CollectionLog(_value_of(context_var), _value_of(labels_var), max_depth),
        focus=focus,
    )


def _value_of(variable: ContextVar[Any] | None) -> Callable[[], Any | None]:
    """The value that a variable has for the calling thread."""
    return (lambda: None) if variable is None else partial(variable.get, None)
