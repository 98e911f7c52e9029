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
    Repeat,
    Sample,
    Snapshot,
    SpanRef,
    Stack,
    ThreadSample,
    UnattributedTime,
    Unseen,
)
from splunk_profiler.pipeline.idle_threads import Rested, Watch
from splunk_profiler.pipeline.stack_filters import has_internal_name, is_internal, waiting_on
from splunk_profiler.pipeline.thread_registry import Life, boottime_ns, new_life
from splunk_profiler.pipeline.thread_times import Spent, ThreadTimes
from splunk_profiler.raw import RUNS, RawEvent, RawSnapshot, RawThread
from splunk_profiler.system.threads import let_others_run

Associate = Callable[[Any], SpanRef | None]
Labels = tuple[tuple[str, str], ...]
_INTERNAL = Stack((Frame("[process]", Unseen.INTERNAL.value, "unknown", None),), truncated=False)
_SLICE = 64  # threads between two offers of the GIL
_MOST_LIVES = 16_384


class SnapshotBuilder:
    """Raw snapshots → `Snapshot`s.

    Args:
        associate: OpenTelemetry context → the span that is active in it, or None.
        watch: tells which threads have changed; those that rest are in `Snapshot.repeats`.
        period_ns: distance between two snapshots, where a raw one does not say its own.
        include_internal: also keep the profiler's, the SDK's and gRPC's threads.
        labels_of: what the walker found in the variable of the user's labels → what a sample carries of it.
    """

    def __init__(
        self,
        associate: Associate,
        watch: Watch,
        period_ns: int,
        *,
        include_internal: bool = False,
        labels_of: Callable[[Any], Labels] = lambda _: (),
    ) -> None:
        self._associate = associate
        self._labels_of = labels_of
        self._watch = watch
        self._period_ns = period_ns
        self._include_internal = include_internal
        self._accounts = ThreadTimes()
        self._lives: dict[int, Life] = {}  # of the threads of the last snapshot
        self._gone: dict[int, Life] = {}  # of those of the one before that are not in it: events may be older
        self._passing: dict[int, Life] = {}  # of others that were seen since
        self._tells_all = True  # the next snapshot
        self._next_index = 1

    def prime(self, raw: RawSnapshot) -> None:
        """Remember the threads of `raw` and the CPU they have used, so that the next snapshot can tell who ran."""
        self.snapshot(raw)
        self.rested()  # nobody has had these samples

    def snapshot(self, raw: RawSnapshot) -> Snapshot:
        """`raw` with all that is known about its threads. Threads are ordered by the age of their thread state."""
        tells_all, self._tells_all = self._tells_all, True  # should this fail
        missed = self._watch.rested() if tells_all else ()  # since a snapshot that has failed after it was told
        period_ns = raw.period_ns or self._period_ns
        changed, left = self._watch.changes(raw.threads, period_ns)
        accounts, lives = self._accounts, self._lives
        captured_ns = on_boottime_ns(raw.time_ns)
        accounts.begin(captured_ns - raw.latency_ns, raw.process_cpu_ns, raw.latency_ns)
        repeats = [*self._repeats(missed), *self._repeats(left)]
        seen_lives = {} if tells_all else lives
        samples = []
        for number, (seen, os_priority, rested, rested_ns) in enumerate(changed, 1):
            if number % _SLICE == 0:
                let_others_run()
            life = seen_lives[seen.key] = self._life(seen, captured_ns, lives.get(seen.key))
            if rested and life.is_sampled:
                repeats.append(Repeat(life.thread.index, rested, rested_ns, accounts.rest(life.account)))
            life.cpu_ns = seen.cpu_ns or life.cpu_ns
            stack = seen.stack
            why_not = Unseen.UNSAMPLED if not stack.frames else None
            if why_not is None and not self._include_internal and is_left_out(stack, life.thread.name):
                why_not = Unseen.INTERNAL
            spent = accounts.settle(life.account, life.birth, seen.cpu_ns, why_not)
            life.is_sampled = why_not is None
            if why_not is not None:
                continue
            running = is_running(seen, spent)
            sample = ThreadSample(
                life.thread,
                stack,
                life.cpu_ns,
                life.age_ns(captured_ns),
                os_priority,
                running,
                "" if running else stack.derive(waiting_on),
                spent.wall_ns,
                spent.cpu_ns,
                None if seen.state is None else _periods_ns(spent.wall_ns, period_ns) if seen.state == RUNS else 0,
            )
            span = None if seen.context is None else self._associate(seen.context)
            labels = () if seen.labels is None else self._labels_of(seen.labels)
            samples.append(Sample(raw.time_ns, period_ns, sample, span, labels))
        self._passing.clear()
        gone = lives.keys() - seen_lives.keys() if tells_all else {key for key, _, _ in left}
        self._gone = {key: lives.pop(key) for key in gone if key in lives}
        self._lives = seen_lives
        remainders = accounts.end(life.account for life in self._gone.values())
        self._tells_all = False
        return Snapshot(
            raw.time_ns,
            period_ns,
            tuple(samples),
            remainders,
            repeats=tuple(repeats),
            gone=tuple(life.thread.index for life in self._gone.values()),
        )

    def rested(self) -> tuple[Repeat, ...]:
        """What is to be added to samples of the snapshots so far; the next one tells of all threads anew."""
        self._tells_all = True
        return tuple(self._repeats(self._watch.rested()))

    def _repeats(self, rested: Sequence[Rested]) -> Iterator[Repeat]:
        for key, count, period_ns in rested:
            life = self._lives.get(key)
            if count and life is not None and life.is_sampled:
                yield Repeat(life.thread.index, count, period_ns, self._accounts.rest(life.account))

    def lives(self, threads: Sequence[RawThread], time_ns: int) -> list[Life]:
        """What is known of some threads, seen at that time of day between two snapshots of all."""
        if len(self._passing) > _MOST_LIVES:
            self._passing.clear()  # there are no snapshots of all, which would do it
        captured_ns = on_boottime_ns(time_ns)
        return [self._between(seen, captured_ns) for seen in threads]

    def _between(self, seen: RawThread, captured_ns: int) -> Life:
        known = self._lives.get(seen.key)
        life = self._life(seen, captured_ns, known)
        if known is None:
            self._passing[seen.key] = life
        return life

    def event_samples(self, events: Sequence[RawEvent]) -> list[Sample]:
        """A sample for each event; of one on an internal thread, in place of its stack that it was there."""
        samples = []
        for happened in events:
            seen = happened.thread
            life = self._gone.get(seen.key)
            if life is None:
                life = self._between(seen, on_boottime_ns(happened.time_ns))
            else:
                life.follow(seen.python_thread)  # `threading` may not have known it yet when it was seen last
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

    def remainders(self) -> tuple[UnattributedTime, ...]:
        """What the process has used since the last snapshot; there must be none after this."""
        return self._accounts.close(boottime_ns())

    def _life(self, seen: RawThread, captured_ns: int, life: Life | None) -> Life:
        life = life or self._passing.get(seen.key)
        if life is not None:
            life.follow(seen.python_thread)
            return life
        life = new_life(seen.ident, seen.native_id, seen.python_thread, self._next_index, captured_ns)
        self._next_index += 1
        return life


def is_left_out(stack: Stack, name: str) -> bool:
    """Whether a thread is the profiler's, the SDK's or gRPC's."""
    return stack.derive(is_internal) or (stack.truncated and has_internal_name(name))


def is_running(seen: RawThread, spent: Spent) -> bool:
    """Whether a thread ran at the capture; where the walker cannot tell: whether it did most of the time before."""
    return spent.cpu_ns * 2 > spent.wall_ns if seen.state is None else seen.state > 0


def _periods_ns(wall_ns: int, period_ns: int) -> int:
    """Of the deadlines that a sample stands for: its own, and those before it that have passed by."""
    return max(round(wall_ns / period_ns), 1) * period_ns


def on_boottime_ns(time_ns: int) -> int:
    """A moment that the time of day says, on the boot-time clock; never one to come, whatever is done to the former."""
    return boottime_ns() - max(time.time_ns() - time_ns, 0)
