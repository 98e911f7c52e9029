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
_DEPTH = 4  # of processors within processors


class Exporting:
    """One exporting processor, with its methods as they were.

    Attributes:
        processor: the processor.
        on_end: exports a span, or queues it.
        pass_through: the same, for a span that has not waited, on the thread that ended it.
        has_queue: whether it only takes a span, and exports elsewhere.
        shut: it is being shut down; nothing is to wait for it any more.
        gone: it has been given the last it takes.
    """

    __slots__ = (
        "_batch",
        "_inside",
        "force_flush",
        "gone",
        "has_queue",
        "on_end",
        "on_start",
        "pass_through",
        "processor",
        "shut",
        "shutdown",
    )

    def __init__(self, processor: Any) -> None:
        self.processor = processor
        self.on_start = processor.on_start
        self.on_end = processor.on_end
        self.force_flush = processor.force_flush
        self.shutdown = processor.shutdown
        self.shut = self.gone = False
        self._inside: set[int] = set()  # threads of the application
        self._batch = getattr(processor, "_batch_processor", None)  # the SDK's, with a queue and a thread
        self.has_queue = hasattr(self._batch, "_queue")
        self.pass_through = self.on_end if self.has_queue else self._pass_through

    def _pass_through(self, span: Any) -> None:
        own = _thread.get_ident()
        if own in self._inside:
            self.on_end(span)
            return
        self._inside.add(own)
        try:
            self.on_end(span)
        finally:
            self._inside.discard(own)

    @property
    def is_inside(self) -> bool:
        """Whether the calling thread is giving it a span."""
        return _thread.get_ident() in self._inside

    @property
    def takes_spans_anywhere(self) -> bool:
        """Whether it may be given spans on our own thread.

        Not where it would export there, and threads are greenlets: the locks that it shares with them do not work
        between real threads, and all that wait for one of them would wait for ever.
        """
        return self.has_queue or not threads_are_greenlets()

    @property
    def room(self) -> int:
        """How many spans fit into its queue before it drops others; as many as one likes if nobody can tell."""
        queue = getattr(self._batch, "_queue", None)
        most = getattr(queue, "maxlen", None)
        try:
            return sys.maxsize if queue is None or most is None or self.gone else int(most - len(queue))
        except TypeError:  # not the SDK's kind of queue
            return sys.maxsize

    def hurry(self) -> None:
        """Have its thread export, if it has one: a wake-up of the SDK's may be lost, and is then made up for later."""
        awaken = getattr(self._batch, "_worker_awaken", None)
        if awaken is not None:
            awaken.set()


def within(processor: Any, depth: int = _DEPTH) -> Iterator[Any]:
    """The sets of processors, and the processors that export, in `processor`: itself, and what it hands spans to."""
    several = getattr(processor, "_span_processors", None)
    if isinstance(several, (tuple, list)):
        if callable(getattr(processor, "add_span_processor", None)):
            yield processor
        inner = list(several)
    elif any(callable(getattr(getattr(processor, name, None), "export", None)) for name in _EXPORTERS):
        yield processor
        return
    else:
        inner = []
        for value in list(getattr(processor, "__dict__", {}).values()):
            inner += value if isinstance(value, (tuple, list)) else [value]
    for other in inner:
        if depth > 0 and callable(getattr(other, "on_end", None)) and callable(getattr(other, "on_start", None)):
            yield from within(other, depth - 1)
