"""Snapshots as records of a stream, with the threads that have changed since the previous one.

Most threads of a service are idle and would be written again and again as they were. Runs on the sampler
thread; imports `raw`, `stream` and `system` only.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from splunk_profiler.raw import RawSnapshot, RawThread
from splunk_profiler.stream.codec import encode
from splunk_profiler.stream.records import CHANGES, COMPLETE, FOCUSED, SnapshotRecord, ThreadEntry
from splunk_profiler.stream.writer import Floors
from splunk_profiler.system.gil import yield_gil

if TYPE_CHECKING:
    from splunk_profiler import _walker

SnapshotWriter: TypeAlias = "_walker.SnapshotWriter | PortableSnapshotWriter"  # same methods

_YIELD_EVERY = 64  # threads between two offers of the GIL


class _WrittenThread(NamedTuple):
    """The last state of a thread in the stream; `cpu_ns` is the last that could be read."""

    raw: RawThread
    cpu_ns: int
    is_idle: bool
    number: int


class PortableSnapshotWriter:
    """`SnapshotWriter` in Python."""

    def __init__(
        self,
        *,
        thread_number: Callable[[RawThread], int],
        stack_number: Callable[[Any], int],
        span_number: Callable[[Any], int],
        labels_number: Callable[[Any], int],
        reads_nice: bool = False,
    ) -> None:
        self._thread_number = thread_number
        self._stack_number = stack_number
        self._span_number = span_number
        self._labels_number = labels_number
        self._reads_nice = reads_nice
        self._previous: dict[int, _WrittenThread] = {}

    def write(self, snapshot: RawSnapshot, is_complete: bool, _floors: Floors, /) -> tuple[bytes, list[int]]:
        """Return the record of a snapshot, and the keys of threads that have ended since the previous one."""
        lists_all = is_complete or snapshot.is_focused
        now: dict[int, _WrittenThread] = {}
        entries = []
        for raw in snapshot.threads:
            before = self._previous.get(raw.key)
            is_idle = before is not None and raw.cpu_ns <= before.cpu_ns and not raw.state
            if before is not None and is_idle and before.is_idle and not lists_all and _is_same(raw, before.raw):
                number = before.number
            else:
                entries.append(self._entry(raw))
                number = entries[-1].thread
                if len(entries) % _YIELD_EVERY == 0:
                    yield_gil()
            cpu_ns = raw.cpu_ns or (0 if before is None else before.cpu_ns)
            now[raw.key] = _WrittenThread(raw, cpu_ns, is_idle, number)
        ended = [] if snapshot.is_focused else sorted(self._previous.keys() - now)
        record = SnapshotRecord(
            snapshot.time_ns,
            snapshot.instant_ns,
            max(snapshot.latency_ns, 0),
            snapshot.period_ns,
            snapshot.since_previous_ns,
            snapshot.process_cpu_ns,
            max(snapshot.gil_wait_ns, 0),
            FOCUSED if snapshot.is_focused else COMPLETE if is_complete else CHANGES,
            len(now) - len(entries),
            entries,
            [self._previous[key].number for key in ended],
        )
        encoded = encode(record)
        if not snapshot.is_focused:
            self._previous = now
        return encoded, ended

    def _entry(self, raw: RawThread) -> ThreadEntry:
        return ThreadEntry(
            self._thread_number(raw),
            self._stack_number(raw.stack),
            0 if raw.context is None else self._span_number(raw.context),
            0 if raw.labels is None else self._labels_number(raw.labels),
            raw.cpu_ns,
            -1 if raw.state is None else raw.state,
            read_nice_value(raw.native_id) if self._reads_nice else 0,
        )


def writer_type(*, native: bool) -> type[SnapshotWriter]:
    """Return the type of the writer for snapshots of the native or the portable walker."""
    if not native:
        return PortableSnapshotWriter
    from splunk_profiler import _walker  # noqa: PLC0415  # exists on some systems only

    return _walker.SnapshotWriter


def read_nice_value(native_id: int) -> int:
    """Return the nice value of a thread of this process; 0 if it has ended or cannot be read."""
    if native_id <= 0 or not sys.platform.startswith("linux"):
        return 0
    try:
        return os.getpriority(os.PRIO_PROCESS, native_id)
    except (OSError, OverflowError):
        return 0


def _is_same(raw: RawThread, before: RawThread) -> bool:
    return raw.stack is before.stack and raw.context is before.context and raw.labels is before.labels
