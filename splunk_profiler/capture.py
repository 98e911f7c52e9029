"""The snapshot: chooses a walker and turns what it saw into samples with names, states, CPU times and ages.

`Capture` runs on the sampling worker's thread only. Imports neither configuration nor OpenTelemetry: how a
context becomes a span is a callable that it is given.

Specification: Splunk profiling conventions, "Call Stack Sampling" and "Call Stack Filtering".
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from splunk_profiler.accounts import Accounts, Birth
from splunk_profiler.filtering import has_internal_name, is_internal, waiting_on
from splunk_profiler.focus import Focus
from splunk_profiler.model import (
    Event,
    Frame,
    Remainder,
    Sample,
    Snapshot,
    SpanRef,
    Stack,
    Thread,
    ThreadSample,
    Unseen,
)
from splunk_profiler.naming import FrameNamer
from splunk_profiler.portable import PortableTicker
from splunk_profiler.portable_collections import CollectionLog
from splunk_profiler.threads import cpu_time_ns, let_others_run

Associate = Callable[[Any], SpanRef | None]
Clocks = Callable[[Sequence[int]], Sequence[tuple[int, int]]]
Labels = tuple[tuple[str, str], ...]
_INTERNAL = Stack((Frame("[process]", Unseen.INTERNAL.value, "unknown", None),), truncated=False)
_RING_SIZE = 64
_SLICE = 64  # threads between two offers of the GIL
_MOST_LIVES = 16_384


class RawThread(Protocol):
    """What a walker says of one thread; see ``_walker.pyi``."""

    @property
    def key(self) -> int: ...
    @property
    def ident(self) -> int: ...
    @property
    def native_id(self) -> int: ...
    @property
    def stack(self) -> Stack: ...
    @property
    def context(self) -> Any | None: ...
    @property
    def labels(self) -> Any | None: ...


class RawCollection(Protocol):
    """What a walker says of a collection of garbage; see ``_walker.pyi``."""

    @property
    def time_ns(self) -> int: ...
    @property
    def thread(self) -> RawThread: ...
    @property
    def generation(self) -> int: ...
    @property
    def stands_for(self) -> int: ...
    @property
    def duration_ns(self) -> int: ...


@dataclass(frozen=True, slots=True)
class RawEvent:
    """An event as its source (`events`) has noticed it.

    Attributes:
        time_ns: when, nanoseconds since the epoch.
        thread: on which thread, with its stack, context and labels at that moment.
        event: what.
    """

    time_ns: int
    thread: RawThread
    event: Event


class RawSnapshot(Protocol):
    """What a walker says of all threads; see ``_walker.pyi``."""

    @property
    def time_ns(self) -> int: ...
    @property
    def period_ns(self) -> int: ...
    @property
    def threads(self) -> Sequence[RawThread]: ...
    @property
    def focused(self) -> bool: ...
    @property
    def since_ns(self) -> int: ...


class Counters(Protocol):
    """What a ticker has done since it was made; see ``_walker.pyi``."""

    @property
    def due(self) -> int: ...
    @property
    def captured(self) -> int: ...
    @property
    def by_pending_call(self) -> int: ...
    @property
    def missed(self) -> int: ...
    @property
    def overwritten(self) -> int: ...
    @property
    def late_ns_max(self) -> int: ...
    @property
    def late_ns_sum(self) -> int: ...
    @property
    def held_ns_sum(self) -> int: ...


class Ticker(Protocol):
    """The contract of both walkers; see ``_walker.pyi``."""

    def run(self, period_ns: int, focused_period_ns: int = 0) -> None: ...
    def pace(self, period_ns: int, focused_period_ns: int = 0) -> None: ...
    def focus(self) -> None: ...
    def stop(self) -> None: ...
    def capture(self, *, focused: bool = False) -> None: ...
    def drain(self, timeout_ns: int) -> Sequence[RawSnapshot]: ...
    @property
    def note_collection(self) -> Callable[[str, dict[str, Any]], None]: ...
    def drain_collections(self) -> Sequence[RawCollection]: ...
    def counters(self) -> Counters: ...


@dataclass(frozen=True, slots=True)
class Choice:
    """Which walker serves and why: ``native`` or ``portable``, and a sentence for the log."""

    name: str
    reason: str


def choose_walker(wanted: str = "auto") -> Choice:
    """The walker for this interpreter; `wanted` is ``auto``, ``native`` or ``portable``. Never raises."""
    if wanted == "portable":
        return Choice("portable", "it was asked for")
    if not sys.platform.startswith("linux"):
        return Choice("portable", f"the native walker runs on Linux, this is {sys.platform}")
    try:
        import splunk_profiler._walker  # noqa: F401, PLC0415  # the choice is whether it can be imported
    except ImportError as error:
        version = f"{sys.implementation.name} {sys.version_info.major}.{sys.version_info.minor}"
        return Choice("portable", f"the native walker is not there for {version} ({error})")
    return Choice("native", f"it was built for CPython {sys.version_info.major}.{sys.version_info.minor}")


def _no_labels(_ident: int) -> None:
    """No thread has any."""


def make_ticker(
    choice: Choice,
    context_var: ContextVar[Any] | None,
    context_of: Callable[[int], Any | None],
    max_depth: int,
    *,
    labels_var: ContextVar[Any] | None = None,
    labels_of: Callable[[int], Any | None] = _no_labels,
    focus: Focus | None = None,
) -> Ticker:
    """A ticker of the chosen kind.

    Args:
        choice: of `choose_walker`.
        context_var: holds the OpenTelemetry context; read by the native walker.
        context_of: thread ident → context; asked by the portable walker.
        max_depth: frames kept of a stack, from the leaf.
        labels_var: holds the user's labels; None: they are not wanted.
        labels_of: thread ident → labels; asked by the portable walker.
        focus: the traces whose threads are looked at more often.
    """
    namer = FrameNamer()
    if choice.name == "native":
        from splunk_profiler import _walker  # noqa: PLC0415  # not there on every system

        native: Ticker = _walker.Ticker(
            context_var=context_var,
            labels_var=labels_var,
            max_depth=max_depth,
            make_frame=namer.frame,
            make_stack=Stack,
            ring_size=_RING_SIZE,
            focus=None if focus is None else (focus.traces, focus.span_key),
        )
        return native
    return PortableTicker(
        context_of=context_of,
        labels_of=labels_of,
        max_depth=max_depth,
        make_frame=namer.frame,
        make_stack=Stack,
        ring_size=_RING_SIZE,
        collections=CollectionLog(_value_of(context_var), _value_of(labels_var), max_depth),
        focus=focus,
    )


def _value_of(variable: ContextVar[Any] | None) -> Callable[[], Any | None]:
    """The value that a variable has for the calling thread."""
    return (lambda: None) if variable is None else partial(variable.get, None)


def portable_clocks(native_ids: Sequence[int]) -> list[tuple[int, int]]:
    """(CPU time in ns, nice value) of each thread of this process, (0, 0) for one that has ended."""
    return [_clock(native_id) for native_id in native_ids]


def _clock(native_id: int) -> tuple[int, int]:
    if native_id <= 0 or not sys.platform.startswith("linux"):
        return 0, 0
    try:
        return cpu_time_ns(native_id), os.getpriority(os.PRIO_PROCESS, native_id)
    except OSError:
        return 0, 0


def thread_clocks(choice: Choice) -> Clocks:
    """The function that reads CPU times and priorities; the native one lets others run meanwhile."""
    if choice.name == "native":
        from splunk_profiler import _walker  # noqa: PLC0415  # not there on every system

        return _walker.thread_clocks
    return portable_clocks


@dataclass(slots=True)
class Life:
    """What is remembered of a thread from one snapshot to the next; `cpu_ns` as of the last one of all threads."""

    thread: Thread
    birth: Birth | None  # on the boot-time clock; None if not known
    cpu_ns: int


class Capture:
    """Raw snapshots → `Snapshot`s.

    Args:
        associate: OpenTelemetry context → the span that is active in it, or None.
        clocks: native ids → (CPU ns, nice value) each.
        period_ns: distance between two snapshots, where a raw one does not say its own.
        include_internal: also keep the profiler's, the SDK's and gRPC's threads.
        labels_of: what the walker found in the variable of the user's labels → what a sample carries of it.
    """

    def __init__(
        self,
        associate: Associate,
        clocks: Clocks,
        period_ns: int,
        *,
        include_internal: bool = False,
        labels_of: Callable[[Any], Labels] = lambda _: (),
    ) -> None:
        self._associate = associate
        self._labels_of = labels_of
        self._clocks = clocks
        self._period_ns = period_ns
        self._include_internal = include_internal
        self._accounts = Accounts()
        self._lives: dict[int, Life] = {}
        self._lives_before: dict[int, Life] = {}  # of the snapshot before: events are older than the last one
        self._next_index = 1

    def prime(self, raw: RawSnapshot) -> None:
        """Remember the threads of `raw` and the CPU they have used, so that the next snapshot can tell who ran."""
        self.snapshot(raw)

    def snapshot(self, raw: RawSnapshot) -> Snapshot:
        """`raw` with all that is known about its threads. Threads are ordered by the age of their thread state."""
        names = _names()
        lives = {seen.key: self._life(seen, names) for seen in raw.threads}
        self._lives_before, self._lives = self._lives, lives
        period_ns = raw.period_ns or self._period_ns
        accounts = self._accounts
        accounts.begin(_captured_at_ns(raw.time_ns))
        clocks = self._clocks([life.thread.native_id for life in lives.values()])
        now = boottime_ns()
        samples = []
        for number, (seen, life, clock) in enumerate(zip(raw.threads, lives.values(), clocks, strict=True), 1):
            if number % _SLICE == 0:
                let_others_run()
            cpu_ns, os_priority = clock
            running = cpu_ns > life.cpu_ns
            life.cpu_ns = cpu_ns or life.cpu_ns
            stack = seen.stack
            why_not = Unseen.UNSAMPLED if not stack.frames else None
            if why_not is None and not self._include_internal and is_left_out(stack, life.thread.name):
                why_not = Unseen.INTERNAL
            spent = accounts.settle(life.thread.native_id or -life.thread.index, life.birth, cpu_ns, why_not)
            if why_not is not None:
                continue
            elapsed_ns = max(now - life.birth.earliest_ns, 1) if life.birth is not None else 0
            wait = "" if running else stack.derive(waiting_on)
            sample = ThreadSample(
                life.thread, stack, life.cpu_ns, elapsed_ns, os_priority, running, wait, spent.wall_ns, spent.cpu_ns
            )
            span = None if seen.context is None else self._associate(seen.context)
            labels = () if seen.labels is None else self._labels_of(seen.labels)
            samples.append(Sample(raw.time_ns, period_ns, sample, span, labels))
        return Snapshot(raw.time_ns, period_ns, tuple(samples), accounts.end())

    def lives(self, threads: Sequence[RawThread]) -> list[Life]:
        """What is known of some threads, between two snapshots of all."""
        if len(self._lives) > _MOST_LIVES:
            self._lives.clear()  # there are no snapshots of all, which would do it
        names = _names()
        for seen in threads:
            self._lives[seen.key] = self._life(seen, names)
        return [self._lives[seen.key] for seen in threads]

    def event_samples(self, events: Sequence[RawEvent]) -> list[Sample]:
        """A sample for each event; of one on an internal thread, in place of its stack that it was there."""
        names = _names()
        samples = []
        for happened in events:
            seen = happened.thread
            life = self._lives_before.get(seen.key)
            if seen.key in self._lives or life is None:
                life = self._lives[seen.key] = self._life(seen, names)
            stack, span = seen.stack, None
            labels: Labels = ()
            if not self._include_internal and (not stack.frames or is_left_out(stack, life.thread.name)):
                stack = _INTERNAL
            else:
                span = None if seen.context is None else self._associate(seen.context)
                labels = () if seen.labels is None else self._labels_of(seen.labels)
            sample = ThreadSample(life.thread, stack, life.cpu_ns, 0, 0, running=True, waiting_on="")
            samples.append(Sample(happened.time_ns, self._period_ns, sample, span, labels, happened.event))
        return samples

    def remainders(self) -> tuple[Remainder, ...]:
        """What the process has used since the last snapshot; there must be none after this."""
        return self._accounts.close(boottime_ns())

    def _life(self, seen: RawThread, names: dict[int, threading.Thread]) -> Life:
        known = names.get(seen.ident)
        life = self._lives.get(seen.key)
        if life is not None:
            if known is not None and (name := _name_of(known)) != life.thread.name and name:
                life.thread = Thread(life.thread.index, name, seen.ident, life.thread.native_id)
            return life
        native_id = seen.native_id or (known.native_id if known is not None else 0) or 0
        name = (_name_of(known) if known is not None else "") or _name_by_system(native_id) or f"Thread-{seen.ident:#x}"
        thread = Thread(self._next_index, name, seen.ident, native_id)
        self._next_index += 1
        return Life(thread, _birth(native_id), 0)


def is_left_out(stack: Stack, name: str) -> bool:
    """Whether a thread is the profiler's, the SDK's or gRPC's."""
    return stack.derive(is_internal) or (stack.truncated and has_internal_name(name))


def _names() -> dict[int, threading.Thread]:
    # `threading.enumerate` takes a lock that a thread of the application may hold; copying a dict is atomic.
    active: dict[int, threading.Thread] = vars(threading)["_active"]
    return active.copy()


def _name_of(thread: threading.Thread) -> str:
    """The thread's name, read past any property that a subclass of the application may have put before it."""
    name = vars(thread).get("_name")
    return name if type(name) is str else ""


def _name_by_system(native_id: int) -> str:
    """The operating system's name of a thread that `threading` does not know, unless it is only the process's."""
    if native_id <= 0:
        return ""
    if native_id == os.getpid():
        return "MainThread"
    names = [_read(f"/proc/self/task/{task}/comm").strip() for task in (native_id, os.getpid())]
    return names[0] if names[0] != names[1] else ""


def _birth(native_id: int) -> Birth | None:
    """When the thread was started, on the boot-time clock (resolution: one clock tick, 10 ms)."""
    fields = _read(f"/proc/self/task/{native_id}/stat").rpartition(")")[2].split() if native_id > 0 else []
    if len(fields) < 20:
        return None
    tick_ns = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    return Birth(int(fields[19]) * tick_ns, (int(fields[19]) + 1) * tick_ns)


def _captured_at_ns(time_ns: int) -> int:
    """A moment that the time of day says, on the boot-time clock; never one to come, whatever is done to the former."""
    return boottime_ns() - max(time.time_ns() - time_ns, 0)


def boottime_ns() -> int:
    """Now, on the clock of `Life.birth`."""
    return time.clock_gettime_ns(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def _read(path: str) -> str:
    try:
        return Path(path).read_text("utf-8", "replace")
    except OSError:
        return ""
