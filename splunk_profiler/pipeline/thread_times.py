"""Wall and CPU time of each thread since its last sample, and the time of the process that is in no sample.

One `ThreadTimes` belongs to one `SnapshotBuilder` and runs on its thread, the sampling worker's. Pure arithmetic on
times that it is given, apart from the process's CPU clock; imports the model only.

The values of all samples and remainders together add up: their CPU time is the process's, because what is on no
sample is a remainder, and their wall time that of the threads, as far as it can be known when a thread has begun or
ended between two snapshots. Whatever a snapshot gets wrong is corrected by the next ones; errors do not accumulate.

Of threads that live for less than the time between two snapshots only a part is seen. So a thread's first sample stands
for all of that time, as it may be the only one; what that was too much is taken off the next one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from splunk_profiler.model import UnattributedReason, UnattributedTime

_MAX_STARTUP_NS = 2_000_000_000  # a thread that old may not have got to its first step yet
_MAX_SHORT_LIVED_SNAPSHOTS = (
    8  # snapshots: of a thread that was in more it does not matter that others like it may have been in none
)


@dataclass(frozen=True, slots=True)
class StartTime:
    """When a thread was started, as far as the system tells: from `earliest_ns` on, before `latest_ns`."""

    earliest_ns: int
    latest_ns: int


class ThreadTimeDelta(NamedTuple):
    """What a thread has used since its last sample."""

    wall_ns: int
    cpu_ns: int


@dataclass(slots=True)
class _ThreadUsage:
    """What is known of a thread.

    Attributes:
        charged_until_ns: its wall time until this instant is in samples; to come, if the first one stands for more.
        cpu_ns: CPU time that it had used when it was seen last.
        seen_ns: when that was; of the capture, not of its deadline.
        is_sampled: it has been in a sample.
        missing_since_ns: the first snapshot without it.
        counts_since_ns: when it has begun, if that was after the first snapshot of all.
        first_age_ns: how old it was at its first sample, in that case.
    """

    charged_until_ns: int
    cpu_ns: int
    seen_ns: int
    is_sampled: bool = False
    missing_since_ns: int | None = None
    counts_since_ns: int | None = None
    first_age_ns: int = 0


class ThreadTimes:
    """Keeps the accounts of all threads of the process: `begin`, `charge` for each thread, `end`, again and again.

    A thread that rests need not be settled, if it is said who is gone. What it has lived while it rested is asked for
    (`charge_idle`) before it is settled again.

    Instants are on one clock that never goes back. The first snapshot opens the accounts: nothing is used by then.

    Args:
        process_cpu_ns: CPU time of the whole process, threads that have ended included.
    """

    def __init__(self, process_cpu_ns: Callable[[], int] = time.process_time_ns) -> None:
        self._process_cpu_ns = process_cpu_ns
        self._usage_by_thread: dict[int, _ThreadUsage] = {}
        self._missing_threads: set[int] = set()
        self._deadline_ns = self._captured_ns = self._previous_captured_ns = 0
        self._previous_deadline_ns: int | None = None
        self._deadline_before_previous_ns = self._first_deadline_ns = 0
        self._process_used_cpu_ns = self._charged_cpu_ns = (
            0  # of the process: all, and what is in a sample or a remainder
        )
        self._internal_cpu_ns = 0  # since the last remainders
        self._unattributed_wall_ns = 0

    def begin(self, now_ns: int, used_cpu_ns: int | None = None, latency_ns: int = 0) -> None:
        """A snapshot was taken.

        Args:
            now_ns: at which deadline: samples stand for the distance of these.
            used_cpu_ns: CPU time of the process, as of before the threads' clocks were read: see `_take_unattributed`.
                None: they are read after this.
            latency_ns: how long after the deadline the threads were seen: so long they have lived at least.
        """
        self._process_used_cpu_ns = self._process_cpu_ns() if used_cpu_ns is None else used_cpu_ns
        if self._previous_deadline_ns is None:
            self._charged_cpu_ns = self._process_used_cpu_ns
            self._first_deadline_ns = now_ns
        self._deadline_ns = max(now_ns, self._previous_deadline_ns or 0)
        self._captured_ns = max(now_ns + latency_ns, self._deadline_ns)

    def charge(
        self, thread: int, start_time: StartTime | None, cpu_ns: int, reason: UnattributedReason | None = None
    ) -> ThreadTimeDelta:
        """What a thread of the snapshot has used.

        Args:
            thread: the operating system's id of it, or a negative number that is never given twice.
            start_time: if it is known.
            cpu_ns: CPU time that it has used in its life; 0 if that cannot be read.
            reason: None if the answer goes into a sample.
        """
        usage = self._usage_by_thread.get(thread)
        if usage is not None and 0 < cpu_ns < usage.cpu_ns:
            usage = None  # another thread with an id that was given again
        now_ns = self._deadline_ns
        if usage is None:
            counts_since_ns, used_ns = self._first_charge(start_time, cpu_ns)
            usage = self._usage_by_thread[thread] = _ThreadUsage(counts_since_ns, cpu_ns, self._captured_ns)
            if self._previous_deadline_ns is not None:
                usage.counts_since_ns = counts_since_ns
        else:
            used_ns = cpu_ns - usage.cpu_ns if cpu_ns else 0
        wall_ns = max(now_ns - usage.charged_until_ns, 0)
        if not usage.is_sampled and usage.counts_since_ns is not None and self._previous_deadline_ns is not None:
            usage.first_age_ns = max(self._captured_ns - usage.charged_until_ns, 0)
            wall_ns = max(wall_ns, now_ns - self._previous_deadline_ns)
        delta = ThreadTimeDelta(wall_ns, used_ns)
        usage.cpu_ns = cpu_ns or usage.cpu_ns
        usage.seen_ns = self._captured_ns
        usage.missing_since_ns = None
        self._missing_threads.discard(thread)
        if reason is None:  # else the wall time waits for the next sample: threads are left out while they start, too
            usage.charged_until_ns += wall_ns
            usage.is_sampled = True
            self._charged_cpu_ns += used_ns
        elif reason is UnattributedReason.INTERNAL:
            self._internal_cpu_ns += used_ns
            self._charged_cpu_ns += used_ns
        return delta

    def charge_idle(self, thread: int) -> int:
        """Wall time of a thread since it was settled, until the last snapshot; it has rested in all of them since."""
        usage, until_ns = self._usage_by_thread.get(thread), self._previous_deadline_ns
        if usage is None or until_ns is None:
            return 0
        usage.seen_ns = self._previous_captured_ns
        wall_ns = max(until_ns - usage.charged_until_ns, 0)
        usage.charged_until_ns += wall_ns
        return wall_ns

    def end(self, ended_threads: Iterable[int] | None = None) -> tuple[UnattributedTime, ...]:
        """All threads of the snapshot that do not rest are settled: what is left.

        Args:
            ended_threads: those that were in the snapshot before and are not in this one; None: whoever was not
                settled.
        """
        if ended_threads is None:
            ended_threads = [
                thread for thread, usage in self._usage_by_thread.items() if usage.seen_ns != self._captured_ns
            ]
        for thread in self._missing_threads:
            self._unattributed_wall_ns += _unsampled_lifetime_ns(self._usage_by_thread.pop(thread))
        self._missing_threads.clear()
        for thread in ended_threads:  # it may be back: walkers leave out a thread they cannot read
            usage = self._usage_by_thread.get(thread)
            if usage is not None and usage.seen_ns != self._captured_ns:  # else another one has its id now
                usage.seen_ns = max(usage.seen_ns, self._previous_captured_ns)  # it may have rested since
                usage.missing_since_ns = self._captured_ns
                self._missing_threads.add(thread)
        self._deadline_before_previous_ns = (
            self._deadline_ns if self._previous_deadline_ns is None else self._previous_deadline_ns
        )
        self._previous_deadline_ns, self._previous_captured_ns = self._deadline_ns, self._captured_ns
        return self._take_unattributed()

    def close(self, now_ns: int) -> tuple[UnattributedTime, ...]:
        """There are no more snapshots: what is left until this instant."""
        now_ns = max(now_ns, self._deadline_ns)
        for usage in self._usage_by_thread.values():
            if usage.missing_since_ns is not None:
                self._unattributed_wall_ns += _unsampled_lifetime_ns(usage)
            elif usage.is_sampled:
                self._unattributed_wall_ns += max(now_ns - usage.charged_until_ns, 0)
        self._usage_by_thread.clear()
        self._missing_threads.clear()
        self._process_used_cpu_ns = self._process_cpu_ns()
        return self._take_unattributed() if self._previous_deadline_ns is not None else ()

    def _first_charge(self, start_time: StartTime | None, cpu_ns: int) -> tuple[int, int]:
        """Since when a thread counts that was not in the snapshot before, and the CPU time that it has used since."""
        before_ns, now_ns = self._previous_deadline_ns, self._deadline_ns
        if before_ns is None:
            return now_ns, 0
        # One that was born before that snapshot may have waited for the GIL then, before its first step: beside busy
        # threads, and where processors are scarce, for many a snapshot.
        counts_since_ns = max(min(self._deadline_before_previous_ns, now_ns - _MAX_STARTUP_NS), self._first_deadline_ns)
        if start_time is not None and start_time.latest_ns > counts_since_ns:
            earliest_ns, latest_ns = (
                max(start_time.earliest_ns, counts_since_ns),
                min(start_time.latest_ns, self._captured_ns),
            )
            return min((earliest_ns + max(latest_ns, earliest_ns)) // 2, self._captured_ns), cpu_ns
        # An old thread that has not run Python code before. What it had used by then is in the remainders.
        return before_ns, min(cpu_ns, now_ns - before_ns)

    def _take_unattributed(self) -> tuple[UnattributedTime, ...]:
        # The threads go on while clocks are read. What they use between the process's clock and their own is missing
        # here for now; the other way round it would be in a remainder now and in a sample the next time.
        unsampled_ns = max(self._process_used_cpu_ns - self._charged_cpu_ns, 0)
        self._charged_cpu_ns += unsampled_ns
        found = (
            UnattributedTime(UnattributedReason.INTERNAL, 0, self._internal_cpu_ns),
            UnattributedTime(UnattributedReason.UNSAMPLED, self._unattributed_wall_ns, unsampled_ns),
        )
        self._internal_cpu_ns = self._unattributed_wall_ns = 0
        return tuple(
            unattributed_time for unattributed_time in found if unattributed_time.wall_ns or unattributed_time.cpu_ns
        )


def _unsampled_lifetime_ns(usage: _ThreadUsage) -> int:
    """How long a thread is taken to have lived after what is in its samples: it was in one snapshot, not in the next.

    Of threads that are in one snapshot, if they are in any, each has to stand for those that are in none: it has lived
    for as long as there is between two snapshots. One that was in many has lived until the middle, whenever it had
    begun. From the one rule to the other in steps: that is off by a hundredth at most, for lives of any length.
    """
    if not usage.is_sampled or usage.missing_since_ns is None:
        return 0
    gap_ns = usage.missing_since_ns - usage.seen_ns
    after_ns = gap_ns / 2
    if usage.counts_since_ns is not None and gap_ns > 0:
        more = round((usage.seen_ns - usage.counts_since_ns - usage.first_age_ns) / gap_ns)  # snapshots than one
        after_ns += max(1 - more / _MAX_SHORT_LIVED_SNAPSHOTS, 0) * (max(gap_ns - usage.first_age_ns, 0) - after_ns)
    return max(usage.seen_ns - usage.charged_until_ns + int(after_ns), 0)
