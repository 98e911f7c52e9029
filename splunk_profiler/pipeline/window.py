"""One period of samples, added up in buckets of equal stack and labels.

The numbers of buckets and of frames are bounded. Beyond the bounds samples lose labels: first the
span, then the thread and the user's labels, then all but the stack, at last the stack. Samples keep
the kind of their event. Counts and times are complete in any case; `Window.dropped_labels` counts
the samples that lost labels. `Aggregator` calls all of this under its lock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from splunk_profiler.model import (
    DataType,
    EventKind,
    Frame,
    IdleRepeat,
    InstrumentationSource,
    Sample,
    Snapshot,
    SpanRef,
    Stack,
    Thread,
    UnattributedReason,
    UnattributedTime,
)
from splunk_profiler.pipeline.cpu_shares import Bucket, CpuShares
from splunk_profiler.pipeline.pseudo_stacks import MERGED_STACK
from splunk_profiler.system.threads import yield_gil

YIELD_EVERY = 64  # samples or buckets between two offers of the GIL
_MAX_SHALLOW_FRAMES = 64  # depth of a stack, from the leaf, that may use the reserved half of the frames
_MAX_LAST_STACKS = 4096  # threads


@dataclass(frozen=True, slots=True)
class Bounds:
    """The capacity of a window.

    Attributes:
        spans: buckets with all labels.
        threads: further buckets without span and trace.
        states: further buckets without thread and user labels as well.
        stacks: further buckets with only a stack.
        frames: frames of all distinct stacks together. When half are used, deep stacks lose their root end.
            Otherwise one recursing thread would use up the room for all other stacks.
    """

    spans: int = 2048
    threads: int = 512
    states: int = 512
    stacks: int = 512
    frames: int = 250_000


class EventKey(NamedTuple):
    """The kind and the labels of an event."""

    kind: EventKind
    labels: tuple[tuple[str, str | int], ...]


class BucketKey(NamedTuple):
    """The stack and labels that the samples of a bucket have in common."""

    stack: Stack
    thread: Thread | None = None
    state: str = ""
    endpoint: str = ""
    span: SpanRef | None = None
    labels: tuple[tuple[str, str], ...] = ()
    event: EventKey | None = None


class Window:
    """The content of one profile period.

    Args:
        time_ns: start, since the epoch.
        began_ns: start, on the monotonic clock.
        period_ns: distance of the snapshots; used while there is none.
        shares: CPU time of earlier periods that no sample has yet.
    """

    def __init__(self, bounds: Bounds, time_ns: int, began_ns: int, period_ns: int, shares: CpuShares) -> None:
        self.time_ns = time_ns
        self.began_ns = self.ended_ns = began_ns
        self.period_ns = period_ns
        self.snapshot_count = 0
        self.dropped_labels: Counter[DataType] = Counter()  # samples
        self.unattributed: dict[UnattributedReason, UnattributedTime] = {}
        self._periods_ns = 0
        self._shares = shares
        self._levels: list[dict[BucketKey, Bucket]] = [{}, {}, {}, {}]
        self._level_capacities = (bounds.spans, bounds.threads, bounds.states, bounds.stacks)
        self._merged: dict[EventKey | None, Bucket] = {}
        # The buckets of the first level, by a key that is faster to make than a `BucketKey`.
        self._buckets_by_sample_key: dict[tuple[object, ...], Bucket] = {}
        self._frames_left = bounds.frames
        self._frames_for_shallow_stacks = bounds.frames // 2
        self._shared_stacks: dict[tuple[tuple[Frame, ...], bool], Stack] = {}
        self._last_stacks: dict[int, tuple[Stack, Stack]] = {}  # by thread index: last stack, its shared stack
        self._last_buckets: dict[int, tuple[Bucket, bool]] = {}  # by thread index: bucket, True if labels were dropped

    @property
    def average_period_ns(self) -> int:
        """The distance of two snapshots."""
        return self._periods_ns // self.snapshot_count if self.snapshot_count else self.period_ns

    def add_snapshot(self, snapshot: Snapshot, now_ns: int) -> None:
        """Count everything in a snapshot; the window ends at `now_ns` for the time being."""
        for repeat in snapshot.idle_repeats:
            self.repeat(repeat)
        for number, sample in enumerate(snapshot.samples, 1):
            if number % YIELD_EVERY == 0:
                yield_gil()
            self._add(sample)
        for unattributed_time in snapshot.unattributed:
            self.add_unattributed(unattributed_time)
        for thread_index in snapshot.ended_threads:
            self._last_buckets.pop(thread_index, None)
            self._last_stacks.pop(thread_index, None)
            self._shares.forget(thread_index)
        self.snapshot_count += snapshot.period_ns > 0
        self._periods_ns += snapshot.period_ns
        self.ended_ns = now_ns

    def repeat(self, repeat: IdleRepeat) -> None:
        """Count the last sample of an idle thread for further snapshots."""
        if repeat.thread_index not in self._last_buckets:  # that sample was lost in an error
            self.add_unattributed(UnattributedTime(UnattributedReason.UNSAMPLED, repeat.wall_ns, 0))
            return
        bucket, drops_labels = self._last_buckets[repeat.thread_index]
        bucket.count += repeat.snapshot_count
        bucket.period_ns += repeat.period_ns
        bucket.wall_ns += repeat.wall_ns
        if drops_labels:
            self.dropped_labels[DataType.CPU] += repeat.snapshot_count

    def add_unattributed(self, unattributed_time: UnattributedTime) -> None:
        """Count time that is in no sample."""
        reason, wall_ns, cpu_ns = unattributed_time.reason, unattributed_time.wall_ns, unattributed_time.cpu_ns
        if (known := self.unattributed.get(reason)) is not None:
            wall_ns, cpu_ns = known.wall_ns + wall_ns, known.cpu_ns + cpu_ns
        self.unattributed[reason] = UnattributedTime(reason, wall_ns, cpu_ns)

    def buckets(self) -> Iterable[tuple[BucketKey, Bucket]]:
        """Yield all buckets with their keys."""
        for level in self._levels:
            yield from level.items()
        for event, bucket in self._merged.items():
            yield BucketKey(MERGED_STACK, event=event), bucket

    def _add(self, sample: Sample) -> None:
        bucket, drops_labels = self._bucket_of(sample)
        event, thread_sample = sample.event, sample.thread
        if drops_labels:
            self.dropped_labels[DataType.CPU if event is None else event.kind.data_type] += 1
        if event is not None:
            bucket.event_count += event.count
            bucket.event_amount += event.amount
            return
        bucket.count += 1
        bucket.period_ns += sample.period_ns
        bucket.wall_ns += thread_sample.wall_delta_ns
        if thread_sample.cpu_weight_ns is None:
            bucket.cpu_ns += thread_sample.cpu_delta_ns
        else:
            runnable_ns = thread_sample.wall_delta_ns if thread_sample.running else 0
            self._shares.add(
                thread_sample.thread.index, bucket, thread_sample.cpu_delta_ns, thread_sample.cpu_weight_ns, runnable_ns
            )
        if sample.source is InstrumentationSource.CONTINUOUS:
            self._last_buckets[thread_sample.thread.index] = (bucket, drops_labels)

    def _bucket_of(self, sample: Sample) -> tuple[Bucket, bool]:
        """Return the bucket with room for a sample; True if the sample loses labels in it."""
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
                return known, False
            full_key = _key_of(sample, stack)
            for level, (buckets, capacity) in enumerate(zip(self._levels, self._level_capacities, strict=True)):
                bucket_key = _coarsen(full_key, level)
                bucket = buckets.get(bucket_key)
                if bucket is None and len(buckets) < capacity:
                    bucket = buckets[bucket_key] = Bucket(sample.time_ns)
                    if level == 0:
                        self._buckets_by_sample_key[key] = bucket
                if bucket is not None:
                    return bucket, bucket_key != full_key
        return self._merged.setdefault(_event_of(sample), Bucket(sample.time_ns)), True

    def _shared_stack(self, sample: Sample) -> Stack | None:
        """Return the one stack for all samples with these frames; None without room for it."""
        stack, index = sample.thread.stack, sample.thread.thread.index
        last = self._last_stacks.get(index)
        if last is not None and last[0] is stack:
            return last[1]
        shared = self._shared_stacks.get((stack.frames, stack.truncated)) or self._add_stack(stack)
        if shared is not None and sample.event is None:
            if len(self._last_stacks) >= _MAX_LAST_STACKS:
                self._last_stacks.clear()
            self._last_stacks[index] = (stack, shared)
        return shared

    def _add_stack(self, stack: Stack) -> Stack | None:
        if len(stack.frames) > max(self._frames_left - self._frames_for_shallow_stacks, _MAX_SHALLOW_FRAMES):
            stack = Stack(stack.frames[:_MAX_SHALLOW_FRAMES], truncated=True)
        key = (stack.frames, stack.truncated)
        shared = self._shared_stacks.get(key)
        if shared is None and len(stack.frames) <= self._frames_left:
            self._frames_left -= len(stack.frames)
            shared = self._shared_stacks[key] = stack
        return shared


def _key_of(sample: Sample, stack: Stack) -> BucketKey:
    thread_sample, span = sample.thread, sample.span
    endpoint = ""
    if span is not None:
        endpoint = span.endpoint
        span = SpanRef(span.trace_id, span.span_id, span.trace_flags, span.local_root_id)
    state = "RUNNABLE" if thread_sample.running else "WAITING"
    return BucketKey(stack, thread_sample.thread, state, endpoint, span, sample.labels, _event_of(sample))


def _event_of(sample: Sample) -> EventKey | None:
    return None if sample.event is None else EventKey(sample.event.kind, sample.event.labels)


def _coarsen(full_key: BucketKey, level: int) -> BucketKey:
    if level == 0:
        return full_key
    if level == 1:
        return full_key._replace(span=None)
    if level == 2:
        return full_key._replace(span=None, thread=None, labels=())
    return BucketKey(full_key.stack, event=full_key.event)
