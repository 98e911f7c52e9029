"""Identifies each span when it starts: puts the extension's `assign_identity` among the span processors of a provider.

`SpanStartInstaller` owns what it has put where, and takes it away again. Runs on the threads of the application: at the
start of publishing, and when the first span of a provider becomes current. Must not load the SDK: a provider is there
or not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from weakref import ref

from splunk_profiler.otel.span_listener import replace_processors


class SpanStartProcessor:
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
        """Nothing to do: what is published ends with `SpanStartInstaller.detach`."""

    def force_flush(self, timeout_millis: int = 30_000) -> bool:  # noqa: ARG002  # the SDK's signature
        """There is nothing to flush."""
        return True


class WeakIdentitySet:
    """Objects of applications, by identity and each once; where they allow it, without keeping them."""

    def __init__(self) -> None:
        self._references: dict[int, Callable[[], Any]] = {}

    def add(self, item: Any) -> bool:
        """True if it is new."""
        key = id(item)
        before = self._references.get(key)
        if before is not None and before() is item:
            return False
        try:
            self._references[key] = ref(item, lambda _: self._references.pop(key, None))
        except TypeError:  # of a class with slots
            self._references[key] = lambda: item
        return True

    def __iter__(self) -> Iterator[Any]:
        """Those that are there still."""
        return iter(
            [item for item in [reference() for reference in list(self._references.values())] if item is not None]
        )


class SpanStartInstaller:
    """The sets of span processors that were met, and our place in them.

    Args:
        on_start: what is to be called for each span that starts.
    """

    def __init__(self, on_start: Callable[..., None]) -> None:
        self._processor = SpanStartProcessor(on_start)
        self._attached = WeakIdentitySet()

    def attach(self, processors: Any) -> bool:
        """Take part in `processors`, a provider's set of span processors. True at the first time.

        Only in one that calls its processors one after another on the thread of the span, which is the SDK's
        default: on another thread the span's parent could not be told. Spans of others are identified one by one.
        """
        if not self._attached.add(processors):
            return False
        if type(processors).__name__ == "SynchronousMultiSpanProcessor":
            # First: what a processor of the application does with the span is seen by host profilers, too.
            replace_processors(processors, lambda others: (self._processor, *others))
        return True

    def detach(self) -> None:
        """Take no part any more, anywhere."""
        attached, self._attached = list(self._attached), WeakIdentitySet()
        for processors in attached:
            if self._processor in getattr(processors, "_span_processors", ()):
                replace_processors(
                    processors, lambda others: tuple(item for item in others if item is not self._processor)
                )
