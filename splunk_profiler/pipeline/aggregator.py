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
    Profile,
    Repeat,
    Sample,
    Snapshot,
    Source,
    SpanRef,
    Stack,
    Thread,
    UnattributedTime,
    Unseen,
)
from splunk_profiler.pipeline.cpu_shares import Shares, Sum
from splunk_profiler.system.guard import logger
from splunk_profiler.system.threads import let_others_run, real_lock

Label = tuple[str, str | int]
_Event = tuple[EventKind, tuple[Label, ...]]  # what it is, and what distinguishes it
_SAMPLED = 1  # the W3C trace flag
_SLICE = 64  # samples or aggregates between two offers of the GIL
_SHALLOW = 64  # frames of a stack, from the leaf, for which half of the room is kept
_MOST_LAST = 4096  # threads


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


MERGED = _pseudo_stack("merged")
UNSEEN = {why: _pseudo_stack(why.value) for why in Unseen}


class _Kept(NamedTuple):
    """What samples are told apart by."""

    stack: Stack
    thread: Thread | None = None
    state: str = ""
    endpoint: str = ""
    span: SpanRef | None = None
    labels: tuple[tuple[str, str], ...] = ()
    event: _Event | None = None


class _Period:
    """What was seen since the last profile.

    Args:
        bounds: how much is held.
        time_ns: when it began, since the epoch.
        began_ns: the same on the clock of the intervals, which nobody sets.
        period_ns: distance of the snapshots, as long as there is none.
        shares: CPU time of the periods before that is in no sample yet.
    """

    def __init__(self, bounds: Bounds, time_ns: int, began_ns: int, period_ns: int, shares: Shares) -> None:
        self.time_ns = time_ns
        self.began_ns = began_ns
        self.period_ns = period_ns
        self.ended_ns = began_ns
        self.snapshots = self.periods_ns = self.dropped_labels = 0
        self.dropped_elsewhere: Counter[DataType] = Counter()  # of these, those that are not of the timer's data type
        self.remainders: dict[Unseen, tuple[int, int]] = {}
        self.levels: list[dict[_Kept, Sum]] = [{}, {}, {}, {}]
        self._rooms = (bounds.spans, bounds.threads, bounds.states, bounds.stacks)
        self._frames_left = bounds.frames
        self._for_shallow = bounds.frames // 2
        self._stacks: dict[tuple[tuple[Frame, ...], bool], Stack] = {}
        self._sums: dict[tuple[object, ...], Sum] = {}  # those of the first level by what is quickly made of a sample
        # The index of a thread → its last stack, and the one that stands for it.
        self._last: dict[int, tuple[Stack, Stack]] = {}
        self._merged: dict[_Event | None, Sum] = {}
        self._shares = shares
        # The index of a thread → where its last sample was counted, and whether it lost labels there.
        self._counted: dict[int, tuple[Sum, bool]] = {}

    def add(self, sample: Sample) -> None:
        """Count a sample where it belongs, or where there is room."""
        dropped_before = self.dropped_labels
        found = self._sum_of(sample)
        seen = sample.thread
        if (event := sample.event) is not None:
            found.event_count += event.count
            found.event_amount += event.amount
            if event.kind.data_type is not DataType.CPU:
                self.dropped_elsewhere[event.kind.data_type] += self.dropped_labels - dropped_before
            return
        found.count += 1
        found.period_ns += sample.period_ns
        found.wall_ns += seen.wall_spent_ns
        if seen.ran_ns is None:
            found.cpu_ns += seen.cpu_spent_ns
        else:
            wanted_ns = seen.wall_spent_ns if seen.running else 0
            self._shares.add(seen.thread.index, found, seen.cpu_spent_ns, seen.ran_ns, wanted_ns)
        if sample.source is Source.CONTINUOUS:
            self._counted[seen.thread.index] = (found, self.dropped_labels > dropped_before)

    def repeat(self, repeat: Repeat) -> None:
        """Count a thread's last sample for more snapshots than its own."""
        if repeat.thread_index not in self._counted:  # it has failed to get here
            self.leave(UnattributedTime(Unseen.UNSAMPLED, repeat.wall_ns, 0))
            return
        found, dropped = self._counted[repeat.thread_index]
        found.count += repeat.snapshots
        found.period_ns += repeat.period_ns
        found.wall_ns += repeat.wall_ns
        self.dropped_labels += repeat.snapshots if dropped else 0

    def forget(self, thread_index: int) -> None:
        """The thread is gone."""
        self._counted.pop(thread_index, None)
        self._last.pop(thread_index, None)
        self._shares.forget(thread_index)

    def leave(self, remainder: UnattributedTime) -> None:
        """Count time that is in no sample."""
        wall_ns, cpu_ns = self.remainders.get(remainder.why, (0, 0))
        self.remainders[remainder.why] = (wall_ns + remainder.wall_ns, cpu_ns + remainder.cpu_ns)

    def sums(self) -> Iterable[tuple[_Kept, Sum]]:
        """All that was counted."""
        for level in self.levels:
            yield from level.items()
        for event, found in self._merged.items():
            yield _Kept(MERGED, event=event), found

    def _sum_of(self, sample: Sample) -> Sum:
        stack = self._stack(sample)
        if stack is not None:
            thread, span = sample.thread.thread, sample.span
            key: tuple[object, ...] = (stack, thread.index, thread.name, sample.thread.running, sample.labels)
            if sample.event is not None:
                key += (sample.event.kind.name, sample.event.labels)
            if span is not None:
                key += (span.trace_id, span.span_id, span.local_root_id)
            known = self._sums.get(key)
            if known is not None:
                return known
            whole = _told_apart(sample, stack)
            for level, (sums, room) in enumerate(zip(self.levels, self._rooms, strict=True)):
                kept = _coarser(whole, level)
                found = sums.get(kept)
                if found is None and len(sums) < room:
                    found = sums[kept] = Sum(sample.time_ns)
                    if level == 0:
                        self._sums[key] = found
                if found is not None:
                    self.dropped_labels += kept != whole
                    return found
        self.dropped_labels += 1
        return self._merged.setdefault(_event_of(sample), Sum(sample.time_ns))

    def _stack(self, sample: Sample) -> Stack | None:
        """The stack that stands for all with these frames; None if there is no room for another."""
        stack, index = sample.thread.stack, sample.thread.thread.index
        last = self._last.get(index)
        if last is not None and last[0] is stack:
            return last[1]
        known = self._stacks.get((stack.frames, stack.truncated)) or self._keep(stack)
        if known is not None and sample.event is None:
            if len(self._last) >= _MOST_LAST:
                self._last.clear()
            self._last[index] = (stack, known)
        return known

    def _keep(self, stack: Stack) -> Stack | None:
        if len(stack.frames) > max(self._frames_left - self._for_shallow, _SHALLOW):
            stack = Stack(stack.frames[:_SHALLOW], truncated=True)
        key = (stack.frames, stack.truncated)
        known = self._stacks.get(key)
        if known is None and len(stack.frames) <= self._frames_left:
            self._frames_left -= len(stack.frames)
            known = self._stacks[key] = stack
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
        rested: asked at the end of a period for what is to be added to its samples; after that all threads are sampled.
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
        source: Source = Source.CONTINUOUS,
        rested: Callable[[], Iterable[Repeat]] = tuple,
        kinds: Iterable[EventKind] = (),
    ) -> None:
        self._deliver = deliver
        self._interval_ns = interval_ns
        self._endpoint_of = endpoint_of
        self._bounds = bounds
        self._now_ns = monotonic_ns
        self._source = source
        self._rested = rested
        self._kinds = tuple(kinds)
        self._lock = real_lock()  # guards what follows
        self._shares = Shares()
        self._period: _Period | None = None
        self._dropped_labels = 0

    @property
    def dropped_labels(self) -> int:
        """Samples that were merged under fewer labels than they had, in all periods."""
        return self._dropped_labels

    def begin(self, time_ns: int, period_ns: int) -> None:
        """The first period begins now, `time_ns` since the epoch; without this with the first snapshot's."""
        with self._lock:
            self._period = _Period(self._bounds, time_ns, self._now_ns(), period_ns, self._shares)

    def take(self, snapshot: Snapshot) -> None:
        """Add what a snapshot says; delivers the profile if this is the end of its period.

        One with a period of 0 was not taken at a tick: it has samples of events only.
        """
        with self._lock:
            period, now_ns = self._period, self._now_ns()
            if period is None:
                began_ns = now_ns - snapshot.period_ns
                period = self._period = _Period(
                    self._bounds, snapshot.time_ns - snapshot.period_ns, began_ns, snapshot.period_ns, self._shares
                )
            for repeat in snapshot.repeats:
                period.repeat(repeat)
            for number, sample in enumerate(snapshot.samples, 1):
                if number % _SLICE == 0:
                    let_others_run()
                period.add(sample)
            for remainder in snapshot.remainders:
                period.leave(remainder)
            for thread_index in snapshot.gone:
                period.forget(thread_index)
            period.snapshots += snapshot.period_ns > 0
            period.periods_ns += snapshot.period_ns
            period.ended_ns = now_ns
            if now_ns - period.began_ns + snapshot.period_ns // 2 < self._interval_ns:
                return
            period_ns = snapshot.period_ns or period.period_ns
            self._period = _Period(self._bounds, snapshot.time_ns, now_ns, period_ns, self._shares)
            self._shares.give()
            for repeat in self._rested():
                period.repeat(repeat)
        self._send(period)

    def rest(self) -> None:
        """Nothing was seen for a while: deliver what was gathered if its period is over, and begin no other one."""
        with self._lock:
            period = self._period
            if period is None or self._now_ns() - period.began_ns < self._interval_ns:
                return
            self._period = None
        if period.snapshots:
            self._send(period)

    def close(self, remainders: Iterable[UnattributedTime]) -> None:
        """Deliver what was gathered. There are no more snapshots; `remainders` were used since."""
        with self._lock:
            period, self._period = self._period, None
        if period is not None:
            for remainder in remainders:
                period.leave(remainder)
            self._shares.give()
            if (left_ns := self._shares.left_ns()) > 0:
                period.leave(UnattributedTime(Unseen.UNSAMPLED, 0, left_ns))
            period.ended_ns = self._now_ns()
            self._send(period)

    def _send(self, period: _Period) -> None:
        if period.dropped_labels and not self._dropped_labels:
            logger.info(
                "there are more different spans, threads or stacks than a profile holds: samples beyond them"
                " are counted without these (said once)"
            )
        self._dropped_labels += period.dropped_labels
        for profile in self._profiles(period):
            self._deliver((profile,))

    def _profiles(self, period: _Period) -> Iterator[Profile]:
        """One for each data type of which there is anything."""
        of_timer: list[Aggregate] = []
        gathered = {DataType.CPU: of_timer}
        period_ns = period.periods_ns // period.snapshots if period.snapshots else period.period_ns
        for number, (kept, found) in enumerate(period.sums(), 1):
            if number % _SLICE == 0:
                let_others_run()
            every_ns = found.period_ns // found.count if kept.event is None else None
            labels = (*_time_labels(found.first_ns, every_ns), *self._labels(kept))
            kind = None if kept.event is None else kept.event[0]
            aggregates = of_timer if kind is None else gathered.setdefault(kind.data_type, [])
            aggregates.append(
                Aggregate(
                    kept.stack,
                    labels,
                    found.count,
                    found.wall_ns,
                    found.cpu_ns,
                    kind,
                    found.event_count,
                    found.event_amount,
                )
            )
        for why, (wall_ns, cpu_ns) in period.remainders.items():
            labels = _time_labels(period.time_ns, period_ns)
            of_timer.append(Aggregate(UNSEEN[why], labels, 0, wall_ns, cpu_ns))
        duration_ns = max(period.ended_ns - period.began_ns, 0)
        dropped = Counter(period.dropped_elsewhere)
        dropped[DataType.CPU] = period.dropped_labels - dropped.total()
        for data_type, found_of_it in gathered.items():
            if found_of_it:
                yield Profile(
                    period.time_ns,
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

    def _labels(self, kept: _Kept) -> tuple[Label, ...]:
        found: list[Label] = [("source.event.name", "timer")] if kept.state else []
        if kept.event is not None:
            found = [("source.event.name", kept.event[0].name), *kept.event[1]]
        if (thread := kept.thread) is not None:
            found.append(("thread.id", thread.ident))
            if thread.native_id:
                found.append(("thread.os.id", thread.native_id))
            found.append(("thread.name", thread.name))
        if kept.state:
            found.append(("thread.state", kept.state))
        if kept.stack.truncated:
            found.append(("thread.stack.truncated", "true"))
        endpoint = kept.endpoint
        if (span := kept.span) is not None:
            found += [("trace_id", f"{span.trace_id:032x}"), ("span_id", f"{span.span_id:016x}")]
            if not span.trace_flags & _SAMPLED:
                found.append(("trace_flags", f"{span.trace_flags:02x}"))  # such a span is nowhere to be found
            if span.local_root_id:
                found.append(("local_root_span_id", f"{span.local_root_id:016x}"))
                endpoint = self._endpoint_of(span.local_root_id) or endpoint
        if endpoint:
            found.append(("endpoint", endpoint))
        return (*found, *kept.labels)


def estimated_size(profile: Profile) -> int:
    """About the bytes that a profile takes in memory; more than it has on the wire."""
    stacks = {id(aggregate.stack): len(aggregate.stack.frames) for aggregate in profile.aggregates}
    return 1000 + 1000 * len(profile.aggregates) + 8 * sum(stacks.values())


def _time_labels(time_ns: int, period_ns: int | None) -> tuple[Label, ...]:
    at: Label = ("source.event.time", time_ns // 1_000_000)
    return (at,) if period_ns is None else (at, ("source.event.period", max(period_ns // 1_000_000, 1)))


def _told_apart(sample: Sample, stack: Stack) -> _Kept:
    seen, span = sample.thread, sample.span
    endpoint = ""
    if span is not None:
        endpoint = span.endpoint
        span = SpanRef(span.trace_id, span.span_id, span.trace_flags, span.local_root_id)
    state = "RUNNABLE" if seen.running else "WAITING"
    return _Kept(stack, seen.thread, state, endpoint, span, sample.labels, _event_of(sample))


def _event_of(sample: Sample) -> _Event | None:
    return None if sample.event is None else (sample.event.kind, sample.event.labels)


def _coarser(whole: _Kept, level: int) -> _Kept:
    if level == 0:
        return whole
    if level == 1:
        return whole._replace(span=None)
    if level == 2:
        return whole._replace(span=None, thread=None, labels=())
    return _Kept(whole.stack, event=whole.event)
