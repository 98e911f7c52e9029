"""The native walker: reads the interpreter's frames of all threads in one hold of the GIL."""

from collections.abc import Callable
from contextvars import ContextVar
from threading import Thread
from types import CodeType
from typing import Any, Generic, TypeVar

from splunk_profiler.raw import IdleSpan, RawCollection, RawSnapshot, RawThread, ThreadChange, TickerCounters

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
        min_collection_interval_ns: int = 10_000_000,  # of two collections of one generation that are kept
        trace_filter: tuple[dict[int, Any], str] | None = None,  # trace ids as keys; key of the span in a context
        threads: dict[int, Thread] = ...,  # by ident, where `python_thread` is looked up; without it there is none
    ) -> None: ...
    def run(self, period_ns: int, focused_period_ns: int = 0) -> None:
        """Capture at absolute deadlines until `stop`; the body of a thread. Holds no GIL while it waits.

        All threads every `period_ns` (0: never). In between, after `notify_trace_added` and as long as there are traces
        in it, those threads every `focused_period_ns` that may work for one of them: whose span's trace is among them,
        or cannot be told without running Python code.
        """
    def set_periods(self, period_ns: int, focused_period_ns: int = 0) -> None:
        """Let a running ticker go on as if it ran with these; from any thread.

        The next deadline of all threads is so long after the last one; those of the focus begin anew between them.
        """
    def notify_trace_added(self) -> None:
        """A trace was added to the focus: to be called after each addition, from any thread."""
    def stop(self) -> None:
        """Make `run` and `drain` return; from any thread, and twice. A stopped ticker stays stopped."""
    def capture(self, *, is_focused: bool = False) -> None:
        """Take one snapshot now, in this thread, into the ring; counted as missed if none could be taken."""
    def drain(self, timeout_ns: int) -> list[RawSnapshot]:
        """What the ring holds, oldest first; waits up to `timeout_ns` while it is empty and `run` may still fill it."""
    def on_gc_event(self, phase: str, info: dict[str, Any], /) -> None:
        """To be one of `gc.callbacks`. Runs no Python code, so that no signal handler runs and raises in there."""
    def drain_collections(self) -> list[RawCollection]:
        """The collections that were kept, oldest first.

        Up to 256 are, the last 64 of which took 10 ms or more; then the next one stands for the others.
        """
    def counters(self) -> TickerCounters: ...

class IdleTracker:
    """Tells which threads of a snapshot have changed since the one before.

    A thread rests if it is told nothing about: it waits, has used no CPU time, and has the same stack, context
    and labels (by identity), when it was told at rest as well. Threads at rest are not told if `skip_idle`, else all
    are each time.
    """

    def __init__(self, *, skip_idle: bool) -> None: ...
    def find_changes(
        self, threads: tuple[RawThread, ...], period_ns: int, /
    ) -> tuple[list[ThreadChange], list[IdleSpan]]:
        """What is new of the threads of a snapshot, which are in the order of their keys.

        For each that has changed, in that order: it, its nice value (0 if `skip_idle`, or if it has ended), in how
        many snapshots before this one it has rested, and the sum of their periods. For each that was in the snapshot
        before and is not in this one: its key, and the same two.

        Raises:
            ValueError: they are in another order.
            TypeError: they are no threads.
        """
    def take_idle_spans(self) -> list[IdleSpan]:
        """Key, snapshots and sum of periods of each thread that has rested; the next snapshot's are told all."""

def set_after_fork_in_child(in_child: Callable[[], object] | None) -> None:
    """Have `in_child()` called in forked children, also of C code that runs no `os.register_at_fork` hook."""

def mark_profiler_thread(is_starting: bool, /) -> None:
    """The calling thread is one of the profiler's, or ends: it must not have the GIL while C code forks without it."""

def sigterm_open() -> int:
    """Begin a watch for SIGTERM in this process, and end the one before it. Its number is for `sigterm_wait`."""

def sigterm_install() -> bool:
    """Have SIGTERM wake the watch's thread where its action is the default, and not end the process. True if it does.

    Python's own table does not change. False as well without a watch, and in process 1, where the kernel ignores the
    signal.
    """

def sigterm_wait(watch_id: int, limit_ms: int, /) -> bool:
    """Wait for SIGTERM, without the GIL; False: the watch is over.

    When it has come, the process ends by it after `limit_ms` at the latest, whoever has the GIL. If the process has
    sent it itself, the main thread runs no Python code any more.
    """

def sigterm_close() -> bool:
    """End the watch and restore the default action. False if SIGTERM has come: then the process is ending."""

def sigterm_end_process() -> None:
    """End the process by the default action of SIGTERM."""
