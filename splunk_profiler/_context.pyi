"""Publication of each thread's trace context to host profilers, at every context switch.

All functions are cheap enough for the application's threads. A context is the value of
OpenTelemetry's `ContextVar`.
"""

from collections.abc import Callable
from contextvars import ContextVar, Token
from os import PathLike
from typing import Any, Literal, TypeAlias, final

_Tls: TypeAlias = Literal["static", "dynamic", "unknown"]  # of a library's pointer: readers follow static ones only

@final
class Identity:
    """The published form of one span, encoded once. Immutable.

    Raises:
        ValueError: an id is zero or too large, or the flags do not fit a byte.
    """

    def __init__(self, trace_id: int, span_id: int, local_root_id: int, trace_flags: int) -> None: ...
    @property
    def local_root_id(self) -> int: ...

@final
class UserLabels:
    """At most seven (key, value) pairs, encoded once. Immutable.

    Keys have 1 to 25 bytes, values up to 53. The caller sees to what else readers expect: UTF-8 without NUL
    bytes, different keys, none of the profiler's own.

    Raises:
        ValueError: there are too many pairs, or one is too long.
    """

    def __init__(self, pairs: tuple[tuple[bytes, bytes], ...]) -> None: ...

@final
class SocketReader:
    """A reader of a socket's datagrams, which keeps the kernel's short queue from overflowing.

    A thread without a Python state receives them. Memory is bounded to 256 KiB. Receiving pauses while more
    than 64 KiB or 1024 messages wait for `take`. Does nothing in a child of `fork`.

    Args:
        descriptor: descriptor of the socket; the caller closes it.

    Raises:
        OSError: the descriptor is not open.
    """

    def __init__(self, descriptor: int) -> None: ...
    def start(self) -> None:
        """Start the thread, once.

        Raises:
            OSError: the process can make no more threads.
        """
    @property
    def has_message(self) -> bool:
        """True if a message waits in the socket, or somebody has shut that down; False if it is closed."""
    @property
    def is_receiving(self) -> bool:
        """True while the thread receives."""
    @property
    def is_lost(self) -> bool:
        """True if the socket was closed, not by `stop`, and all messages before that are taken."""
    @property
    def is_stopped(self) -> bool:
        """True from `stop` on, also while that waits for the thread's end."""
    def take(self, timeout_s: float, /) -> list[bytes]:
        """Return the messages of up to 65,536 bytes that arrived since the last call, in order.

        Waits up to `timeout_s` seconds, at most an hour, for `wake`, `stop`, the loss of the socket or a
        message of any length; messages end the wait only if the thread was started.
        """
    def wake(self) -> None:
        """Make `take` return, this time or the next."""
    def stop(self) -> None:
        """End the thread and all waits, and accept no more messages: senders get an error.

        Waits up to half a second for the end of the thread.
        """
    def counts(self) -> tuple[int, int]:
        """Return how many messages were received, and how many of these were too long and discarded."""

def install(
    variable: ContextVar[Any],
    span_key: str,
    labels: ContextVar[Any],
    attribute: str,
    identify: Callable[[Any], Identity | None],
    context_type: type,
    /,
) -> list[tuple[str, str]]:
    """Install the hooks that see switches. Threads show nothing before `begin`. Replaces what was installed before.

    Args:
        variable: variable that holds the current context, a dict.
        span_key: key of the span in a context.
        labels: variable that holds the current `UserLabels`; any other value counts as none.
        attribute: attribute of a span that stores the result of `identify`.
        identify: called once for a span without that attribute; returns None for an unpublished
            one. Handles its own errors: what it raises is the application's, which gets it.
        context_type: type of contexts that never change, so that their record may be cached.

    Returns:
        Hooks that could not be installed, and for each what cannot be seen without it.
    """

def begin() -> None:
    """Publish contexts from now on, at every switch that a hook can see, and the calling thread's at once.

    Comes after everything that has to call `publish`: a thread would go on showing a context whose end is not seen.
    Does nothing without `install`.
    """

def uninstall() -> None:
    """Remove the hooks; no thread publishes anything any more. Does nothing without `install`."""

def attach(context: Any) -> Token[Any]:
    """Call `variable.set(context)`, then publish."""

def detach(token: Token[Any]) -> None:
    """Call `variable.reset(token)`, then publish."""

def publish() -> None:
    """Publish the calling thread's current context."""

def set_labels(variable: ContextVar[Any], labels: object, /) -> None:
    """Call `variable.set(labels)`, then publish; no audit comes in between."""

def known_local_root(trace_id: int, /) -> int | None:
    """Return the local root of a trace as far as it is known, for `identify`; None if it is not.

    It is the one that the thread published before the span being identified, if that was of this trace. Else it is
    the last span of the trace that `assign_identity` made its own root, or the root of the first identified one.

    Raises:
        TypeError, ValueError, OverflowError: not a trace id.
    """

def assign_identity(span: Any, parent_context: Any = None) -> None:
    """Give a local span that starts its `Identity`; its local root is its parent's, or itself.

    Has the signature of a span processor's `on_start`.
    """

def refresh() -> None:
    """Look for newly loaded modules that switch contexts in C."""

def wait_for_linker() -> None:
    """Let a forked child use the dynamic linker again: `refresh` finds no modules, and `load_…` may hang, before.

    Never returns in a child that was forked while another thread was in the linker: glibc leaves it locked there.
    """

def load_labels_library(path: str | PathLike[str], /) -> _Tls:
    """Load ``libcustomlabels.so``; threads publish through it at once (dynamic: from their next switch).

    Raises:
        ValueError: the path is not absolute.
        OSError: it cannot be loaded or is another library.
    """

def load_elastic_library(path: str | PathLike[str], storage: bytes, /) -> _Tls:
    """Load ``elastic-jvmti-linux-<arch>.so``, point it to a copy of `storage` and notify readers.

    Raises:
        ValueError: the path is not absolute.
        OSError: it cannot be loaded or is another library.
    """

def replace_storage(storage: bytes, /) -> None:
    """Point to a copy of `storage` instead, in one store. The previous copy lives until the next call.

    Raises:
        RuntimeError: the library is not loaded.
    """

def clear_storage() -> None:
    """Hide the process storage from readers."""

def keep_grpc_fork_handlers() -> bool:
    """Have gRPC register its handlers of forks here, if it calls the C library for that by a slot; return True then.

    Those that it has registered before stay with the C library.
    """

def drop_grpc_fork_handlers() -> None:
    """Do not call the kept handlers any more, for good, in forked children as well."""

def is_left_out_of_grpc_fork() -> bool:
    """Return True in a child that was forked while another thread was in the kept handlers, and in its own children.

    They were not called for it, and gRPC hangs there.
    """

def audit() -> tuple[int, int]:
    """Compare each thread's record with its context, and repair differences; return the numbers of both."""

def counters() -> dict[str, int]:
    """Return counters since the module was loaded, apart from the first, a present number.

    For tests and debuggers: that records are freed and hooks fail shows nowhere else. Nothing in the package calls it.

    - threads: threads with a record now
    - published, unchanged: switches that changed the record of a thread, and that did not
    - failed: discarded exceptions and failed allocations
    - cache_hits: of all switches, those to a context that was in the cache
    - repaired: threads that `audit` found wrong, whose switches no hook saw
    """

def reset_after_fork() -> None:
    """Forget the threads that a fork did not copy. Runs by itself in a child of `fork`; idempotent."""
