"""The identification of spans at their start, by a processor of ours in the application's providers.

`SpanStartInstaller` owns what it installs, and removes it again. Runs on the application's threads:
at the start of publishing, and when the first span of a provider becomes current. Must not load the
SDK.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from weakref import ref

from splunk_profiler.otel.span_listener import PassiveProcessor, replace_processors


class SpanStartProcessor(PassiveProcessor):
    """A span processor with an `on_start` in C and nothing else."""

    def __init__(self, on_start: Callable[..., None]) -> None:
        self.on_start = on_start


class WeakIdentitySet:
    """A set of the application's objects by identity, with weak references where their class allows."""

    def __init__(self) -> None:
        self._references: dict[int, Callable[[], Any]] = {}

    def add(self, item: Any) -> bool:
        """Add `item`; return True if it is new."""
        key = id(item)
        before = self._references.get(key)
        if before is not None and before() is item:
            return False
        try:
            self._references[key] = ref(item, lambda _: self._references.pop(key, None))
        except TypeError:  # a class with slots
            self._references[key] = lambda: item
        return True

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the objects that are still alive."""
        return (item for reference in list(self._references.values()) if (item := reference()) is not None)


class SpanStartInstaller:
    """The installer of one processor, which calls `on_start` for each span, in all providers seen."""

    def __init__(self, on_start: Callable[..., None]) -> None:
        self._processor = SpanStartProcessor(on_start)
        self._attached = WeakIdentitySet()

    def attach(self, processors: Any) -> bool:
        """Install in `processors`, a provider's set of span processors. Return True the first time.

        Installs only in a set that calls its processors in sequence on the span's thread, the SDK's
        default. On another thread the span's parent is not known; such spans are identified one by
        one.
        """
        if not self._attached.add(processors):
            return False
        if type(processors).__name__ == "SynchronousMultiSpanProcessor":
            # First, so that host profilers also see the span in the application's processors.
            replace_processors(processors, lambda others: (self._processor, *others))
        return True

    def detach(self) -> None:
        """Uninstall everywhere."""
        attached, self._attached = list(self._attached), WeakIdentitySet()
        for processors in attached:
            if self._processor in getattr(processors, "_span_processors", ()):
                replace_processors(
                    processors, lambda others: tuple(item for item in others if item is not self._processor)
                )
