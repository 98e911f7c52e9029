"""Samples → profiles: what is equal in stack and labels within a period is one aggregate.

Stands in front of the batch exporter's queue. `Aggregator.take` runs on the sampling worker's thread, `close` on the
one that stops the profiler, after it. Imports neither settings nor OpenTelemetry.

What it holds is bounded however many spans, threads and stacks there are. Beyond the bounds samples are told apart by
less: first not by span, then not by thread and the user's labels, then not by anything but the stack, at last not by
the stack; kinds of events always are. Their number and their times are always kept, and how many have lost a label is
counted (`Profile.dropped_labels`).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from splunk_profiler.model import (
    Aggregate,
    DataType,
    EventKind,
    Frame,
    IdleRepeat,
    InstrumentationSource,
    Profile,
    Sample,
    Snapshot,
    SpanRef,
    Stack,
    Thread,
    UnattributedReason,
    UnattributedTime,
)
from splunk_profiler.pipeline.cpu_shares import Bucket, CpuShares
from splunk_profiler.system.guard import logger
from splunk_profiler.system.threads import real_lock, yield_gil

Label = tuple[str, str | int]
_Event = tuple[EventKind, tuple[Label, ...]]  # what it is, and what distinguishes it
_SAMPLED_FLAG = 1  # the W3C trace flag
_YIELD_EVERY = 64  # samples or aggregates between two offers of the GIL
_MAX_SHALLOW_FRAMES = 64  # frames of a stack, from the leaf, for which half of the room is kept
_MAX_LAST_STACKS = 4096  # threads


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much of a period is held.

    Attributes:
        spans: aggregates with all of their labels.
        threads: further ones without span and trace.
        states: further ones without the thread and the user's labels, either.
        stacks: further ones with nothing but their stack.
        frames: frames of all distinct stacks together. When half of them are taken, deep stacks lose their root end:
            one thread that recurses would take the stacks of all others.
    """

    spans: int = 2048
    threads: int = 512
    states: int = 512
    stacks: int = 512
    frames: int = 250_000


def _pseudo_stack(function: str) -> Stack:
    return Stack((Frame("[process]", function, "unknown", None),), truncated=False)


MERGED_STACK = _pseudo_stack("merged")
UNATTRIBUTED_STACKS = {reason: _pseudo_stack(reason.value) for reason in UnattributedReason}


class _BucketKey(NamedTuple):
    """What samples are told apart by."""

    stack: Stack
    thread: Thread | None = None
    state: str = ""
    endpoint: str = ""
    span: SpanRef | None = None
    labels: tuple[tuple[str, str], ...] = ()
    event: _Event | None = None


class _Window:
    """What was seen since the last profile.

    Args:
        bounds: how much is held.
        time_ns: when it began, since the epoch.
        began_ns: the same on the clock of the intervals, which nobody sets.
        period_ns: distance of the snapshots, as long as there is none.
        shares: CPU time of the periods before that is in no sample yet.
    """

    def __init__(self, bounds: Bounds, time_ns: int, began_ns: int, period_ns: int, shares: CpuShares) -> None:
        self.time_ns = time_ns
        self.began_ns = began_ns
        self.period_ns = period_ns
        self.ended_ns = began_ns
        self.snapshot_count = self.periods_ns = self.dropped_labels = 0
        self.dropped_by_other_type: Counter[DataType] = Counter()  # of these, those of another type than the timer's
        self.unattributed: dict[UnattributedReason, tuple[int, int]] = {}
        self.levels: list[dict[_BucketKey, Bucket]] = [{}, {}, {}, {}]
        self._level_capacities = (bounds.spans, bounds.threads, bounds.states, bounds.stacks)
        self._frames_left = bounds.frames
        self._frames_for_shallow_stacks = bounds.frames // 2
        self._shared_stacks: dict[tuple[tuple[Frame, ...], bool], Stack] = {}
        self._buckets_by_sample_key: dict[
            tuple[object, ...], Bucket
        ] = {}  # those of the first level by what is quickly made of a sample
        # The index of a thread → its last stack, and the one that stands for it.
        self._last_stacks: dict[int, tuple[Stack, Stack]] = {}
        self._merged: dict[_Event | None, Bucket] = {}
        self._shares = shares
        # The index of a thread → where its last sample was counted, and whether it lost labels there.
        self._last_buckets: dict[int, tuple[Bucket, bool]] = {}

    def add(self, sample: Sample) -> None:
        """Count a sample where it belongs, or where there is room."""
        dropped_before = self.dropped_labels
        found = self._bucket_of(sample)
        thread_sample = sample.thread
        if (event := sample.event) is not None:
            found.event_count += event.count
            found.event_amount += event.amount
            if event.kind.data_type is not DataType.CPU:
                self.dropped_by_other_type[event.kind.data_type] += self.dropped_labels - dropped_before
            return
        found.count += 1
        found.period_ns += sample.period_ns
        found.wall_ns += thread_sample.wall_delta_ns
        if thread_sample.cpu_weight_ns is None:
            found.cpu_ns += thread_sample.cpu_delta_ns
        else:
            runnable_ns = thread_sample.wall_delta_ns if thread_sample.running else 0
            self._shares.add(
                thread_sample.thread.index, found, thread_sample.cpu_delta_ns, thread_sample.cpu_weight_ns, runnable_ns
            )
        if sample.source is InstrumentationSource.CONTINUOUS:
            self._last_buckets[thread_sample.thread.index] = (found, self.dropped_labels > dropped_before)

    def repeat(self, repeat: IdleRepeat) -> None:
        """Count a thread's last sample for more snapshots than its own."""
        if repeat.thread_index not in self._last_buckets:  # it has failed to get here
            self.add_unattributed(UnattributedTime(UnattributedReason.UNSAMPLED, repeat.wall_ns, 0))
            return
        found, dropped = self._last_buckets[repeat.thread_index]
        found.count += repeat.snapshot_count
        found.period_ns += repeat.period_ns
        found.wall_ns += repeat.wall_ns
        self.dropped_labels += repeat.snapshot_count if dropped else 0

    def forget(self, thread_index: int) -> None:
        """The thread is gone."""
        self._last_buckets.pop(thread_index, None)
        self._last_stacks.pop(thread_index, None)
        self._shares.forget(thread_index)

    def add_unattributed(self, unattributed_time: UnattributedTime) -> None:
        """Count time that is in no sample."""
        wall_ns, cpu_ns = self.unattributed.get(unattributed_time.reason, (0, 0))
        self.unattributed[unattributed_time.reason] = (
            wall_ns + unattributed_time.wall_ns,
            cpu_ns + unattributed_time.cpu_ns,
        )

    def buckets(self) -> Iterable[tuple[_BucketKey, Bucket]]:
        """All that was counted."""
        for level in self.levels:
            yield from level.items()
        for event, found in self._merged.items():
            yield _BucketKey(MERGED_STACK, event=event), found

    def _bucket_of(self, sample: Sample) -> Bucket:
        stack = self._shared_stack(sample)
        if stack is not None:
            thread, span = sample.thread.thread, sample.span
            key: tuple[object, ...] = (stack, thread.index, thread.name, sample.thread.running, sample.labels)
            if sample.event is not None:
                key += (sample.event.kind.name, sample.event.labels)
            if span is not None:
                key += (span.trace_id, span.span_id, span.local_root_id)
            known = self._buckets_by_sample_key.get(key)
            if known is not None:
                return known
            full_key = _key_of(sample, stack)
            for level, (buckets, capacity) in enumerate(zip(self.levels, self._level_capacities, strict=True)):
                bucket_key = _coarsen(full_key, level)
                found = buckets.get(bucket_key)
                if found is None and len(buckets) < capacity:
                    found = buckets[bucket_key] = Bucket(sample.time_ns)
                    if level == 0:
                        self._buckets_by_sample_key[key] = found
                if found is not None:
                    self.dropped_labels += bucket_key != full_key
                    return found
        self.dropped_labels += 1
        return self._merged.setdefault(_event_of(sample), Bucket(sample.time_ns))

    def _shared_stack(self, sample: Sample) -> Stack | None:
        """The stack that stands for all with these frames; None if there is no room for another."""
        stack, index = sample.thread.stack, sample.thread.thread.index
        last = self._last_stacks.get(index)
        if last is not None and last[0] is stack:
            return last[1]
        known = self._shared_stacks.get((stack.frames, stack.truncated)) or self._add_stack(stack)
        if known is not None and sample.event is None:
            if len(self._last_stacks) >= _MAX_LAST_STACKS:
                self._last_stacks.clear()
            self._last_stacks[index] = (stack, known)
        return known

    def _add_stack(self, stack: Stack) -> Stack | None:
        if len(stack.frames) > max(self._frames_left - self._frames_for_shallow_stacks, _MAX_SHALLOW_FRAMES):
            stack = Stack(stack.frames[:_MAX_SHALLOW_FRAMES], truncated=True)
        key = (stack.frames, stack.truncated)
        known = self._shared_stacks.get(key)
        if known is None and len(stack.frames) <= self._frames_left:
            self._frames_left -= len(stack.frames)
            known = self._shared_stacks[key] = stack
        return known


class Aggregator:
    """Gathers samples of a period into a profile and hands it on.

    Args:
        deliver: takes profiles; returns at once.
        interval_ns: length of a period, which ends at the snapshot that is nearest to it.
        endpoint_of: local root's span id → its name as of now, or empty.
        bounds: how much is held.
        monotonic_ns: the clock.
        source: what its profiles are of.
        take_idle_spans: asked at the end of a period for what is to be added to its samples; after that all threads are
            sampled.
        kinds: of events, whose values are in all profiles of their data type.
    """

    def __init__(
        self,
        deliver: Callable[[tuple[Profile]], None],
        *,
        interval_ns: int,
        endpoint_of: Callable[[int], str] = lambda _: "",
        bounds: Bounds = Bounds(),
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
        source: InstrumentationSource = InstrumentationSource.CONTINUOUS,
        take_idle_spans: Callable[[], Iterable[IdleRepeat]] = tuple,
        kinds: Iterable[EventKind] = (),
    ) -> None:
        self._deliver = deliver
        self._interval_ns = interval_ns
        self._endpoint_of = endpoint_of
        self._bounds = bounds
        self._now_ns = monotonic_ns
        self._source = source
        self._take_idle_spans = take_idle_spans
        self._kinds = tuple(kinds)
        self._lock = real_lock()  # guards what follows
        self._shares = CpuShares()
        self._window: _Window | None = None
        self._dropped_labels = 0

    @property
    def dropped_labels(self) -> int:
        """Samples that were merged under fewer labels than they had, in all periods."""
        return self._dropped_labels

    def begin(self, time_ns: int, period_ns: int) -> None:
        """The first period begins now, `time_ns` since the epoch; without this with the first snapshot's."""
        with self._lock:
            self._window = _Window(self._bounds, time_ns, self._now_ns(), period_ns, self._shares)

    def take(self, snapshot: Snapshot) -> None:
        """Add what a snapshot says; delivers the profile if this is the end of its period.

        One with a period of 0 was not taken at a tick: it has samples of events only.
        """
        with self._lock:
            window, now_ns = self._window, self._now_ns()
            if window is None:
                began_ns = now_ns - snapshot.period_ns
                window = self._window = _Window(
                    self._bounds, snapshot.time_ns - snapshot.period_ns, began_ns, snapshot.period_ns, self._shares
                )
            for repeat in snapshot.idle_repeats:
                window.repeat(repeat)
            for number, sample in enumerate(snapshot.samples, 1):
                if number % _YIELD_EVERY == 0:
                    yield_gil()
                window.add(sample)
            for unattributed_time in snapshot.unattributed:
                window.add_unattributed(unattributed_time)
            for thread_index in snapshot.ended_threads:
                window.forget(thread_index)
            window.snapshot_count += snapshot.period_ns > 0
            window.periods_ns += snapshot.period_ns
            window.ended_ns = now_ns
            if now_ns - window.began_ns + snapshot.period_ns // 2 < self._interval_ns:
                return
            period_ns = snapshot.period_ns or window.period_ns
            self._window = _Window(self._bounds, snapshot.time_ns, now_ns, period_ns, self._shares)
            self._shares.distribute()
            for repeat in self._take_idle_spans():
                window.repeat(repeat)
        self._send(window)

    def flush_if_due(self) -> None:
        """Nothing was seen for a while: deliver what was gathered if its period is over, and begin no other one."""
        with self._lock:
            window = self._window
            if window is None or self._now_ns() - window.began_ns < self._interval_ns:
                return
            self._window = None
        if window.snapshot_count:
            self._send(window)

    def close(self, unattributed: Iterable[UnattributedTime]) -> None:
        """Deliver what was gathered. There are no more snapshots; `unattributed` were used since."""
        with self._lock:
            window, self._window = self._window, None
        if window is not None:
            for unattributed_time in unattributed:
                window.add_unattributed(unattributed_time)
            self._shares.distribute()
            if (undistributed_ns := self._shares.undistributed_ns()) > 0:
                window.add_unattributed(UnattributedTime(UnattributedReason.UNSAMPLED, 0, undistributed_ns))
            window.ended_ns = self._now_ns()
            self._send(window)

    def _send(self, window: _Window) -> None:
        if window.dropped_labels and not self._dropped_labels:
            logger.info(
                "there are more different spans, threads or stacks than a profile holds: samples beyond them"
                " are counted without these (said once)"
            )
        self._dropped_labels += window.dropped_labels
        for profile in self._profiles(window):
            self._deliver((profile,))

    def _profiles(self, window: _Window) -> Iterator[Profile]:
        """One for each data type of which there is anything."""
        of_timer: list[Aggregate] = []
        gathered = {DataType.CPU: of_timer}
        period_ns = window.periods_ns // window.snapshot_count if window.snapshot_count else window.period_ns
        for number, (bucket_key, found) in enumerate(window.buckets(), 1):
            if number % _YIELD_EVERY == 0:
                yield_gil()
            every_ns = found.period_ns // found.count if bucket_key.event is None else None
            labels = (*_time_labels(found.first_ns, every_ns), *self._labels(bucket_key))
            kind = None if bucket_key.event is None else bucket_key.event[0]
            aggregates = of_timer if kind is None else gathered.setdefault(kind.data_type, [])
            aggregates.append(
                Aggregate(
                    bucket_key.stack,
                    labels,
                    found.count,
                    found.wall_ns,
                    found.cpu_ns,
                    kind,
                    found.event_count,
                    found.event_amount,
                )
            )
        for reason, (wall_ns, cpu_ns) in window.unattributed.items():
            labels = _time_labels(window.time_ns, period_ns)
            of_timer.append(Aggregate(UNATTRIBUTED_STACKS[reason], labels, 0, wall_ns, cpu_ns))
        duration_ns = max(window.ended_ns - window.began_ns, 0)
        dropped = Counter(window.dropped_by_other_type)
        dropped[DataType.CPU] = window.dropped_labels - dropped.total()
        for data_type, found_of_it in gathered.items():
            if found_of_it:
                yield Profile(
                    window.time_ns,
                    duration_ns,
                    period_ns,
                    tuple(found_of_it),
                    dropped[data_type],
                    self._source,
                    data_type,
                    self._kinds_of(data_type, found_of_it),
                )

    def _kinds_of(self, data_type: DataType, aggregates: Iterable[Aggregate]) -> tuple[EventKind, ...]:
        there = (*self._kinds, *(one.kind for one in aggregates if one.kind is not None))
        return tuple(dict.fromkeys(kind for kind in there if kind.data_type is data_type))

    def _labels(self, bucket_key: _BucketKey) -> tuple[Label, ...]:
        found: list[Label] = [("source.event.name", "timer")] if bucket_key.state else []
        if bucket_key.event is not None:
            found = [("source.event.name", bucket_key.event[0].name), *bucket_key.event[1]]
        if (thread := bucket_key.thread) is not None:
            found.append(("thread.id", thread.ident))
            if thread.native_id:
                found.append(("thread.os.id", thread.native_id))
            found.append(("thread.name", thread.name))
        if bucket_key.state:
            found.append(("thread.state", bucket_key.state))
        if bucket_key.stack.truncated:
            found.append(("thread.stack.truncated", "true"))
        endpoint = bucket_key.endpoint
        if (span := bucket_key.span) is not None:
            found += [("trace_id", f"{span.trace_id:032x}"), ("span_id", f"{span.span_id:016x}")]
            if not span.trace_flags & _SAMPLED_FLAG:
                found.append(("trace_flags", f"{span.trace_flags:02x}"))  # such a span is nowhere to be found
            if span.local_root_id:
                found.append(("local_root_span_id", f"{span.local_root_id:016x}"))
                endpoint = self._endpoint_of(span.local_root_id) or endpoint
        if endpoint:
            found.append(("endpoint", endpoint))
        return (*found, *bucket_key.labels)


def estimate_size(profile: Profile) -> int:
    """About the bytes that a profile takes in memory; more than it has on the wire."""
    stacks = {id(aggregate.stack): len(aggregate.stack.frames) for aggregate in profile.aggregates}
    return 1000 + 1000 * len(profile.aggregates) + 8 * sum(stacks.values())


def _time_labels(time_ns: int, period_ns: int | None) -> tuple[Label, ...]:
    at: Label = ("source.event.time", time_ns // 1_000_000)
    return (at,) if period_ns is None else (at, ("source.event.period", max(period_ns // 1_000_000, 1)))


def _key_of(sample: Sample, stack: Stack) -> _BucketKey:
    thread_sample, span = sample.thread, sample.span
    endpoint = ""
    if span is not None:
        endpoint = span.endpoint
        span = SpanRef(span.trace_id, span.span_id, span.trace_flags, span.local_root_id)
    state = "RUNNABLE" if thread_sample.running else "WAITING"
    return _BucketKey(stack, thread_sample.thread, state, endpoint, span, sample.labels, _event_of(sample))


def _event_of(sample: Sample) -> _Event | None:
    return None if sample.event is None else (sample.event.kind, sample.event.labels)


def _coarsen(full_key: _BucketKey, level: int) -> _BucketKey:
    if level == 0:
        return full_key
    if level == 1:
        return full_key._replace(span=None)
    if level == 2:
        return full_key._replace(span=None, thread=None, labels=())
    return _BucketKey(full_key.stack, event=full_key.event)
