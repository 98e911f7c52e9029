"""The processors that export, as they were before anybody stood in their way, and where to find them.

Knows the SDK's processors by what they look like and loads nothing of it. Pure, apart from what it calls of them.
"""

from __future__ import annotations

import _thread
import sys
from collections.abc import Iterator
from typing import Any

from splunk_profiler.system.threads import threads_are_greenlets

_EXPORTERS = ("span_exporter", "_span_exporter", "exporter", "_exporter")
_MAX_DEPTH = 4  # of processors within processors


class WrappedProcessor:
    """One exporting processor, with its methods as they were.

    Attributes:
        processor: the processor.
        on_end: exports a span, or queues it.
        pass_through: the same, for a span that has not waited, on the thread that ended it.
        has_queue: whether it only takes a span, and exports elsewhere.
        is_shut_down: it is being shut down; nothing is to wait for it any more.
        is_finished: it has been given the last it takes.
    """

    __slots__ = (
        "_calling_threads",
        "_export_buffer",
        "force_flush",
        "has_queue",
        "is_finished",
        "is_shut_down",
        "on_end",
        "on_start",
        "pass_through",
        "processor",
        "shutdown",
    )

    def __init__(self, processor: Any) -> None:
        self.processor = processor
        self.on_start = processor.on_start
        self.on_end = processor.on_end
        self.force_flush = processor.force_flush
        self.shutdown = processor.shutdown
        self.is_shut_down = self.is_finished = False
        self._calling_threads: set[int] = set()  # threads of the application
        self._export_buffer = getattr(processor, "_batch_processor", None)  # the SDK's, with a queue and a thread
        self.has_queue = hasattr(self._export_buffer, "_queue")
        self.pass_through = self.on_end if self.has_queue else self._pass_through

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
        """Whether the calling thread is giving it a span."""
        return _thread.get_ident() in self._calling_threads

    @property
    def accepts_any_thread(self) -> bool:
        """Whether it may be given spans on our own thread.

        Not where it would export there, and threads are greenlets: the locks that it shares with them do not work
        between real threads, and all that wait for one of them would wait for ever.
        """
        return self.has_queue or not threads_are_greenlets()

    @property
    def free_slots(self) -> int:
        """How many spans fit into its queue before it drops others; as many as one likes if nobody can tell."""
        queue = getattr(self._export_buffer, "_queue", None)
        max_length = getattr(queue, "maxlen", None)
        try:
            return (
                sys.maxsize if queue is None or max_length is None or self.is_finished else int(max_length - len(queue))
            )
        except TypeError:  # not the SDK's kind of queue
            return sys.maxsize

    def wake_exporter(self) -> None:
        """Have its thread export, if it has one: a wake-up of the SDK's may be lost, and is then made up for later."""
        wake_event = getattr(self._export_buffer, "_worker_awaken", None)
        if wake_event is not None:
            wake_event.set()


def iter_processors(processor: Any, depth: int = _MAX_DEPTH) -> Iterator[Any]:
    """The sets of processors, and the processors that export, in `processor`: itself, and what it hands spans to."""
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
        if depth > 0 and callable(getattr(other, "on_end", None)) and callable(getattr(other, "on_start", None)):
            yield from iter_processors(other, depth - 1)
