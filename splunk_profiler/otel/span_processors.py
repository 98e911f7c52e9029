"""Span processors of ours among those of the application's provider.

`SpanListener` follows the spans of one provider. `SpanStartInstaller` identifies spans at their
start, in all providers seen, and removes what it has installed. Both run on the application's
threads: they must be short and must not raise. Must not load the SDK.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any
from weakref import ref

from splunk_profiler.system.guard import Guard
from splunk_profiler.system.threads import wait_until

_LOCK_TIMEOUT_S = 0.1


class PassiveProcessor:
    """A span processor without `on_start`, whose other methods do nothing; the base of ours."""

    def on_end(self, span: Any) -> None:
        """Do nothing."""

    def _on_ending(self, span: Any) -> None:
        """Do nothing."""

    def shutdown(self) -> None:
        """Do nothing: the provider does not end the profiler."""

    def force_flush(self, timeout_millis: int = 30_000) -> bool:  # noqa: ARG002  # the SDK's signature
        """Return True: there is nothing to flush."""
        return True


class SpanListener(PassiveProcessor):
    """A span processor that only listens. Takes no lock in its callbacks, so that a fork cannot leave one locked."""

    def __init__(self) -> None:
        self._provider: Any = None
        self._attach_guard = Guard("following the application's spans")

    def attach(self, provider: Any) -> None:
        """Listen to `provider` from now on, if it is new and one of the SDK's; never raises."""
        if provider is not None and provider is not self._provider:
            self.detach()
            if not _can_lock(provider):
                return  # a later call tries again
            self._provider = provider
            if hasattr(provider, "add_span_processor"):
                with self._attach_guard.catching():
                    provider.add_span_processor(self)

    def detach(self) -> None:
        """Stop listening."""
        provider, self._provider = self._provider, None
        with self._attach_guard.catching():
            remove_processor(getattr(provider, "_active_span_processor", None), self)


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


class SpanStartInstaller(PassiveProcessor):
    """A span processor that calls `on_start` for each span, and installs itself in all providers seen."""

    def __init__(self, on_start: Callable[..., None]) -> None:
        self.on_start = on_start
        self._attached = WeakIdentitySet()

    def attach(self, processors: Any) -> bool:
        """Install in `processors`, a provider's set of span processors. Return True the first time.

        Installs only in a set that calls its processors in sequence on the span's thread, the SDK's
        default. On another thread the span's parent is not known; such spans are identified one by one.
        """
        if not self._attached.add(processors):
            return False
        if type(processors).__name__ == "SynchronousMultiSpanProcessor":
            # First, so that host profilers also see the span in the application's processors.
            replace_processors(processors, lambda others: (self, *others))
        return True

    def detach(self) -> None:
        """Uninstall everywhere."""
        attached, self._attached = list(self._attached), WeakIdentitySet()
        for processors in attached:
            remove_processor(processors, self)


def replace_processors(processors: Any, others: Callable[[tuple[Any, ...]], tuple[Any, ...]]) -> None:
    """Replace a provider's tuple of span processors by `others(tuple)`.

    Proceeds without the provider's lock after a timeout: the caller may be a signal handler that
    interrupted the lock's holder.
    """
    with processors._lock if _becomes_free(processors._lock) else nullcontext():
        processors._span_processors = others(processors._span_processors)


def remove_processor(processors: Any, processor: PassiveProcessor) -> None:
    """Remove a span processor of ours from a provider's tuple, if it is there."""
    if processor in getattr(processors, "_span_processors", ()):
        replace_processors(processors, lambda others: tuple(other for other in others if other is not processor))


def _can_lock(provider: Any) -> bool:
    """Return True if the provider's lock for adding a span processor is free; see `replace_processors`."""
    lock = getattr(getattr(provider, "_active_span_processor", None), "_lock", None)
    return lock is None or _becomes_free(lock)


def _becomes_free(lock: Any) -> bool:
    """Return True if `lock` is free in time. A handler that raises after `acquire(timeout)` would keep it acquired."""
    return wait_until(lambda: not lock.locked(), _LOCK_TIMEOUT_S)


def is_local_root(span: Any) -> bool:
    """Return True if a span of the SDK has no parent in this process. The SDK drops invalid parents."""
    parent = span.parent
    return parent is None or parent.is_remote
