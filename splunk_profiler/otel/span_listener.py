"""Hearing of spans: a span processor of ours among those of the application's provider.

Owns the way in and out. What hears runs on the application's threads: a listener must be tiny, and must not raise.
The SDK must not be loaded: a provider is there or not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from splunk_profiler.system.guard import Guard

_LOCK_TIMEOUT_S = 0.1


class SpanListener:
    """A span processor that only listens. Takes no lock when it hears, so that a fork cannot leave one locked."""

    def __init__(self) -> None:
        self._provider: Any = None
        self._attach_guard = Guard("hearing of the application's spans")

    def attach(self, provider: Any) -> None:
        """Hear of the spans of `provider` from now on, if it is one of the SDK's and not met yet; never raises."""
        if provider is not None and provider is not self._provider:
            self.detach()
            if not _can_lock(provider):
                return  # a thread of ours asks again
            self._provider = provider
            if hasattr(provider, "add_span_processor"):
                with self._attach_guard.catching():
                    provider.add_span_processor(self)

    def detach(self) -> None:
        """Hear of no spans any more."""
        provider, self._provider = self._provider, None
        processors = getattr(provider, "_active_span_processor", None)
        if processors is not None and self in getattr(processors, "_span_processors", ()):
            with self._attach_guard.catching():
                replace_processors(processors, lambda others: tuple(one for one in others if one is not self))

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        """A span that is recorded begins."""

    def on_end(self, span: Any) -> None:
        """It has ended."""

    def _on_ending(self, span: Any) -> None:
        """Nothing to do."""

    def shutdown(self) -> None:
        """Nothing to do: the profiler's end is not the provider's."""

    def force_flush(self, timeout_millis: int = 30_000) -> bool:  # noqa: ARG002  # the SDK's signature
        """There is nothing to flush."""
        return True


def replace_processors(processors: Any, others: Callable[[tuple[Any, ...]], tuple[Any, ...]]) -> None:
    """Put `others` of a provider's span processors in the place of what is there now.

    Without the provider's lock if that cannot be had: who calls may be a signal handler in the middle of its holder.
    """
    acquired = processors._lock.acquire(timeout=_LOCK_TIMEOUT_S)
    try:
        processors._span_processors = others(processors._span_processors)
    finally:
        if acquired:
            processors._lock.release()


def _can_lock(provider: Any) -> bool:
    """Return True if the lock can be had that a provider takes to add a span processor; see `replace_processors`."""
    lock = getattr(getattr(provider, "_active_span_processor", None), "_lock", None)
    if lock is None:
        return True
    acquired: bool = lock.acquire(timeout=_LOCK_TIMEOUT_S)
    if acquired:
        lock.release()
    return acquired


def is_local_root(span: Any) -> bool:
    """Whether a span of the SDK, which gives it no parent that is not valid, has none in this process."""
    parent = span.parent
    return parent is None or parent.is_remote
