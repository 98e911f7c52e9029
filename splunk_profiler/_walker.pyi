"""The native walker: reads the interpreter's frames of all threads in one hold of the GIL."""

from collections.abc import Callable, Generator, Sequence
from contextvars import ContextVar
from threading import Thread
from types import CodeType
from typing import Any, Generic, TypeVar

from splunk_profiler.raw import RawSnapshot, RawThread, RecordedEvent, TickerCounters
from splunk_profiler.stream.writer import Floors

_Frame = TypeVar("_Frame")
_Stack = TypeVar("_Stack")

STATE_READY: int  # as in `raw`, and so are the others
STATE_RUNNING: int
STATE_WANTS_GIL: int

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
        exception_interval: int = 1,  # mean number of exceptions for a kept one, 1 to 1,000,000
        skips_quiet: bool = False,  # see `RawSnapshot.quiet_count`
    ) -> None: ...
    def run(self, period_ns: int, focused_period_ns: int = 0, phase_ns: int = 0, /) -> None:
        """Capture at absolute deadlines until `stop`; the body of a thread. Releases the GIL while it waits.

        Captures all threads every `period_ns` (0: never), for the first time `phase_ns` before one is over.
        Focused captures come every `focused_period_ns` in between, after `notify_trace_added` and while the filter has
        traces. They have every thread whose span's trace is in the filter, or cannot be found without running Python
        code.
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
    def drain(self, timeout_ns: int, pause_ns: int = 0, /) -> list[RawSnapshot]:
        """Return the ring, oldest first: after `pause_ns`, and up to `timeout_ns` more while it is empty.

        `stop` and SIGTERM (`sigterm_take`) end both waits. They are one: beside busy threads, each costs a wait for the
        GIL, and threads that often release it wake the waiting one each time.
        """
    def on_gc_event(self, phase: str, info: dict[str, Any], /) -> None:
        """Record a collection. Runs no Python code, so that no signal handler can raise in it."""
    def drain_collections(self) -> list[RecordedEvent]:
        """Return the kept collections, oldest first.

        Keeps up to 256, of which the last 64 are for collections of at least 10 ms. Beyond that,
        the next kept one stands for the others.
        """
    def reads_tasks(self, loop: object, generator: Generator[Any, Any, Any], code: CodeType, offset: int, /) -> bool:
        """Return True if `loop` is found as the calling thread's running loop, and the generator suspended there.

        If not, this was built for another patch release of CPython: call neither of the next two.
        """
    def running_loops(self) -> list[tuple[Any, int]]:
        """Return the event loops of asyncio that threads run, each with its thread's `RawThread.key`; at most 64."""
    def capture_tasks(
        self, tasks: list[Any], task_type: type, limit: int, /
    ) -> tuple[list[tuple[RawThread, str | None]], int]:
        """Capture at most `limit` of the tasks that wait, evenly spread, with their names; return also how many wait.

        A task waits if it is suspended in an event loop that runs. It is captured with its own stack, context and
        labels, and the thread of the loop. A weak reference stands for its task. `task_type` is
        ``_asyncio.Task``. From CPython 3.14 on, the frames of the task that awaits it follow. Reads all tasks in one
        hold of the GIL and runs no code of the application. Keeps at most 512 frames.
        """
    def reads_locks(self, entered: object, kinds: tuple[type, type, type, CodeType], /) -> bool:
        """Return True if `entered` is found as what the innermost ``with`` of the calling frame has entered, or enters.

        Of an RLock, that the calling thread holds it, too. If not, this was built for another patch release of CPython,
        or for 3.10: call neither of the next two. `kinds` are the types of `threading`'s ``Lock()`` and ``RLock()``,
        ``Condition``, and the code of its ``wait``.
        """
    def entered_places(self) -> list[tuple[CodeType, int]]:
        """Return code and offset of the two newest frames of each other thread that may enter a ``with`` block now.

        The bytecode has to tell: `capture.lock_calls.lock_call`. At most 256.
        """
    def capture_lock_holders(
        self, places: list[tuple[CodeType, int]], kinds: tuple[type, type, type, CodeType], /
    ) -> list[tuple[RawThread, int]]:
        """Capture the threads that hold a lock for which others wait at one of the `places`, and how many of these.

        Finds the holder of a lock that is held by a ``with`` block, and of any RLock, of at most 64 locks. A lock of
        `Condition` counts as what the condition stands on. Every place must enter a block. Reads all threads in one
        hold of the GIL and runs no code of the application.
        """
    def on_raise(self, code: CodeType, offset: int, exception: BaseException, /) -> None:
        """Record a raised exception, for the event RAISE of `sys.monitoring`. Never raises, runs no Python code.

        Counts subclasses of `Exception` but `StopIteration` and `StopAsyncIteration`, each object where it is
        raised first.
        """
    def drain_exceptions(self) -> list[RecordedEvent]:
        """Return the kept exceptions, oldest first.

        Keeps up to 1,024 until the next call. Beyond that, the next kept one stands for the others. Of many a
        second, about 64 are kept.
        """
    def start_allocations(self, sample_bytes: int, tracks_live: bool = False, /) -> None:
        """Sample what the process allocates: once in `sample_bytes` on average, at exponential distances.

        The ticker need not run. Another ticker that samples ends that. With `tracks_live`, blocks that are
        in use are followed, 8,192 of them.

        Raises:
            RuntimeError: it has sampled before, or there are several interpreters, of which one may have a
                GIL of its own.
        """
    def set_sample_bytes(self, sample_bytes: int, /) -> None:
        """Change the mean distance of two samples."""
    def stop_allocations(self) -> None:
        """End `start_allocations`, for good. Idempotent."""
    def drain_allocations(self) -> tuple[list[RecordedEvent], list[int]]:
        """Return the samples, oldest first, and the `live_id` of blocks that are no longer in use.

        Keeps up to 1,024 samples. Beyond 512 the mean distance grows: each stands for more allocations.
        """
    def watch_loops(self, threshold_ns: int, current_tasks: dict[Any, Any] | None, task_type: type, /) -> None:
        """Find callbacks of event loops that take `threshold_ns` or longer, from now on; needs `reads_tasks`.

        Looks at the loops with each capture, and at least each third of the threshold, or 10 ms, while
        any runs or did within 10 s.
        `current_tasks` is ``_asyncio._current_tasks``, None from CPython 3.14 on; `task_type` is ``_asyncio.Task``.
        """
    def slow_down_looks(self, ratio: float, /) -> None:
        """Look at event loops less often by this ratio, of at least 1, than at the start."""
    def drain_loop_blocks(self) -> list[RecordedEvent]:
        """Return the blocks of `threshold_ns` and longer that have ended; one of over a second comes in parts.

        Once the ticker has stopped, those that have not ended as well. At most 128.
        """
    def counters(self) -> TickerCounters: ...

class RawThreads(Sequence[RawThread]):
    """The threads of a snapshot, each made when it is asked for."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> RawThread: ...  # type: ignore[override]  # no slices

class SnapshotWriter:
    """A writer of snapshots as `stream.records.SnapshotRecord`.

    A thread is idle if it waits, used no CPU time, and kept its stack, context and labels (by
    identity). Its last state in the stream must have been this one. Idle threads are counted, not listed.

    Asks for numbers in the stream: of a thread at first sight, and once its ``threading.Thread`` is known; of
    a stack, a context or labels where the thread has another one than before, or the number is not valid any
    more. In complete records and those of focused snapshots, all threads are listed.
    """

    def __init__(
        self,
        *,
        thread_number: Callable[[RawThread], int],
        stack_number: Callable[[Any], int],
        span_number: Callable[[Any], int],  # of a context; 0: none
        labels_number: Callable[[Any], int],  # of the labels' variable; 0: none
        reads_nice: bool = False,
    ) -> None: ...
    def write(self, snapshot: RawSnapshot, is_complete: bool, floors: Floors, /) -> tuple[bytes, list[int]]:
        """Return the record of a snapshot, and the keys of threads that have ended since the previous one.

        Numbers of threads, stacks, spans and labels below `floors` are not valid any more. After an
        error, the next snapshot is compared with the one before.

        Raises:
            TypeError: this is no snapshot of a native ticker.
        """

def set_after_fork_in_child(in_child: Callable[[], object] | None, /) -> None:
    """Have `in_child()` called in forked children, where C code forks without Python's fork hooks.

    After `os.fork` as well before CPython 3.13.
    """

def mark_profiler_thread(is_starting: bool, /) -> None:
    """Mark the calling thread as one of the profiler's, or unmark it.

    Such a thread must not hold the GIL while C code forks without it.
    """

def delay_forks(is_starting: bool, /) -> None:
    """Delay forks, at most half a second each, while the calling thread may hold locks of the application.

    A forked child would inherit such a lock without the thread that releases it. Other threads that call this wait.
    """

def prepare_fork(is_starting: bool, /) -> None:
    """Wait at most half a second for the end of a delay; no other one begins until the calling thread has forked.

    For hooks of `os.register_at_fork`: from CPython 3.13 on, it is too late to wait for another thread after these.
    False ends that, where the fork was not tried.
    """

def read_thread_stat(native_id: int, /) -> str:
    """Return the line of a thread of this process in ``/proc/self/task/ID/stat``; empty if it has ended.

    Does not release the GIL, which busy threads would keep for long.
    """

def sigterm_open(limit_ms: int, /) -> int:
    """Begin to listen for SIGTERM, end the previous listener, and return an id for `sigterm_wait`.

    After the signal, the process ends by it within `limit_ms`, whichever thread has the GIL. If the process sent it
    itself, the main thread runs no more Python code.

    Raises:
        OSError: there is no timer for that.
    """

def sigterm_install() -> bool:
    """Have SIGTERM wake the listening thread instead of ending the process. Return True if it does.

    This happens only where its action is the default; Python's own table does not change. Return
    False without a listener, and in process 1, where the kernel ignores the signal.
    """

def sigterm_wait(listener_id: int, /) -> None:
    """Wait for SIGTERM or the end of the listener, without the GIL."""

def sigterm_take() -> bool:
    """Return True once, after SIGTERM has come: the caller is to have the process end."""

def sigterm_close() -> bool:
    """Stop listening and restore the default action. Return False if SIGTERM came: the process is ending."""

def sigterm_end_process() -> None:
    """End the process by the default action of SIGTERM."""

def spawn_exporter(arguments: list[bytes], environment: list[bytes], listener: OwnedSocket, /) -> None:
    """Start the program ``arguments[0]`` in a session of its own, not as a child of this process.

    Its descriptor 3 is a copy of the socket's; 0, 1 and 2 are ``/dev/null``, all others are closed.
    SIGINT, SIGTERM and SIGHUP are ignored, other signals have their default action. Returns once it
    is executed; no Python code and no fork hook runs meanwhile.

    Raises:
        OSError: it could not be started. ECHILD: this process is process 1 or a subreaper, which would
            become its parent. EBADF: the socket is closed, or its descriptor is another file's.
        ValueError: there is no program, or a zero byte in a string.
    """

def adopts_orphans() -> bool:
    """Return True if orphans become children of this process: it is process 1 or a subreaper."""

def has_room_for_threads(count: int, /) -> bool:
    """Return True if the process can make so many more threads now, up to 64: they are made, and end.

    There has to be address space for what they allocate, too.
    """

def execution_random() -> bytes:
    """Return the 16 random bytes of the kernel that each execution of a program gets; empty if there are none.

    Forked children have the same ones. The C library makes its stack protection of them: keep them secret.
    """

def show_in_maps(text: str, /) -> None:
    """Show a text of up to 249 bytes in ``/proc/self/maps``, as a file's name, in place of the last one; not if empty.

    Raises:
        OSError: the kernel refuses, or the text is too long.
    """

class OwnedSocket:
    """A local stream socket, which no call of ours touches once its descriptor is closed or another file's.

    No call waits or releases the GIL. It is closed when it is freed, at the end of the interpreter, and
    in a child that C code forks without Python's fork hooks, once forks are handled (`set_after_fork_in_child`).

    Attributes:
        descriptor: its number; -1 once it is closed.
        peer_pid: process id of the other side of a connection, as the kernel noted it when that began to listen.
        peer_uid: user id of the other side.
    """

    descriptor: int
    peer_pid: int
    peer_uid: int

    @classmethod
    def connect(cls, name: bytes, /) -> OwnedSocket:
        """Connect to the socket of this name; the first byte of an abstract one is zero.

        Raises:
            OSError: none listens there (`ConnectionRefusedError`), or its backlog is full.
        """

    @classmethod
    def listen(cls, name: bytes, /) -> OwnedSocket:
        """Bind the name and listen.

        Raises:
            OSError: it is taken (EADDRINUSE).
        """

    def send(self, data: bytes | memoryview, /) -> int:
        """Write; return the number of bytes written, perhaps 0, at most 64 KiB.

        Raises:
            OSError: the descriptor is no longer this socket's (EBADF), or the other side has ended.
        """

    def receive(self, target: bytearray, /) -> int:
        """Read into `target`; return the number of bytes read, perhaps 0.

        Raises:
            OSError: the descriptor is no longer this socket's (EBADF), or the other side has ended (EPIPE).
        """

    def shutdown(self) -> bool:
        """End writing; return False if the socket is no longer ours."""

    def close(self) -> bool:
        """Close it; return False if it is no longer ours."""

def close_inherited_sockets() -> None:
    """Close in a forked child the `OwnedSocket`s that its parent has made."""
