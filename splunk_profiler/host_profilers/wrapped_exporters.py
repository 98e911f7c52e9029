"""Span processors that export: the search for them, and their methods before the patch.

Recognises the SDK's processors by their attributes and loads nothing of it.
"""

from __future__ import annotations

import _thread
import sys
from collections.abc import Callable, Iterator
from typing import Any

from splunk_profiler.system.guard import is_interrupt
from splunk_profiler.system.threads import threads_are_greenlets

_EXPORTERS = ("span_exporter", "_span_exporter", "exporter", "_exporter")
_MAX_DEPTH = 4  # of processors within processors
_UNKNOWN_EXPORT_NS = 100_000_000  # before the first export
_MIN_EXPORT_NS = 100_000


class WrappedProcessor:
    """An exporting processor, with its original methods.

    Attributes:
        on_end: exports a span, or queues it.
        pass_through: the same, for a span that was not deferred, on the thread that ended it.
        has_queue: True if `on_end` only queues, and another thread exports.
        export_ns: how long `on_end` takes (ns); 0 with a queue.
        is_finished: True once it has been given its last span.
    """

    def __init__(self, processor: Any, monotonic_ns: Callable[[], int]) -> None:
        self.processor = processor
        self._now_ns = monotonic_ns
        self.on_start = processor.on_start
        self.on_end = self._original_on_end = processor.on_end
        self.force_flush = processor.force_flush
        self.shutdown = processor.shutdown
        self.is_shut_down = self.is_finished = False
        self._calling_threads: set[int] = set()  # idents of threads in `pass_through`
        self._export_buffer = getattr(processor, "_batch_processor", None)  # of the SDK
        self.has_queue = hasattr(self._export_buffer, "_queue")
        self.export_ns = 0
        self.pass_through = self.on_end
        if not self.has_queue:
            self.export_ns = _UNKNOWN_EXPORT_NS
            self.on_end, self.pass_through = self._export_timed, self._pass_through

    def _export_timed(self, span: Any) -> None:
        began_ns = self._now_ns()
        try:
            self._original_on_end(span)
        finally:
            # One export that takes long, such as beside busy threads, must not count as many.
            took_ns = max(self._now_ns() - began_ns, _MIN_EXPORT_NS)
            self.export_ns = min(took_ns, 2 * self.export_ns)

    def _pass_through(self, span: Any) -> None:
        own = _thread.get_ident()
        if own in self._calling_threads:
            self.on_end(span)
            return
        self._calling_threads.add(own)
        try:
            self.on_end(span)
        finally:
            self._calling_threads.discard(own)

    @property
    def is_called_by_this_thread(self) -> bool:
        """True while the calling thread is in `pass_through`."""
        return _thread.get_ident() in self._calling_threads

    @property
    def accepts_any_thread(self) -> bool:
        """True if it may get spans on the correlator thread.

        False where it would export there and threads are greenlets. Locks of greenlets do not work
        between real threads: all that wait for one would wait for ever. Those of eventlet wake no
        greenlet of another thread either, so there an exporter with a queue would sleep on.
        """
        return not threads_are_greenlets() or (self.has_queue and "eventlet" not in sys.modules)

    @property
    def free_slots(self) -> int:
        """Number of spans that fit into its queue before it drops others; `sys.maxsize` if unknown."""
        queue: Any = getattr(self._export_buffer, "_queue", None)
        max_length = getattr(queue, "maxlen", None)
        try:
            return sys.maxsize if max_length is None or self.is_finished else int(max_length - len(queue))
        except TypeError:  # a queue of another kind
            return sys.maxsize

    def wake_exporter(self) -> None:
        """Wake its exporting thread, if it has one: the SDK's own wake-up may be lost."""
        wake_event = getattr(self._export_buffer, "_worker_awaken", None)
        if wake_event is not None:
            wake_event.set()


def iter_processors(processor: Any, depth: int = _MAX_DEPTH) -> Iterator[Any]:
    """Yield sets of processors and processors that export: `processor` itself, and those that it calls."""
    inner_processors = getattr(processor, "_span_processors", None)
    if isinstance(inner_processors, (tuple, list)):
        if callable(getattr(processor, "add_span_processor", None)):
            yield processor
        inner = list(inner_processors)
    elif any(callable(getattr(getattr(processor, name, None), "export", None)) for name in _EXPORTERS):
        yield processor
        return
    else:
        inner = []
        for value in list(getattr(processor, "__dict__", {}).values()):
            inner += value if isinstance(value, (tuple, list)) else [value]
    for other in inner:
        if depth > 0 and _is_processor(other):
            yield from iter_processors(other, depth - 1)


def _is_processor(value: Any) -> bool:
    try:
        return callable(getattr(value, "on_end", None)) and callable(getattr(value, "on_start", None))
    except Exception as error:  # of the application's objects: a proxy of a request raises where there is none
        if is_interrupt(error):
            raise
        return False
