"""The step from captured snapshots to samples with states, times and ages.

One thread runs all of it. Pure arithmetic on what the stream says; imports neither configuration nor OpenTelemetry.

Specification: Splunk profiling conventions, "Call Stack Sampling" and "Call Stack Filtering".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from splunk_profiler.model import Stack
from splunk_profiler.pipeline.pseudo_stacks import UNATTRIBUTED_STACKS
from splunk_profiler.pipeline.stack_filters import GIL, has_internal_name, hides_first_function, is_internal, waiting_on
from splunk_profiler.pipeline.thread_states import IdleTime, ThreadStates
from splunk_profiler.pipeline.thread_times import ThreadTimeDelta, ThreadTimes
from splunk_profiler.raw import STATE_READY, STATE_RUNNING, STATE_WANTS_GIL
from splunk_profiler.samples import (
    IdleRepeat,
    InstrumentationSource,
    Sample,
    Snapshot,
    Thread,
    ThreadSample,
    UnattributedReason,
    UnattributedTime,
)
from splunk_profiler.stream.captured import CapturedEvent, CapturedSnapshot, CapturedThread, ThreadState, quiet_snapshot
from splunk_profiler.stream.records import EndRecord, QuietRecord

_RUNNING_STATES = (STATE_READY, STATE_RUNNING)
_NO_TIME = ThreadTimeDelta(0, 0)


@dataclass(slots=True)
class _LastSample:
    """The last report of a thread: its name and stack, the CPU time it had used, and why it gave no sample.

    `seen` is what the samples of a thread without times share for as long as its `state` is the same object.
    """

    info: CapturedThread
    state: ThreadState | None = None
    seen: ThreadSample | None = None
    thread: Thread | None = None
    stack: Stack | None = None
    cpu_ns: int = 0
    reason: UnattributedReason | None = None


class SnapshotBuilder:
    """Turns captured snapshots into `Snapshot`s.

    Args:
        period_ns: distance of two snapshots, for those without a period.
        skips_idle: report idle threads by `Snapshot.idle_repeats` only; else each snapshot has all threads.
        include_internal: keep the threads of the profiler, the SDK and gRPC.
        has_times: samples have wall and CPU time; else these are only read of threads whose state is not known.
    """

    def __init__(
        self, period_ns: int, *, skips_idle: bool, include_internal: bool = False, has_times: bool = True
    ) -> None:
        self._period_ns = period_ns
        self._has_times = has_times
        self._include_internal = include_internal
        self._states = ThreadStates(skips_idle=skips_idle)
        self._thread_times = ThreadTimes()
        self._last_samples: dict[int, _LastSample] = {}  # threads of the last snapshot
        self._ended: dict[int, _LastSample] = {}  # left in the last snapshot; late events may refer to them

    def states(self) -> Iterable[ThreadState]:
        """Return the states of all threads of the last snapshot."""
        return self._states.states()

    def set_baseline(self, captured: CapturedSnapshot) -> None:
        """Record the threads and their CPU times for comparison with the next snapshot."""
        self.snapshot(captured)
        self.take_idle_repeats()  # nothing exports these samples, so the next snapshot samples all threads

    def snapshot(self, captured: CapturedSnapshot) -> Snapshot:
        """Return the samples and times of a snapshot of all threads, oldest thread first."""
        period_ns = captured.period_ns or self._period_ns
        changes = self._states.update(captured, period_ns)
        thread_times = self._thread_times
        thread_times.begin(captured.instant_ns - captured.latency_ns, captured.process_cpu_ns, captured.latency_ns)
        idle_repeats = tuple(self._repeats(changes.idle))
        samples = []
        for state in changes.changed:
            sample = self._sample(captured, state, period_ns)
            if sample is not None:
                samples.append(sample)
        self._ended = {index: self._last_samples.pop(index) for index in changes.ended if index in self._last_samples}
        unattributed = thread_times.end(_usage_key(last.info) for last in self._ended.values())
        return Snapshot(
            captured.time_ns,
            period_ns,
            tuple(samples),
            unattributed,
            idle_repeats=idle_repeats,
            ended_threads=tuple(self._ended),
            gil_wait_ns=captured.gil_wait_ns,
        )

    def quiet(self, deadlines: QuietRecord) -> Iterator[Snapshot]:
        """Yield what stands for snapshots in which all threads are as in the last one.

        With `skips_idle` it is one, with the samples of the first of them. In the others the threads are counted.
        """
        count = deadlines.deadline_count
        if not self._states.skips_idle:
            yield from (self.snapshot(quiet_snapshot(deadlines, number)) for number in range(1, count + 1))
            return
        first = self.snapshot(quiet_snapshot(deadlines, 1))
        self._states.repeat(count - 1, deadlines.period_ns)
        self._thread_times.begin(deadlines.instant_ns, deadlines.process_cpu_ns, 0)
        unattributed = self._thread_times.end(())
        yield first._replace(snapshot_count=count, unattributed=first.unattributed + unattributed)

    def take_idle_repeats(self) -> tuple[IdleRepeat, ...]:
        """Return the repeats up to the last snapshot; the next one samples all threads again."""
        return tuple(self._repeats(self._states.take_idle_times()))

    def event_sample(self, captured: CapturedEvent) -> Sample:
        """Return the sample of an event; on an internal thread it has a pseudo stack."""
        state, span, labels = captured.thread, captured.thread.span, captured.thread.labels
        stack = state.stack
        if not (self._include_internal or stack.frames) or self.is_excluded(state):
            stack, span, labels = UNATTRIBUTED_STACKS[UnattributedReason.INTERNAL], None, ()
        last = self._last_samples.get(state.number) or self._ended.get(state.number)
        cpu_ns = 0 if last is None else last.cpu_ns
        sample = ThreadSample(state.info.thread, stack, cpu_ns, None, 0, running=True, waiting_on="")
        return Sample(captured.time_ns, self._period_ns, sample, span, labels, captured.event)

    def unattributed(self, end: EndRecord) -> tuple[UnattributedTime, ...]:
        """Return the time that the process has used since the last snapshot; call it after that one only."""
        return self._thread_times.close(end.instant_ns, end.process_cpu_ns)

    def is_excluded(self, state: ThreadState) -> bool:
        """Return True for a thread of the profiler, the SDK or gRPC, unless these are included."""
        stack = state.stack
        return not self._include_internal and (
            stack.derive(is_internal) or (hides_first_function(stack) and has_internal_name(state.info.thread.name))
        )

    def _sample(self, captured: CapturedSnapshot, state: ThreadState, period_ns: int) -> Sample | None:
        """Charge the times of a thread since its last sample; return None for one that is not sampled."""
        thread, stack = state.info.thread, state.stack
        last = self._last_samples.get(thread.index)
        if last is None:
            last = self._last_samples[thread.index] = _LastSample(state.info)
        if last.state is state and last.thread is thread and last.seen is not None:
            return _make_sample(captured, period_ns, last.seen, state)
        if last.stack is not stack or last.thread is not thread:
            last.stack, last.thread, last.reason = stack, thread, self._reason_of(state)
        reason = last.reason
        last.cpu_ns = state.cpu_ns or last.cpu_ns
        delta, needs_times = _NO_TIME, self._has_times or state.state is None
        if needs_times:
            delta = self._thread_times.charge(_usage_key(state.info), state.info.start_time, state.cpu_ns, reason)
        if reason is not None:
            return None
        weight_ns = _cpu_weight_ns(state, delta, period_ns) if self._has_times else None
        seen = make_thread_sample(state, delta, last.cpu_ns, weight_ns)
        last.state, last.seen = state, None if needs_times else seen
        return _make_sample(captured, period_ns, seen, state)

    def _reason_of(self, state: ThreadState) -> UnattributedReason | None:
        """Return why a thread is not sampled, or None."""
        if not state.stack.frames:
            return UnattributedReason.UNSAMPLED
        return UnattributedReason.INTERNAL if self.is_excluded(state) else None

    def _repeats(self, idle_times: Sequence[IdleTime]) -> Iterator[IdleRepeat]:
        for index, count, period_ns in idle_times:
            last = self._last_samples.get(index)
            if last is not None and last.reason is None:
                wall_ns = self._thread_times.charge_idle(_usage_key(last.info))
                yield IdleRepeat(index, count, period_ns, wall_ns)


def make_thread_sample(
    state: ThreadState, delta: ThreadTimeDelta, cpu_ns: int, cpu_weight_ns: int | None = None
) -> ThreadSample:
    """Return a sample; without a known state, a thread runs if it used over half of the time before."""
    running = delta.cpu_ns * 2 > delta.wall_ns if state.state is None else state.state in _RUNNING_STATES
    wants_gil = state.state == STATE_WANTS_GIL
    start = state.info.start_time
    return ThreadSample(
        state.info.thread,
        state.stack,
        cpu_ns,
        None if start is None else start.earliest_ns,
        state.nice,
        running,
        "" if running else GIL if wants_gil else state.stack.derive(waiting_on),
        delta.wall_ns,
        delta.cpu_ns,
        cpu_weight_ns,
    )


def _make_sample(captured: CapturedSnapshot, period_ns: int, seen: ThreadSample, state: ThreadState) -> Sample:
    source = InstrumentationSource.CONTINUOUS
    return Sample(captured.time_ns, period_ns, seen, state.span, state.labels, None, source, captured.instant_ns)


def _usage_key(info: CapturedThread) -> int:
    """Return the key of a thread in `ThreadTimes`."""
    return info.thread.native_id or -info.thread.index


def _cpu_weight_ns(state: ThreadState, delta: ThreadTimeDelta, period_ns: int) -> int | None:
    if state.state is None:
        return None
    if state.state != STATE_RUNNING:
        return 0
    # For its own deadline and those that passed before it, unless they did while the process was frozen.
    ran_ns = min(delta.wall_ns, delta.cpu_ns + period_ns)
    return round(ran_ns / period_ns) * period_ns or period_ns
