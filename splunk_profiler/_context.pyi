"""Publishes each thread's trace context where host profilers read it, at every switch of context.

All functions are cheap enough for the application's threads. A context is what OpenTelemetry's `ContextVar` holds.
"""

from collections.abc import Callable
from contextvars import ContextVar, Token
from os import PathLike
from typing import Any, Literal, NamedTuple, final

@final
class Identity:
    """What is published of one span, encoded once. Immutable.

    Raises:
        ValueError: an id that is zero or too large, or flags that do not fit a byte.
    """

    def __init__(self, trace_id: int, span_id: int, local_root_id: int, trace_flags: int) -> None: ...
    @property
    def trace_id(self) -> int: ...
    @property
    def span_id(self) -> int: ...
    @property
    def local_root_id(self) -> int: ...
    @property
    def trace_flags(self) -> int: ...

@final
class UserLabels:
    """At most seven (key, value) pairs in UTF-8, keys of 1 to 25 bytes, values of up to 53, encoded once. Immutable.

    Raises:
        ValueError: beyond these limits; a key that is there twice or is one of the profiler's own; a NUL byte.
    """

    def __init__(self, pairs: tuple[tuple[bytes, bytes], ...]) -> None: ...
    @property
    def pairs(self) -> tuple[tuple[bytes, bytes], ...]: ...

class Library(NamedTuple):
    """A library that is loaded. Readers can follow its thread-local pointer only if `tls` is ``static``."""

    path: str
    tls: Literal["static", "dynamic", "unknown"]

class SwitchCounters(NamedTuple):
    """Since the module was loaded, apart from `threads`."""

    published: int  # switches after which a thread showed something else
    unchanged: int  # switches after which it showed the same
    cache_hits: int  # of these two: switches to a context that was known from before
    repaired: int  # threads that `audit` found wrong: switches that no hook saw
    threads: int  # that have memory of their own now
    failed: int  # exceptions that were swallowed, memory that was not to be had

@final
class SocketReader:
    """Gathers the datagrams of a socket, so that the kernel's short queue does not overflow while Python is busy.

    Memory is bounded, by 128 KiB: while more than 64 KiB of messages or 1024 of them wait for `take`, nothing is read.
    In a child of `fork` it does nothing.

    Args:
        descriptor: of the socket; stays the caller's.

    Raises:
        OSError: the descriptor is not open.
    """

    def __init__(self, descriptor: int) -> None: ...
    def run(self) -> bool:
        """Read until `stop`, without the GIL; for a thread of its own. False if the socket was closed before that.

        Raises:
            RuntimeError: another thread does so.
        """
    def take(self, timeout_s: float, /) -> list[bytes]:
        """The messages of up to 65,536 bytes that have arrived since the last time, in their order.

        Waits up to `timeout_s` seconds (an hour at most) for one, be it too long, for `wake` or for `stop`.
        """
    def wake(self) -> None:
        """Have `take` return, this time or next time."""
    def stop(self) -> None:
        """End `run` and `take`, and take no more messages: senders are told."""
    def counts(self) -> tuple[int, int]:
        """(messages received, messages too long and discarded)."""

def install(
    variable: ContextVar[Any],
    span_key: str,
    labels: ContextVar[Any],
    attribute: str,
    identify: Callable[[Any], Identity | None],
    context_type: type,
) -> list[tuple[str, str]]:
    """Publish contexts from now on, at every switch that can be seen. What was installed before is replaced.

    Args:
        variable: holds the current context, a dict.
        span_key: under which a context has its span.
        labels: holds the current `UserLabels`; anything else in it counts as none.
        attribute: under which a span keeps what `identify` said of it.
        identify: called once for a span that has no such attribute; None for one that is not published.
        context_type: a context of exactly this type never changes, so that what it shows may be remembered.

    Returns:
        (hook, what cannot be seen without it) for hooks that could not be installed.
    """

def uninstall() -> None:
    """Take the hooks out; no thread shows anything any more. Without `install` nothing happens."""

def attach(context: Any) -> Token[Any]:
    """`variable.set(context)`, then publish."""

def detach(token: Token[Any]) -> None:
    """`variable.reset(token)`, then publish."""

def trace_greenlets() -> bool:
    """Publish at greenlet switches of the calling thread; False if greenlet is not loaded or nothing is installed."""

def publish() -> None:
    """Publish the calling thread's context as it is now."""

def set_labels(variable: ContextVar[Any], labels: object, /) -> None:
    """`variable.set(labels)`, then publish; no audit comes in between."""

def previous_local_root(trace_id: int, /) -> int | None:
    """For `identify`: the local root that the thread showed when its span was met, if that was of this trace.

    Raises:
        TypeError, ValueError, OverflowError: that is no trace id.
    """

def assign_identity(span: Any, parent_context: Any = None) -> None:
    """Give a local span that starts its `Identity`: its local root is its parent's, or itself.

    Made to be a span processor's `on_start`.
    """

def refresh() -> None:
    """Look for modules loaded since that switch contexts in C."""

def load_labels_library(path: str | PathLike[str]) -> Library:
    """Load ``libcustomlabels.so``; threads publish through it at once (dynamic: from their next switch on).

    Raises:
        ValueError: the path is not absolute.
        OSError: it cannot be loaded or is another library.
    """

def load_elastic_library(path: str | PathLike[str], storage: bytes) -> Library:
    """Load ``elastic-jvmti-linux-<arch>.so``, point it to a copy of `storage` and make readers look.

    Raises:
        ValueError: the path is not absolute.
        OSError: it cannot be loaded or is another library.
    """

def replace_storage(storage: bytes, /) -> None:
    """Point to a copy of `storage` instead, in one store. What was there before is kept until the next time.

    Raises:
        RuntimeError: the library is not loaded.
    """

def clear_storage() -> None:
    """Readers find no process storage any more."""

def audit() -> tuple[int, int]:
    """Compare what the threads show with their contexts at this instant, repair what differs: (compared, repaired)."""

def counters() -> SwitchCounters: ...
def reset_after_fork() -> None:
    """Forget the threads that did not come along. Happens by itself in a child of `fork`; again it does nothing."""
