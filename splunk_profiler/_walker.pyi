"""The native walker: reads the interpreter's frames of all threads in one hold of the GIL."""

from collections.abc import Callable
from contextvars import ContextVar
from threading import Thread
from types import CodeType
from typing import Any, Generic, TypeVar

from splunk_profiler.raw import RawCollection, RawSnapshot, RawThread, ThreadChanges, TickerCounters

_Frame = TypeVar("_Frame")
_Stack = TypeVar("_Stack")

class Ticker(Generic[_Frame, _Stack]):
    def __init__(
        self,
        *,
        context_var: ContextVar[Any] | None,
        max_depth: int,
        make_frame: Callable[[CodeType, int, dict[str, Any]], _Frame],  # code, offset in bytes (f_lasti), globals
        make_stack: Callable[[tuple[_Frame, ...], bool], _Stack],
        ring_size: int,
        labels_var: ContextVar[Any] | None = None,
        min_collection_interval_ns: int = 10_000_000,  # between two kept collections of one generation
        trace_filter: tuple[dict[int, Any], str] | None = None,  # trace ids as keys; key of the span in a context
        threads: dict[int, Thread] = ...,  # by ident, for `RawThread.python_thread`; without it there is none
    ) -> None: ...
    def run(self, period_ns: int, focused_period_ns: int = 0, /) -> None:
        """Capture at absolute deadlines until `stop`; the body of a thread. Releases the GIL while it waits.

        Captures all threads every `period_ns` (0: never). Focused captures come every
        `focused_period_ns` in between, after `notify_trace_added` and while the filter has traces.
        They have every thread whose span's trace is in the filter, or cannot be found without
        running Python code.
        """
    def set_periods(self, period_ns: int, focused_period_ns: int = 0, /) -> None:
        """Change the periods of a running ticker; from any thread.

        The next deadline of all threads is one new period after the last. Focused ones start
        anew between them.
        """
    def notify_trace_added(self) -> None:
        """Announce that a trace was added to the filter; required after each addition, from any thread."""
    def stop(self) -> None:
        """Make `run` and `drain` return, for good. Idempotent; safe from any thread."""
    def capture(self, *, is_focused: bool = False) -> None:
        """Take one snapshot into the ring, on the calling thread. A failure counts as missed."""
    def drain(self, timeout_ns: int, /) -> list[RawSnapshot]:
        """Return the ring, oldest first; wait up to `timeout_ns` while it is empty and `run` may fill it."""
    def on_gc_event(self, phase: str, info: dict[str, Any], /) -> None:
        """Record a collection. Runs no Python code, so that no signal handler can raise in it."""
    def drain_collections(self) -> list[RawCollection]:
        """Return the kept collections, oldest first.

        Keeps up to 256, of which the last 64 are for collections of at least 10 ms. Beyond that,
        the next kept one stands for the others.
        """
    def counters(self) -> TickerCounters: ...

class IdleTracker:
    """A tracker of the threads that changed since the previous snapshot.

    A thread is idle if it waits, used no CPU time, and kept its stack, context and labels (by
    identity). Its last report must have been of that state. Idle threads are not reported.
    """

    def find_changes(self, threads: tuple[RawThread, ...], /) -> ThreadChanges:
        """Compare the threads of a snapshot, which are in the order of their keys, with the previous one.

        Raises:
            ValueError: the threads are in another order.
            TypeError: these are no threads.
        """
    def clear(self) -> None:
        """Have the next call report every thread."""

def set_after_fork_in_child(in_child: Callable[[], object] | None, /) -> None:
    """Have `in_child()` called in forked children, even where C code forks without Python's fork hooks."""

def mark_profiler_thread(is_starting: bool, /) -> None:
    """Mark the calling thread as one of the profiler's, or unmark it.

    Such a thread must not hold the GIL while C code forks without it.
    """

def sigterm_open() -> int:
    """Begin to listen for SIGTERM, end the previous listener, and return an id for `sigterm_wait`."""

def sigterm_install() -> bool:
    """Have SIGTERM wake the listening thread instead of ending the process. Return True if it does.

    This happens only where its action is the default; Python's own table does not change. Return
    False without a listener, and in process 1, where the kernel ignores the signal.
    """

def sigterm_wait(watch_id: int, limit_ms: int, /) -> bool:
    """Wait for SIGTERM, without the GIL; return False if the listener has ended.

    After the signal, the process ends by it within `limit_ms`, whichever thread has the GIL. If the
    process sent it itself, the main thread runs no more Python code.
    """

def sigterm_close() -> bool:
    """Stop listening and restore the default action. Return False if SIGTERM came: the process is ending."""

def sigterm_end_process() -> None:
    """End the process by the default action of SIGTERM."""

def spawn_exporter(arguments: list[bytes], environment: list[bytes], descriptor: int, /) -> None:
    """Start the program ``arguments[0]`` in a session of its own, not as a child of this process.

    Its descriptor 3 is a copy of `descriptor`; 0, 1 and 2 are ``/dev/null``, all others are closed.
    SIGINT, SIGTERM and SIGHUP are ignored, other signals have their default action. Its niceness is
    5 higher. Returns once it is executed; no Python code and no fork hook runs meanwhile.

    Raises:
        OSError: it could not be started. ECHILD: this process is process 1 or a subreaper, which would
            become its parent.
        ValueError: there is no program, or a zero byte in a string.
    """

# A socket is given by its descriptor, and the device and inode that `os.fstat` found when it was made. If the
# descriptor is another file's by now, or closed, nothing is done.

def socket_send(descriptor: int, device: int, inode: int, data: bytes | memoryview, /) -> int:
    """Write to the socket without waiting; return the number of bytes written, perhaps 0.

    Raises:
        OSError: the descriptor is no longer this socket's (EBADF), or the other side has ended.
    """

def socket_receive(descriptor: int, device: int, inode: int, target: bytearray, /) -> int:
    """Read from the socket into `target` without waiting; return the number of bytes read, perhaps 0.

    Raises:
        OSError: the descriptor is no longer this socket's (EBADF), or the other side has ended (EPIPE).
    """

def socket_shutdown(descriptor: int, device: int, inode: int, /) -> bool:
    """End writing to the socket; return False if it is no longer ours."""

def socket_close(descriptor: int, device: int, inode: int, /) -> bool:
    """Close the socket; return False if it is no longer ours."""
