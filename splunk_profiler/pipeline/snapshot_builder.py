"""The snapshot: turns what a walker saw into samples with names, states, CPU times and ages.

`SnapshotBuilder` runs on the sampling worker's thread only. Imports neither configuration nor OpenTelemetry: how a
context becomes a span is a callable that it is given.

Specification: Splunk profiling conventions, "Call Stack Sampling" and "Call Stack Filtering".
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from splunk_profiler.model import (
    Frame,
    IdleRepeat,
    Sample,
    Snapshot,
    SpanRef,
    Stack,
    ThreadSample,
    UnattributedReason,
    UnattributedTime,
)
from splunk_profiler.pipeline.idle_threads import IdleTracker
from splunk_profiler.pipeline.stack_filters import has_internal_name, is_internal, waiting_on
from splunk_profiler.pipeline.thread_registry import ThreadInfo, boottime_ns, make_thread_info
from splunk_profiler.pipeline.thread_times import ThreadTimeDelta, ThreadTimes
from splunk_profiler.raw import STATE_RUNNING, IdleSpan, RawEvent, RawSnapshot, RawThread
from splunk_profiler.system.threads import yield_gil

SpanResolver = Callable[[Any], SpanRef | None]
Labels = tuple[tuple[str, str], ...]
_INTERNAL_STACK = Stack((Frame("[process]", UnattributedReason.INTERNAL.value, "unknown", None),), truncated=False)
_YIELD_EVERY = 64  # threads between two offers of the GIL
_MAX_TRANSIENT_THREADS = 16_384


class SnapshotBuilder:
    """Raw snapshots → `Snapshot`s.

    Args:
        resolve_span: OpenTelemetry context → the span that is active in it, or None.
        idle_tracker: tells which threads have changed; those that rest are in `Snapshot.idle_repeats`.
        period_ns: distance between two snapshots, where a raw one does not say its own.
        include_internal: also keep the profiler's, the SDK's and gRPC's threads.
        labels_of: what the walker found in the variable of the user's labels → what a sample carries of it.
    """

    def __init__(
        self,
        resolve_span: SpanResolver,
        idle_tracker: IdleTracker,
        period_ns: int,
        *,
        include_internal: bool = False,
        labels_of: Callable[[Any], Labels] = lambda _: (),
    ) -> None:
        self._resolve_span = resolve_span
        self._labels_of = labels_of
        self._idle_tracker = idle_tracker
        self._period_ns = period_ns
        self._include_internal = include_internal
        self._thread_times = ThreadTimes()
        self._thread_infos: dict[int, ThreadInfo] = {}  # of the threads of the last snapshot
        self._ended_threads: dict[
            int, ThreadInfo
        ] = {}  # of those of the one before that are not in it: events may be older
        self._transient_threads: dict[int, ThreadInfo] = {}  # of others that were seen since
        self._reports_all = True  # the next snapshot
        self._next_index = 1

    def set_baseline(self, raw: RawSnapshot) -> None:
        """Remember the threads of `raw` and the CPU they have used, so that the next snapshot can tell who ran."""
        self.snapshot(raw)
        self.take_idle_spans()  # nobody has had these samples

    def snapshot(self, raw: RawSnapshot) -> Snapshot:
        """`raw` with all that is known about its threads. Threads are ordered by the age of their thread state."""
        reports_all, self._reports_all = self._reports_all, True  # should this fail
        unreported_spans = (
            self._idle_tracker.take_idle_spans() if reports_all else ()
        )  # since a snapshot that has failed after it was told
        period_ns = raw.period_ns or self._period_ns
        changed, ended_spans = self._idle_tracker.find_changes(raw.threads, period_ns)
        thread_times, thread_infos = self._thread_times, self._thread_infos
        captured_boottime_ns = to_boottime_ns(raw.time_ns)
        thread_times.begin(captured_boottime_ns - raw.latency_ns, raw.process_cpu_ns, raw.latency_ns)
        idle_repeats = [*self._repeats(unreported_spans), *self._repeats(ended_spans)]
        current_infos = {} if reports_all else thread_infos
        samples = []
        for number, (raw_thread, os_priority, take_idle_spans, rested_ns) in enumerate(changed, 1):
            if number % _YIELD_EVERY == 0:
                yield_gil()
            info = current_infos[raw_thread.key] = self._thread_info(
                raw_thread, captured_boottime_ns, thread_infos.get(raw_thread.key)
            )
            if take_idle_spans and info.is_sampled:
                idle_repeats.append(
                    IdleRepeat(info.thread.index, take_idle_spans, rested_ns, thread_times.charge_idle(info.usage_key))
                )
            info.cpu_ns = raw_thread.cpu_ns or info.cpu_ns
            stack = raw_thread.stack
            reason = UnattributedReason.UNSAMPLED if not stack.frames else None
            if reason is None and not self._include_internal and is_excluded(stack, info.thread.name):
                reason = UnattributedReason.INTERNAL
            delta = thread_times.charge(info.usage_key, info.start_time, raw_thread.cpu_ns, reason)
            info.is_sampled = reason is None
            if reason is not None:
                continue
            running = is_running(raw_thread, delta)
            sample = ThreadSample(
                info.thread,
                stack,
                info.cpu_ns,
                info.age_ns(captured_boottime_ns),
                os_priority,
                running,
                "" if running else stack.derive(waiting_on),
                delta.wall_ns,
                delta.cpu_ns,
                None
                if raw_thread.state is None
                else _covered_periods_ns(delta.wall_ns, period_ns)
                if raw_thread.state == STATE_RUNNING
                else 0,
            )
            span = None if raw_thread.context is None else self._resolve_span(raw_thread.context)
            labels = () if raw_thread.labels is None else self._labels_of(raw_thread.labels)
            samples.append(Sample(raw.time_ns, period_ns, sample, span, labels))
        self._transient_threads.clear()
        ended_threads = (
            thread_infos.keys() - current_infos.keys() if reports_all else {key for key, _, _ in ended_spans}
        )
        self._ended_threads = {key: thread_infos.pop(key) for key in ended_threads if key in thread_infos}
        self._thread_infos = current_infos
        unattributed = thread_times.end(info.usage_key for info in self._ended_threads.values())
        self._reports_all = False
        return Snapshot(
            raw.time_ns,
            period_ns,
            tuple(samples),
            unattributed,
            idle_repeats=tuple(idle_repeats),
            ended_threads=tuple(info.thread.index for info in self._ended_threads.values()),
        )

    def take_idle_spans(self) -> tuple[IdleRepeat, ...]:
        """What is to be added to samples of the snapshots so far; the next one tells of all threads anew."""
        self._reports_all = True
        return tuple(self._repeats(self._idle_tracker.take_idle_spans()))

    def _repeats(self, take_idle_spans: Sequence[IdleSpan]) -> Iterator[IdleRepeat]:
        for key, count, period_ns in take_idle_spans:
            info = self._thread_infos.get(key)
            if count and info is not None and info.is_sampled:
                yield IdleRepeat(info.thread.index, count, period_ns, self._thread_times.charge_idle(info.usage_key))

    def thread_infos(self, threads: Sequence[RawThread], time_ns: int) -> list[ThreadInfo]:
        """What is known of some threads, seen at that time of day between two snapshots of all."""
        if len(self._transient_threads) > _MAX_TRANSIENT_THREADS:
            self._transient_threads.clear()  # there are no snapshots of all, which would do it
        captured_boottime_ns = to_boottime_ns(time_ns)
        return [self._info_between_snapshots(raw_thread, captured_boottime_ns) for raw_thread in threads]

    def _info_between_snapshots(self, raw_thread: RawThread, captured_boottime_ns: int) -> ThreadInfo:
        known = self._thread_infos.get(raw_thread.key)
        info = self._thread_info(raw_thread, captured_boottime_ns, known)
        if known is None:
            self._transient_threads[raw_thread.key] = info
        return info

    def event_samples(self, events: Sequence[RawEvent]) -> list[Sample]:
        """A sample for each event; of one on an internal thread, in place of its stack that it was there."""
        samples = []
        for raw_event in events:
            raw_thread = raw_event.thread
            info = self._ended_threads.get(raw_thread.key)
            if info is None:
                info = self._info_between_snapshots(raw_thread, to_boottime_ns(raw_event.time_ns))
            else:
                info.update_name(
                    raw_thread.python_thread
                )  # `threading` may not have known it yet when it was seen last
            stack, span = raw_thread.stack, None
            labels: Labels = ()
            if not self._include_internal and (not stack.frames or is_excluded(stack, info.thread.name)):
                stack = _INTERNAL_STACK
            else:
                span = None if raw_thread.context is None else self._resolve_span(raw_thread.context)
                labels = () if raw_thread.labels is None else self._labels_of(raw_thread.labels)
            sample = ThreadSample(info.thread, stack, info.cpu_ns, 0, 0, running=True, waiting_on="")
            samples.append(Sample(raw_event.time_ns, self._period_ns, sample, span, labels, raw_event.event))
        return samples

    def unattributed(self) -> tuple[UnattributedTime, ...]:
        """What the process has used since the last snapshot; there must be none after this."""
        return self._thread_times.close(boottime_ns())

    def _thread_info(self, raw_thread: RawThread, captured_boottime_ns: int, info: ThreadInfo | None) -> ThreadInfo:
        info = info or self._transient_threads.get(raw_thread.key)
        if info is not None:
            info.update_name(raw_thread.python_thread)
            return info
        info = make_thread_info(
            raw_thread.ident, raw_thread.native_id, raw_thread.python_thread, self._next_index, captured_boottime_ns
        )
        self._next_index += 1
        return info


def is_excluded(stack: Stack, name: str) -> bool:
    """Whether a thread is the profiler's, the SDK's or gRPC's."""
    return stack.derive(is_internal) or (stack.truncated and has_internal_name(name))


def is_running(raw_thread: RawThread, delta: ThreadTimeDelta) -> bool:
    """Whether a thread ran at the capture; where the walker cannot tell: whether it did most of the time before."""
    return delta.cpu_ns * 2 > delta.wall_ns if raw_thread.state is None else raw_thread.state > 0


def _covered_periods_ns(wall_ns: int, period_ns: int) -> int:
    """Of the deadlines that a sample stands for: its own, and those before it that have passed by."""
    return max(round(wall_ns / period_ns), 1) * period_ns


def to_boottime_ns(time_ns: int) -> int:
    """A moment that the time of day says, on the boot-time clock; never one to come, whatever is done to the former."""
    return boottime_ns() - max(time.time_ns() - time_ns, 0)
