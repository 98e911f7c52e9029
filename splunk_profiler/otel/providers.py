"""Has each span identified when it starts: puts the extension's `inherit` among the span processors of a provider.

`Providers` owns what it has put where, and takes it away again. Runs on the threads of the application: at the start of
publishing, and when the first span of a provider becomes current. Must not load the SDK: a provider is there or not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from weakref import ref

from splunk_profiler.otel.span_listener import change


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


class WeakIdentitySet:
    """Objects of applications, by identity and each once; where they allow it, without keeping them."""

    def __init__(self) -> None:
        self._known: dict[int, Callable[[], Any]] = {}

    def add(self, one: Any) -> bool:
        """True if it is new."""
        key = id(one)
        before = self._known.get(key)
        if before is not None and before() is one:
            return False
        try:
            self._known[key] = ref(one, lambda _: self._known.pop(key, None))
        except TypeError:  # of a class with slots
            self._known[key] = lambda: one
        return True

    def __iter__(self) -> Iterator[Any]:
        """Those that are there still."""
        return iter([one for one in [known() for known in list(self._known.values())] if one is not None])


class Providers:
    """The sets of span processors that were met, and our place in them.

    Args:
        on_start: what is to be called for each span that starts.
    """

    def __init__(self, on_start: Callable[..., None]) -> None:
        self._ours = SpanStart(on_start)
        self._met = WeakIdentitySet()

    def meet(self, processors: Any) -> bool:
        """Take part in `processors`, a provider's set of span processors. True at the first time.

        Only in one that calls its processors one after another on the thread of the span, which is the SDK's
        default: on another thread the span's parent could not be told. Spans of others are identified one by one.
        """
        if not self._met.add(processors):
            return False
        if type(processors).__name__ == "SynchronousMultiSpanProcessor":
            # First: what a processor of the application does with the span is seen by host profilers, too.
            change(processors, lambda others: (self._ours, *others))
        return True

    def leave(self) -> None:
        """Take no part any more, anywhere."""
        met, self._met = list(self._met), WeakIdentitySet()
        for processors in met:
            if self._ours in getattr(processors, "_span_processors", ()):
                change(processors, lambda others: tuple(one for one in others if one is not self._ours))
