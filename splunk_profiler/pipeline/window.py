"""One period of samples, added up in buckets of equal stack and labels.

The numbers of buckets and of frames are bounded. Beyond the bounds samples lose labels: first the
span, then the thread and the user's labels, then all but the stack, at last the stack. Samples keep
the kind of their event. Counts and times are complete in any case; `Window.dropped_labels` counts
the samples that lost labels. `Aggregator` calls all of this under its lock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple

from splunk_profiler.model import DataType, EventKind, Frame, SpanRef, Stack
from splunk_profiler.pipeline.cpu_shares import Bucket, CpuShares
from splunk_profiler.pipeline.gil_waits import GilWaits, gil_wait
from splunk_profiler.pipeline.pseudo_stacks import MERGED_STACK
from splunk_profiler.pipeline.stack_filters import GIL
from splunk_profiler.samples import (
    IdleRepeat,
    InstrumentationSource,
    Sample,
    Snapshot,
    Thread,
    UnattributedReason,
    UnattributedTime,
)

_MAX_SHALLOW_FRAMES = 64  # depth of a stack, from the leaf, that may use the reserved half of the frames


class Bounds(NamedTuple):
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
    wants_gil: bool = False


class _LastSample(NamedTuple):
    """A sample and where it was counted; `shared_stack` is None without room for its stack."""

    sample: Sample
    shared_stack: Stack | None
    bucket: Bucket
    drops_labels: bool

    def is_equal(self, sample: Sample) -> bool:
        """Return True if a sample of the same thread belongs into the same bucket, as far as identities show it."""
        before, last, now = self.sample, self.sample.thread, sample.thread
        return (
            last.stack is now.stack
            and before.span is sample.span
            and last.running is now.running
            and last.waiting_on == now.waiting_on
            and before.labels is sample.labels
            and last.thread is now.thread
            and sample.event is None
        )


class Window:
    """The content of one profile period.

    Args:
        time_ns: start, since the epoch.
        began_ns: start, on the monotonic clock.
        period_ns: distance of the snapshots; used while there is none.
        shares: CPU time of earlier periods that no sample has yet.
        endpoint_of: returns the current endpoint of a bucket; those without a span have it from their first sample.
    """

    def __init__(
        self,
        bounds: Bounds,
        time_ns: int,
        began_ns: int,
        period_ns: int,
        shares: CpuShares,
        *,
        endpoint_of: Callable[[BucketKey], str],
    ) -> None:
        self.time_ns = time_ns
        self.began_ns = self.ended_ns = began_ns
        self.period_ns = period_ns
        self.snapshot_count = 0
        self.live: Window | None = None  # memory in use at the end
        self.heap_begins = False  # there
        self.gil_waits = GilWaits()
        self.dropped_labels: Counter[DataType] = Counter()  # samples
        self.unattributed: dict[UnattributedReason, UnattributedTime] = {}
        self._periods_ns = 0
        self._shares = shares
        self._endpoint_of = endpoint_of
        # The buckets with all labels, by a key that is faster to make and to compare than theirs.
        self._complete: dict[tuple[object, ...], tuple[BucketKey, Bucket]] = {}
        self._max_complete = bounds.spans
        self._levels: list[dict[BucketKey, Bucket]] = [{}, {}, {}]
        self._level_capacities = (bounds.threads, bounds.states, bounds.stacks)
        self._merged: dict[EventKey | None, Bucket] = {}
        self._frames_left = bounds.frames
        self._frames_for_shallow_stacks = bounds.frames // 2
        self._shared_stacks: dict[tuple[tuple[Frame, ...], bool], Stack] = {}
        self._last: dict[int, _LastSample] = {}  # by thread index

    @property
    def average_period_ns(self) -> int:
        """The distance of two snapshots."""
        return self._periods_ns // self.snapshot_count if self.snapshot_count else self.period_ns

    def add_snapshot(self, snapshot: Snapshot, now_ns: int) -> None:
        """Count everything in a snapshot; the window ends at `now_ns` for the time being."""
        for repeat in snapshot.idle_repeats:
            self.repeat(repeat)
        for sample in snapshot.samples:
            self._add(sample)
        self.add_unattributed(*snapshot.unattributed)
        for thread_index in snapshot.ended_threads:
            self._last.pop(thread_index, None)
            self._shares.forget(thread_index)
        if snapshot.period_ns > 0:
            self.snapshot_count += snapshot.snapshot_count
            self.gil_waits = self.gil_waits.plus(gil_wait(snapshot.gil_wait_ns, snapshot.snapshot_count))
        self._periods_ns += snapshot.period_ns * snapshot.snapshot_count
        self.ended_ns = now_ns

    def repeat(self, repeat: IdleRepeat) -> None:
        """Count the last sample of an idle thread for further snapshots."""
        last = self._last.get(repeat.thread_index)
        if last is None:  # that sample was lost in an error
            self.add_unattributed(UnattributedTime(UnattributedReason.UNSAMPLED, repeat.wall_ns, 0))
            return
        bucket = last.bucket
        bucket.count += repeat.snapshot_count
        bucket.period_ns += repeat.period_ns
        bucket.wall_ns += repeat.wall_ns
        if last.drops_labels:
            self.dropped_labels[DataType.CPU] += repeat.snapshot_count

    def add_unattributed(self, *unattributed: UnattributedTime) -> None:
        """Count time that is in no sample."""
        for reason, wall_ns, cpu_ns in unattributed:
            known = self.unattributed.get(reason, UnattributedTime(reason, 0, 0))
            self.unattributed[reason] = UnattributedTime(reason, known.wall_ns + wall_ns, known.cpu_ns + cpu_ns)

    def drop_excess(self) -> list[UnattributedTime]:
        """Leave no negative CPU time at the end; return it, for the next window.

        Samples have more than the process when the sample of a thread that was missing has what was unattributed in
        an earlier window.
        """
        negative = [total._replace(wall_ns=0) for total in self.unattributed.values() if total.cpu_ns < 0]
        for excess in negative:
            self.add_unattributed(excess._replace(cpu_ns=-excess.cpu_ns))
        return negative

    def buckets(self) -> Iterable[tuple[BucketKey, Bucket]]:
        """Yield all buckets with their keys."""
        yield from self._complete.values()
        for level in self._levels:
            yield from level.items()
        for event, bucket in self._merged.items():
            yield BucketKey(MERGED_STACK, event=event), bucket
        if self.live is not None:
            yield from self.live.buckets()

    def _add(self, sample: Sample) -> None:
        thread_sample = sample.thread
        index = thread_sample.thread.index
        last = self._last.get(index)
        if last is None or not last.is_equal(sample):
            last = self._find_bucket(sample, last)
            if sample.event is None and sample.source is InstrumentationSource.CONTINUOUS:
                self._last[index] = last
        bucket, event = last.bucket, sample.event
        if last.drops_labels:
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
                thread_sample.thread, bucket, thread_sample.cpu_delta_ns, thread_sample.cpu_weight_ns, runnable_ns
            )

    def _find_bucket(self, sample: Sample, last: _LastSample | None) -> _LastSample:
        """Return the bucket with room for a sample."""
        if last is not None and last.sample.thread.stack is sample.thread.stack:
            stack = last.shared_stack
        else:
            stack = self._shared_stack(sample.thread.stack)
        if stack is None:
            return _LastSample(sample, None, self._merged.setdefault(_event_of(sample), Bucket(sample.time_ns)), True)
        key = _fast_key_of(sample, stack)
        known = self._complete.get(key)
        if known is not None:
            return _LastSample(sample, stack, known[1], False)
        full_key = _key_of(sample, stack)
        # Events of many spans leave half of the room to the threads.
        if len(self._complete) < (self._max_complete if sample.event is None else self._max_complete // 2):
            bucket = Bucket(sample.time_ns)
            self._complete[key] = (full_key, bucket)
            return _LastSample(sample, stack, bucket, False)
        full_key = full_key._replace(endpoint=self._endpoint_of(full_key))
        bucket, drops_labels = self._find_coarser_bucket(full_key, sample.time_ns)
        return _LastSample(sample, stack, bucket, drops_labels)

    def _find_coarser_bucket(self, full_key: BucketKey, time_ns: int) -> tuple[Bucket, bool]:
        """Return a bucket with fewer labels; True if the sample loses labels in it."""
        for level, (buckets, capacity) in enumerate(zip(self._levels, self._level_capacities, strict=True), 1):
            key = _coarsen(full_key, level)
            bucket = buckets.get(key)
            if bucket is None and len(buckets) < capacity:
                bucket = buckets[key] = Bucket(time_ns)
            if bucket is not None:
                return bucket, key != full_key
        return self._merged.setdefault(full_key.event, Bucket(time_ns)), True

    def _shared_stack(self, stack: Stack) -> Stack | None:
        """Return the one stack for all samples with these frames; None without room for it."""
        return self._shared_stacks.get((stack.frames, stack.truncated)) or self._add_stack(stack)

    def _add_stack(self, stack: Stack) -> Stack | None:
        if len(stack.frames) > max(self._frames_left - self._frames_for_shallow_stacks, _MAX_SHALLOW_FRAMES):
            stack = Stack(stack.frames[:_MAX_SHALLOW_FRAMES], truncated=True)
        key = (stack.frames, stack.truncated)
        shared = self._shared_stacks.get(key)
        if shared is None and len(stack.frames) <= self._frames_left:
            self._frames_left -= len(stack.frames)
            shared = self._shared_stacks[key] = stack
        return shared


def _fast_key_of(sample: Sample, stack: Stack) -> tuple[object, ...]:
    thread, span, event = sample.thread.thread, sample.span, sample.event
    key: tuple[object, ...] = (
        stack,
        thread.index,
        thread.name,
        sample.thread.running,
        sample.thread.waiting_on,
        sample.labels,
    )
    if event is not None:
        key += (event.kind.name, event.labels)
    if span is not None:
        key += (span.trace_id, span.span_id, span.local_root_id)
    return key


def _key_of(sample: Sample, stack: Stack) -> BucketKey:
    thread_sample, span = sample.thread, sample.span
    endpoint = "" if span is None else span.endpoint
    return BucketKey(
        stack,
        thread_sample.thread,
        _state_of(sample),
        endpoint,
        span,
        sample.labels,
        _event_of(sample),
        thread_sample.waiting_on == GIL,
    )


def _state_of(sample: Sample) -> str:
    if sample.event is not None and any(name == "thread.state" for name, _ in sample.event.labels):
        return ""  # the event has another one
    return "RUNNABLE" if sample.thread.running else "WAITING"


def _event_of(sample: Sample) -> EventKey | None:
    return None if sample.event is None else EventKey(sample.event.kind, sample.event.labels)


def _coarsen(full_key: BucketKey, level: int) -> BucketKey:
    if level == 1:
        return full_key._replace(span=None)
    if level == 2:
        return full_key._replace(span=None, thread=None, labels=())
    return BucketKey(full_key.stack, event=full_key.event)
