"""The step from raw snapshots to samples with names, states, times and ages.

The sampling worker's thread runs all of it. Imports neither configuration nor OpenTelemetry: a
callable turns contexts into spans.

Specification: Splunk profiling conventions, "Call Stack Sampling" and "Call Stack Filtering".
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from splunk_profiler.model import (
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
from splunk_profiler.pipeline.pseudo_stacks import UNATTRIBUTED_STACKS
from splunk_profiler.pipeline.stack_filters import has_internal_name, is_internal, waiting_on
from splunk_profiler.pipeline.thread_registry import ThreadInfo, boottime_ns, make_thread_info
from splunk_profiler.pipeline.thread_times import ThreadTimeDelta, ThreadTimes
from splunk_profiler.raw import STATE_RUNNING, IdleTime, RawEvent, RawSnapshot, RawThread
from splunk_profiler.system.threads import yield_gil

Labels = tuple[tuple[str, str], ...]
_YIELD_EVERY = 64  # threads between two offers of the GIL
_MAX_TRANSIENT_THREADS = 16_384


class SnapshotBuilder:
    """Turns raw snapshots into `Snapshot`s.

    Args:
        resolve_span: returns the span that is active in an OpenTelemetry context, or None.
        period_ns: distance of two snapshots, for raw snapshots without a period.
        include_internal: keep the threads of the profiler, the SDK and gRPC.
        labels_of: turns the value of the user labels' variable into the labels of a sample.
    """

    def __init__(
        self,
        resolve_span: Callable[[Any], SpanRef | None],
        idle_tracker: IdleTracker,
        period_ns: int,
        *,
        include_internal: bool = False,
        labels_of: Callable[[Any], Labels] | None = None,
    ) -> None:
        self._resolve_span = resolve_span
        self._labels_of = labels_of
        self._idle_tracker = idle_tracker
        self._period_ns = period_ns
        self._include_internal = include_internal
        self._thread_times = ThreadTimes()
        self._thread_infos: dict[int, ThreadInfo] = {}  # threads of the last snapshot
        self._ended_threads: dict[int, ThreadInfo] = {}  # left in the last snapshot; late events may refer to them
        self._transient_threads: dict[int, ThreadInfo] = {}  # seen since the last snapshot, and in none
        self._reports_all = True  # the next snapshot samples idle threads too
        self._next_index = 1

    def set_baseline(self, raw: RawSnapshot) -> None:
        """Record the threads of `raw` and their CPU times for comparison with the next snapshot."""
        self.snapshot(raw)
        self.take_idle_repeats()  # nothing exports these samples, so the next snapshot samples all threads

    def snapshot(self, raw: RawSnapshot) -> Snapshot:
        """Return the samples and times of `raw`, oldest thread first."""
        reports_all, self._reports_all = self._reports_all, True  # the next one does if this call fails
        # Idle times from before a call that failed after `find_changes`.
        unreported = self._idle_tracker.take_idle_times() if reports_all else ()
        period_ns = raw.period_ns or self._period_ns
        changes = self._idle_tracker.find_changes(raw.threads, period_ns)
        thread_times, thread_infos = self._thread_times, self._thread_infos
        captured_boottime_ns = to_boottime_ns(raw.time_ns)
        thread_times.begin(captured_boottime_ns - raw.latency_ns, raw.process_cpu_ns, raw.latency_ns)
        idle_repeats = [*self._repeats(unreported), *self._repeats(changes.ended)]
        current_infos = {} if reports_all else thread_infos
        samples = []
        for number, (raw_thread, nice, idle_count, idle_ns) in enumerate(changes.changed, 1):
            if number % _YIELD_EVERY == 0:
                yield_gil()
            info = current_infos[raw_thread.key] = self._thread_info(raw_thread, captured_boottime_ns)
            if idle_count and info.is_sampled:
                wall_ns = thread_times.charge_idle(info.usage_key)
                idle_repeats.append(IdleRepeat(info.thread.index, idle_count, idle_ns, wall_ns))
            info.cpu_ns = raw_thread.cpu_ns or info.cpu_ns
            delta = self._charge(raw_thread, info)
            if info.is_sampled:
                sample = make_thread_sample(
                    raw_thread,
                    info,
                    delta,
                    cpu_ns=info.cpu_ns,
                    captured_boottime_ns=captured_boottime_ns,
                    nice=nice,
                    cpu_weight_ns=_cpu_weight_ns(raw_thread, delta.wall_ns, period_ns),
                )
                span, labels = self.span_of(raw_thread), self.labels_of(raw_thread)
                samples.append(Sample(raw.time_ns, period_ns, sample, span, labels))
        self._transient_threads.clear()
        ended = thread_infos.keys() - current_infos.keys() if reports_all else {key for key, _, _ in changes.ended}
        self._ended_threads = {key: thread_infos.pop(key) for key in ended if key in thread_infos}
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

    def take_idle_repeats(self) -> tuple[IdleRepeat, ...]:
        """Return the repeats up to the last snapshot; the next one samples all threads again."""
        self._reports_all = True
        return tuple(self._repeats(self._idle_tracker.take_idle_times()))

    def thread_info(self, raw_thread: RawThread, time_ns: int) -> ThreadInfo:
        """Return the info of a thread that was captured at `time_ns`, between two snapshots of all threads."""
        info = self._thread_info(raw_thread, to_boottime_ns(time_ns))
        if raw_thread.key not in self._thread_infos:
            if len(self._transient_threads) > _MAX_TRANSIENT_THREADS:
                self._transient_threads.clear()  # as `snapshot` does, which may never be called
            self._transient_threads[raw_thread.key] = info
        return info

    def event_samples(self, events: Sequence[RawEvent]) -> list[Sample]:
        """Return a sample for each event; on an internal thread it has a pseudo stack."""
        samples = []
        for raw_event in events:
            raw_thread = raw_event.thread
            info = self._ended_threads.get(raw_thread.key)
            if info is None:
                info = self.thread_info(raw_thread, raw_event.time_ns)
            else:
                info.update_name(raw_thread.python_thread)  # `threading` may not have had it at the last snapshot
            stack, span = raw_thread.stack, None
            labels: Labels = ()
            if (self._include_internal or stack.frames) and not self.is_excluded(stack, info.thread.name):
                span, labels = self.span_of(raw_thread), self.labels_of(raw_thread)
            else:
                stack = UNATTRIBUTED_STACKS[UnattributedReason.INTERNAL]
            sample = ThreadSample(info.thread, stack, info.cpu_ns, 0, 0, running=True, waiting_on="")
            samples.append(Sample(raw_event.time_ns, self._period_ns, sample, span, labels, raw_event.event))
        return samples

    def unattributed(self) -> tuple[UnattributedTime, ...]:
        """Return the time that the process has used since the last snapshot; call it after that one only."""
        return self._thread_times.close(boottime_ns())

    def is_excluded(self, stack: Stack, name: str) -> bool:
        """Return True for a thread of the profiler, the SDK or gRPC, unless these are included."""
        return not self._include_internal and (
            stack.derive(is_internal) or (stack.truncated and has_internal_name(name))
        )

    def span_of(self, raw_thread: RawThread) -> SpanRef | None:
        """Return the span that was active on a thread, or None."""
        return None if raw_thread.context is None else self._resolve_span(raw_thread.context)

    def labels_of(self, raw_thread: RawThread) -> Labels:
        """Return the user labels of a thread."""
        return () if raw_thread.labels is None or self._labels_of is None else self._labels_of(raw_thread.labels)

    def _charge(self, raw_thread: RawThread, info: ThreadInfo) -> ThreadTimeDelta:
        """Return the times of a thread since its last sample; set `info.is_sampled`."""
        reason = None
        if not raw_thread.stack.frames:
            reason = UnattributedReason.UNSAMPLED
        elif self.is_excluded(raw_thread.stack, info.thread.name):
            reason = UnattributedReason.INTERNAL
        delta = self._thread_times.charge(info.usage_key, info.start_time, raw_thread.cpu_ns, reason)
        info.is_sampled = reason is None
        return delta

    def _repeats(self, idle_times: Sequence[IdleTime]) -> Iterator[IdleRepeat]:
        for key, idle_count, idle_ns in idle_times:
            info = self._thread_infos.get(key)
            if idle_count and info is not None and info.is_sampled:
                wall_ns = self._thread_times.charge_idle(info.usage_key)
                yield IdleRepeat(info.thread.index, idle_count, idle_ns, wall_ns)

    def _thread_info(self, raw_thread: RawThread, captured_boottime_ns: int) -> ThreadInfo:
        info = self._thread_infos.get(raw_thread.key) or self._transient_threads.get(raw_thread.key)
        if info is not None:
            info.update_name(raw_thread.python_thread)
            return info
        info = make_thread_info(raw_thread, self._next_index, captured_boottime_ns)
        self._next_index += 1
        return info


def to_boottime_ns(time_ns: int) -> int:
    """Return a time of day on the boot-time clock; never a future one, even if the time of day is changed."""
    return boottime_ns() - max(time.time_ns() - time_ns, 0)


def make_thread_sample(
    raw_thread: RawThread,
    info: ThreadInfo,
    delta: ThreadTimeDelta,
    *,
    cpu_ns: int,
    captured_boottime_ns: int,
    nice: int,
    cpu_weight_ns: int | None = None,
) -> ThreadSample:
    """Return a sample; without a known state, a thread runs if it used over half of the time before."""
    running = delta.cpu_ns * 2 > delta.wall_ns if raw_thread.state is None else raw_thread.state > 0
    return ThreadSample(
        info.thread,
        raw_thread.stack,
        cpu_ns,
        info.age_ns(captured_boottime_ns),
        nice,
        running,
        "" if running else raw_thread.stack.derive(waiting_on),
        delta.wall_ns,
        delta.cpu_ns,
        cpu_weight_ns,
    )


def _cpu_weight_ns(raw_thread: RawThread, wall_ns: int, period_ns: int) -> int | None:
    if raw_thread.state is None:
        return None
    if raw_thread.state != STATE_RUNNING:
        return 0
    return max(round(wall_ns / period_ns), 1) * period_ns  # for its own deadline and those that passed before it
