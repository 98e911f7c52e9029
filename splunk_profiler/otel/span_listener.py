"""A span processor of ours among those of the application's provider.

Listeners run on the application's threads: they must be short and must not raise. Must not load the
SDK.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from splunk_profiler.system.guard import Guard

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
        self._attach_guard = Guard("hearing of the application's spans")

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
        processors = getattr(provider, "_active_span_processor", None)
        if processors is not None and self in getattr(processors, "_span_processors", ()):
            with self._attach_guard.catching():
                replace_processors(processors, lambda others: tuple(one for one in others if one is not self))

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        """Handle the start of a recorded span."""


def replace_processors(processors: Any, others: Callable[[tuple[Any, ...]], tuple[Any, ...]]) -> None:
    """Replace a provider's tuple of span processors by `others(tuple)`.

    Proceeds without the provider's lock after a timeout: the caller may be a signal handler that
    interrupted the lock's holder.
    """
    acquired = processors._lock.acquire(timeout=_LOCK_TIMEOUT_S)
    try:
        processors._span_processors = others(processors._span_processors)
    finally:
        if acquired:
            processors._lock.release()


def _can_lock(provider: Any) -> bool:
    """Return True if the provider's lock for adding a span processor is free; see `replace_processors`."""
    lock = getattr(getattr(provider, "_active_span_processor", None), "_lock", None)
    if lock is None:
        return True
    acquired: bool = lock.acquire(timeout=_LOCK_TIMEOUT_S)
    if acquired:
        lock.release()
    return acquired


def is_local_root(span: Any) -> bool:
    """Return True if a span of the SDK has no parent in this process. The SDK drops invalid parents."""
    parent = span.parent
    return parent is None or parent.is_remote
