"""Has each span identified when it starts: puts the extension's `inherit` among the span processors of a provider.

`Providers` owns what it has put where, and takes it away again. Runs on the threads of the application: at the start of
publishing, and when the first span of a provider becomes current. Must not load the SDK: a provider is there or not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakSet


class SpanStart:
    """A span processor of which only `on_start` does anything, in C.

    Args:
        on_start: takes the span and ``parent_context``.
    """

    def __init__(self, on_start: Callable[..., None]) -> None:
        self.on_start = on_start

    def _on_ending(self, span: object) -> None:
        """Nothing to do."""

    def on_end(self, span: object) -> None:
        """Nothing to do."""

    def shutdown(self) -> None:
        """Nothing to do: what is published ends with `Providers.leave`."""

    def force_flush(self, timeout_millis: int = 30_000) -> bool:  # noqa: ARG002  # the SDK's signature
        """There is nothing to flush."""
        return True


class Providers:
    """The sets of span processors that were met, and our place in them.

    Args:
        on_start: what is to be called for each span that starts.
    """

    def __init__(self, on_start: Callable[..., None]) -> None:
        self._ours = SpanStart(on_start)
        self._met: WeakSet[Any] = WeakSet()

    def meet(self, processors: Any) -> bool:
        """Take part in `processors`, a provider's set of span processors. True at the first time.

        Only in one that calls its processors one after another on the thread of the span, which is the SDK's
        default: on another thread the span's parent could not be told. Spans of others are identified one by one.
        """
        if processors in self._met:
            return False
        self._met.add(processors)
        if type(processors).__name__ == "SynchronousMultiSpanProcessor":
            with processors._lock:
                # First: what a processor of the application does with the span is seen by host profilers, too.
                processors._span_processors = (self._ours, *processors._span_processors)
        return True

    def leave(self) -> None:
        """Take no part any more, anywhere."""
        met, self._met = list(self._met), WeakSet()
        for processors in met:
            if self._ours in getattr(processors, "_span_processors", ()):
                with processors._lock:
                    others = tuple(one for one in processors._span_processors if one is not self._ours)
                    processors._span_processors = others
