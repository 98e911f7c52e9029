"""Wall and CPU time of each thread since its last sample, and the unattributed time of the process.

A `ThreadTimes` belongs to a `SnapshotBuilder` and runs on the thread that feeds the pipeline. Pure
arithmetic on given times.

The CPU time of all samples and all unattributed time add up to that of the process. Their wall time
adds up to that of the threads, as far as starts and ends between two snapshots are known. Later
snapshots correct errors of earlier ones; errors do not accumulate.

Many threads that live for less than a period are in no snapshot. So the first sample of a thread
stands for a whole period; the next one has the excess deducted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from splunk_profiler.samples import UnattributedReason, UnattributedTime
from splunk_profiler.stream.captured import StartTime

_MAX_STARTUP_NS = 2_000_000_000  # a thread of that age may still wait for its first step
_MAX_SHORT_LIVED_SNAPSHOTS = 8  # a thread in more snapshots does not stand for others that are in none
_MAX_ENDED_THREADS = 512


class ThreadTimeDelta(NamedTuple):
    """Wall and CPU time of a thread since its last sample."""

    wall_ns: int
    cpu_ns: int


@dataclass(slots=True)
class _ThreadUsage:
    """The times of one thread.

    Attributes:
        charged_until_ns: end of the wall time that is in samples; may be in the future after the first one.
        cpu_ns: CPU time used at the last capture with the thread.
        seen_ns: instant of that capture, not of its deadline.
        is_sampled: True if it has been in a sample.
        is_excluded: True if it was left out of the samples at the last capture with it.
        missing_since_ns: instant of the first snapshot without it.
        counts_since_ns: its start, if that was after the first snapshot of all.
        first_age_ns: its age at the first sample, in that case.
    """

    charged_until_ns: int
    cpu_ns: int
    seen_ns: int
    is_sampled: bool = False
    is_excluded: bool = False
    missing_since_ns: int | None = None
    counts_since_ns: int | None = None
    first_age_ns: int = 0


class ThreadTimes:
    """The times of all threads. Each snapshot calls `begin`, then `charge` for its threads, then `end`.

    Idle threads need no `charge`. Before the next one, `charge_idle` charges their idle time.
    Instants are on one monotonic clock. Charging starts with the first snapshot.
    `process_cpu_ns` includes ended threads.
    """

    def __init__(self) -> None:
        self._usage_by_thread: dict[int, _ThreadUsage] = {}
        self._missing_threads: set[int] = set()
        # Those that left last. A thread of C code comes back with its next Python code, perhaps after hours.
        self._ended_threads: dict[int, _ThreadUsage] = {}
        self._deadline_ns = self._captured_ns = self._previous_captured_ns = 0
        self._previous_deadline_ns: int | None = None
        self._deadline_before_previous_ns = self._first_deadline_ns = 0
        self._process_used_cpu_ns = 0
        self._charged_cpu_ns = 0  # part of it that is in samples or unattributed time
        self._internal_cpu_ns = self._unattributed_wall_ns = 0  # since the last `end`

    def begin(self, now_ns: int, used_cpu_ns: int, latency_ns: int) -> None:
        """Start a snapshot with the deadline `now_ns`; samples stand for the distance of deadlines.

        `used_cpu_ns` of the process was read before the threads' clocks; see `_take_unattributed`.
        `latency_ns` is the time from the deadline to the capture, at which all threads were alive.
        """
        self._process_used_cpu_ns = used_cpu_ns
        if self._previous_deadline_ns is None:
            self._charged_cpu_ns = self._process_used_cpu_ns
            self._first_deadline_ns = now_ns
        self._deadline_ns = max(now_ns, self._previous_deadline_ns or 0)
        self._captured_ns = max(now_ns + latency_ns, self._deadline_ns)

    def charge(
        self, thread: int, start_time: StartTime | None, cpu_ns: int, reason: UnattributedReason | None = None
    ) -> ThreadTimeDelta:
        """Return the times of a thread since its last sample; with a `reason`, they go into no sample.

        `thread` is its id in the operating system, or a negative number that is never reused.
        `cpu_ns` is all CPU time it has used; 0 if that cannot be read.
        """
        usage = self._find(thread, start_time, cpu_ns)
        now_ns = self._deadline_ns
        if usage is None:
            counts_since_ns, used_ns = self._first_charge(start_time, cpu_ns)
            usage = _ThreadUsage(counts_since_ns, cpu_ns, self._captured_ns)
            if self._previous_deadline_ns is not None:
                usage.counts_since_ns = counts_since_ns
        else:
            used_ns = max(cpu_ns - usage.cpu_ns, 0)  # a late capture may have read a later clock than this one
        self._usage_by_thread[thread] = usage
        wall_ns = now_ns - usage.charged_until_ns if now_ns > usage.charged_until_ns else 0
        if not usage.is_sampled and usage.counts_since_ns is not None and self._previous_deadline_ns is not None:
            usage.first_age_ns = max(self._captured_ns - usage.charged_until_ns, 0)
            wall_ns = max(wall_ns, now_ns - self._previous_deadline_ns)
        delta = ThreadTimeDelta(wall_ns, used_ns)
        usage.cpu_ns = max(cpu_ns, usage.cpu_ns)
        usage.seen_ns = self._captured_ns
        usage.missing_since_ns = None
        self._missing_threads.discard(thread)
        usage.is_excluded = reason is not None
        if reason is None:
            usage.charged_until_ns += wall_ns
            usage.is_sampled = True
            self._charged_cpu_ns += used_ns
        elif reason is UnattributedReason.INTERNAL:
            self._internal_cpu_ns += used_ns
            self._charged_cpu_ns += used_ns
        return delta

    def charge_idle(self, thread: int) -> int:
        """Return the wall time of an idle thread from its last `charge` to the last snapshot."""
        usage, until_ns = self._usage_by_thread.get(thread), self._previous_deadline_ns
        if usage is None or until_ns is None:
            return 0
        usage.seen_ns = self._previous_captured_ns
        wall_ns = max(until_ns - usage.charged_until_ns, 0)
        usage.charged_until_ns += wall_ns
        return wall_ns

    def end(self, ended_threads: Iterable[int]) -> tuple[UnattributedTime, ...]:
        """End a snapshot, in which `ended_threads` of the previous one are missing; return its unattributed time."""
        for thread in self._missing_threads:
            usage = self._ended_threads[thread] = self._usage_by_thread.pop(thread)
            lifetime_ns = _unsampled_lifetime_ns(usage)
            usage.charged_until_ns += lifetime_ns
            self._unattributed_wall_ns += lifetime_ns
        self._missing_threads.clear()
        while len(self._ended_threads) > _MAX_ENDED_THREADS:
            del self._ended_threads[next(iter(self._ended_threads))]
        for thread in ended_threads:  # one may come back: walkers leave out unreadable threads
            missing = self._usage_by_thread.get(thread)
            if missing is not None and missing.seen_ns != self._captured_ns:  # else another thread has its id
                missing.seen_ns = max(missing.seen_ns, self._previous_captured_ns)  # it may have been idle until then
                missing.missing_since_ns = self._captured_ns
                self._missing_threads.add(thread)
        before_ns = self._previous_deadline_ns
        self._deadline_before_previous_ns = self._deadline_ns if before_ns is None else before_ns
        self._previous_deadline_ns, self._previous_captured_ns = self._deadline_ns, self._captured_ns
        return self._take_unattributed()

    def close(self, now_ns: int, used_cpu_ns: int) -> tuple[UnattributedTime, ...]:
        """Return the unattributed time from the last snapshot to this instant, with the CPU time of the process."""
        now_ns = max(now_ns, self._deadline_ns)
        for usage in self._usage_by_thread.values():
            if usage.missing_since_ns is not None:
                self._unattributed_wall_ns += _unsampled_lifetime_ns(usage)
            elif usage.is_sampled:
                self._unattributed_wall_ns += max(now_ns - usage.charged_until_ns, 0)
        self._usage_by_thread.clear()
        self._missing_threads.clear()
        self._process_used_cpu_ns = used_cpu_ns
        return self._take_unattributed() if self._previous_deadline_ns is not None else ()

    def _find(self, thread: int, start_time: StartTime | None, cpu_ns: int) -> _ThreadUsage | None:
        """Return the times of a thread, perhaps of one that seemed to have ended."""
        usage, ended = self._usage_by_thread.get(thread), self._ended_threads.pop(thread, None)
        found = usage or ended
        if found is None:
            return None
        is_other = 0 < cpu_ns < found.cpu_ns if start_time is None else start_time.earliest_ns > found.seen_ns
        if is_other:
            return None  # it has a reused id
        if usage is None:
            found.cpu_ns = max(found.cpu_ns, cpu_ns - (self._deadline_ns - (self._previous_deadline_ns or 0)))
        if usage is None or found.is_excluded:
            self._leave_out_absence(found)
        return found

    def _leave_out_absence(self, usage: _ThreadUsage) -> None:
        """Leave the time in which a thread was missing or excluded out of its next sample, but for the last of it.

        Threads are excluded while they start: that time is in the first sample.
        """
        before_ns, earliest_ns = self._previous_deadline_ns or 0, self._earliest_start_ns()
        if usage.missing_since_ns is not None and usage.missing_since_ns < earliest_ns:
            usage.charged_until_ns = usage.counts_since_ns = before_ns  # its earlier life is over
            usage.is_sampled = False
        elif usage.is_sampled:
            absence_ns = max(before_ns - usage.charged_until_ns, 0)
            usage.charged_until_ns += absence_ns
            self._unattributed_wall_ns += absence_ns
        else:
            usage.charged_until_ns = max(usage.charged_until_ns, earliest_ns)

    def _earliest_start_ns(self) -> int:
        """Return the start from which a thread is charged that was not in the previous snapshot, and is older."""
        # A thread that was started before the previous snapshot may have waited for the GIL since then. Beside busy
        # threads, and with few processors, this may take many snapshots.
        recently_ns = min(self._deadline_before_previous_ns, self._deadline_ns - _MAX_STARTUP_NS)
        return max(recently_ns, self._first_deadline_ns)

    def _first_charge(self, start_time: StartTime | None, cpu_ns: int) -> tuple[int, int]:
        """Return the start of charging and the CPU time (ns) of a thread that was not in the previous snapshot."""
        before_ns, now_ns = self._previous_deadline_ns, self._deadline_ns
        if before_ns is None:
            return now_ns, 0
        counts_since_ns = self._earliest_start_ns()
        if start_time is not None and start_time.latest_ns > counts_since_ns:
            earliest_ns = max(start_time.earliest_ns, counts_since_ns)
            latest_ns = max(min(start_time.latest_ns, self._captured_ns), earliest_ns)
            return min((earliest_ns + latest_ns) // 2, self._captured_ns), cpu_ns
        if start_time is None:  # most likely a short-lived thread, which ended before its start was read
            return before_ns, min(cpu_ns, now_ns - before_ns)
        return before_ns, 0  # an old thread that runs Python code for the first time; its CPU time is unattributed

    def _take_unattributed(self) -> tuple[UnattributedTime, ...]:
        # Threads go on between the reading of the process's clock and of their own. With the process's clock first,
        # that time is counted by the next call. In the other order it would be counted twice. A thread that comes
        # back is charged with what was unattributed while it was missing: then this is negative.
        unsampled_ns = self._process_used_cpu_ns - self._charged_cpu_ns
        self._charged_cpu_ns += unsampled_ns
        found = (
            UnattributedTime(UnattributedReason.INTERNAL, 0, self._internal_cpu_ns),
            UnattributedTime(UnattributedReason.UNSAMPLED, self._unattributed_wall_ns, unsampled_ns),
        )
        self._internal_cpu_ns = self._unattributed_wall_ns = 0
        return tuple(unattributed for unattributed in found if unattributed.wall_ns or unattributed.cpu_ns)


def _unsampled_lifetime_ns(usage: _ThreadUsage) -> int:
    """Estimate the life of an ended thread after the end of its samples.

    A thread in one snapshot stands also for threads in none, so its whole life counts as one period. A
    thread in many snapshots counts as alive until the middle between the last with it and the first
    without it. In between, the estimate goes from one rule to the other in steps; it is off by 1 % at
    most, for lives of any length.
    """
    if not usage.is_sampled or usage.missing_since_ns is None:
        return 0
    gap_ns = usage.missing_since_ns - usage.seen_ns
    after_ns = gap_ns / 2
    if usage.counts_since_ns is not None and gap_ns > 0:
        more = round((usage.seen_ns - usage.counts_since_ns - usage.first_age_ns) / gap_ns)  # snapshots after the first
        after_ns += max(1 - more / _MAX_SHORT_LIVED_SNAPSHOTS, 0) * (max(gap_ns - usage.first_age_ns, 0) - after_ns)
    return max(usage.seen_ns - usage.charged_until_ns + int(after_ns), 0)
