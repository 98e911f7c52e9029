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

from splunk_profiler.model import UnattributedTime, Unseen

_YOUNG_NS = 2_000_000_000  # a thread that old may not have got to its first step yet
_FEW = 8  # snapshots: of a thread that was in more it does not matter that others like it may have been in none


@dataclass(frozen=True, slots=True)
class Birth:
    """When a thread was started, as far as the system tells: from `earliest_ns` on, before `latest_ns`."""

    earliest_ns: int
    latest_ns: int


class Spent(NamedTuple):
    """What a thread has used since its last sample."""

    wall_ns: int
    cpu_ns: int


@dataclass(slots=True)
class _Account:
    """What is known of a thread.

    Attributes:
        settled_ns: its wall time until this instant is in samples; to come, if the first one stands for more.
        cpu_ns: CPU time that it had used when it was seen last.
        seen_ns: when that was; of the capture, not of its deadline.
        is_sampled: it has been in a sample.
        missing_since_ns: the first snapshot without it.
        since_ns: when it has begun, if that was after the first snapshot of all.
        first_age_ns: how old it was at its first sample, in that case.
    """

    settled_ns: int
    cpu_ns: int
    seen_ns: int
    is_sampled: bool = False
    missing_since_ns: int | None = None
    since_ns: int | None = None
    first_age_ns: int = 0


class ThreadTimes:
    """Keeps the accounts of all threads of the process: `begin`, `settle` for each thread, `end`, again and again.

    A thread that rests need not be settled, if it is said who is gone. What it has lived while it rested is asked for
    (`rest`) before it is settled again.

    Instants are on one clock that never goes back. The first snapshot opens the accounts: nothing is used by then.

    Args:
        process_cpu_ns: CPU time of the whole process, threads that have ended included.
    """

    def __init__(self, process_cpu_ns: Callable[[], int] = time.process_time_ns) -> None:
        self._process_cpu_ns = process_cpu_ns
        self._accounts: dict[int, _Account] = {}
        self._missing: set[int] = set()
        self._now_ns = self._captured_ns = self._captured_before_ns = 0
        self._before_ns: int | None = None
        self._last_but_one_ns = self._opened_ns = 0
        self._used_cpu_ns = self._settled_cpu_ns = 0  # of the process: all, and what is in a sample or a remainder
        self._internal_cpu_ns = 0  # since the last remainders
        self._wall_ns = 0

    def begin(self, now_ns: int, used_cpu_ns: int | None = None, latency_ns: int = 0) -> None:
        """A snapshot was taken.

        Args:
            now_ns: at which deadline: samples stand for the distance of these.
            used_cpu_ns: CPU time of the process, as of before the threads' clocks were read: see `_remainders`. None:
                they are read after this.
            latency_ns: how long after the deadline the threads were seen: so long they have lived at least.
        """
        self._used_cpu_ns = self._process_cpu_ns() if used_cpu_ns is None else used_cpu_ns
        if self._before_ns is None:
            self._settled_cpu_ns = self._used_cpu_ns
            self._opened_ns = now_ns
        self._now_ns = max(now_ns, self._before_ns or 0)
        self._captured_ns = max(now_ns + latency_ns, self._now_ns)

    def settle(self, thread: int, birth: Birth | None, cpu_ns: int, why_not: Unseen | None = None) -> Spent:
        """What a thread of the snapshot has used.

        Args:
            thread: the operating system's id of it, or a negative number that is never given twice.
            birth: if it is known.
            cpu_ns: CPU time that it has used in its life; 0 if that cannot be read.
            why_not: None if the answer goes into a sample.
        """
        account = self._accounts.get(thread)
        if account is not None and 0 < cpu_ns < account.cpu_ns:
            account = None  # another thread with an id that was given again
        now_ns = self._now_ns
        if account is None:
            since_ns, used_ns = self._first(birth, cpu_ns)
            account = self._accounts[thread] = _Account(since_ns, cpu_ns, self._captured_ns)
            if self._before_ns is not None:
                account.since_ns = since_ns
        else:
            used_ns = cpu_ns - account.cpu_ns if cpu_ns else 0
        wall_ns = max(now_ns - account.settled_ns, 0)
        if not account.is_sampled and account.since_ns is not None and self._before_ns is not None:
            account.first_age_ns = max(self._captured_ns - account.settled_ns, 0)
            wall_ns = max(wall_ns, now_ns - self._before_ns)
        spent = Spent(wall_ns, used_ns)
        account.cpu_ns = cpu_ns or account.cpu_ns
        account.seen_ns = self._captured_ns
        account.missing_since_ns = None
        self._missing.discard(thread)
        if why_not is None:  # else the wall time waits for the next sample: threads are left out while they start, too
            account.settled_ns += wall_ns
            account.is_sampled = True
            self._settled_cpu_ns += used_ns
        elif why_not is Unseen.INTERNAL:
            self._internal_cpu_ns += used_ns
            self._settled_cpu_ns += used_ns
        return spent

    def rest(self, thread: int) -> int:
        """Wall time of a thread since it was settled, until the last snapshot; it has rested in all of them since."""
        account, until_ns = self._accounts.get(thread), self._before_ns
        if account is None or until_ns is None:
            return 0
        account.seen_ns = self._captured_before_ns
        wall_ns = max(until_ns - account.settled_ns, 0)
        account.settled_ns += wall_ns
        return wall_ns

    def end(self, gone: Iterable[int] | None = None) -> tuple[UnattributedTime, ...]:
        """All threads of the snapshot that do not rest are settled: what is left.

        Args:
            gone: those that were in the snapshot before and are not in this one; None: whoever was not settled.
        """
        if gone is None:
            gone = [thread for thread, account in self._accounts.items() if account.seen_ns != self._captured_ns]
        for thread in self._missing:
            self._wall_ns += _rest_of_life(self._accounts.pop(thread))
        self._missing.clear()
        for thread in gone:  # it may be back: walkers leave out a thread they cannot read
            account = self._accounts.get(thread)
            if account is not None and account.seen_ns != self._captured_ns:  # else another one has its id now
                account.seen_ns = max(account.seen_ns, self._captured_before_ns)  # it may have rested since
                account.missing_since_ns = self._captured_ns
                self._missing.add(thread)
        self._last_but_one_ns = self._now_ns if self._before_ns is None else self._before_ns
        self._before_ns, self._captured_before_ns = self._now_ns, self._captured_ns
        return self._remainders()

    def close(self, now_ns: int) -> tuple[UnattributedTime, ...]:
        """There are no more snapshots: what is left until this instant."""
        now_ns = max(now_ns, self._now_ns)
        for account in self._accounts.values():
            if account.missing_since_ns is not None:
                self._wall_ns += _rest_of_life(account)
            elif account.is_sampled:
                self._wall_ns += max(now_ns - account.settled_ns, 0)
        self._accounts.clear()
        self._missing.clear()
        self._used_cpu_ns = self._process_cpu_ns()
        return self._remainders() if self._before_ns is not None else ()

    def _first(self, birth: Birth | None, cpu_ns: int) -> tuple[int, int]:
        """Since when a thread counts that was not in the snapshot before, and the CPU time that it has used since."""
        before_ns, now_ns = self._before_ns, self._now_ns
        if before_ns is None:
            return now_ns, 0
        # One that was born before that snapshot may have waited for the GIL then, before its first step: beside busy
        # threads, and where processors are scarce, for many a snapshot.
        since_ns = max(min(self._last_but_one_ns, now_ns - _YOUNG_NS), self._opened_ns)
        if birth is not None and birth.latest_ns > since_ns:
            earliest_ns, latest_ns = max(birth.earliest_ns, since_ns), min(birth.latest_ns, self._captured_ns)
            return min((earliest_ns + max(latest_ns, earliest_ns)) // 2, self._captured_ns), cpu_ns
        # An old thread that has not run Python code before. What it had used by then is in the remainders.
        return before_ns, min(cpu_ns, now_ns - before_ns)

    def _remainders(self) -> tuple[UnattributedTime, ...]:
        # The threads go on while clocks are read. What they use between the process's clock and their own is missing
        # here for now; the other way round it would be in a remainder now and in a sample the next time.
        unsampled_ns = max(self._used_cpu_ns - self._settled_cpu_ns, 0)
        self._settled_cpu_ns += unsampled_ns
        found = (
            UnattributedTime(Unseen.INTERNAL, 0, self._internal_cpu_ns),
            UnattributedTime(Unseen.UNSAMPLED, self._wall_ns, unsampled_ns),
        )
        self._internal_cpu_ns = self._wall_ns = 0
        return tuple(remainder for remainder in found if remainder.wall_ns or remainder.cpu_ns)


def _rest_of_life(account: _Account) -> int:
    """How long a thread is taken to have lived after what is in its samples: it was in one snapshot, not in the next.

    Of threads that are in one snapshot, if they are in any, each has to stand for those that are in none: it has lived
    for as long as there is between two snapshots. One that was in many has lived until the middle, whenever it had
    begun. From the one rule to the other in steps: that is off by a hundredth at most, for lives of any length.
    """
    if not account.is_sampled or account.missing_since_ns is None:
        return 0
    gap_ns = account.missing_since_ns - account.seen_ns
    after_ns = gap_ns / 2
    if account.since_ns is not None and gap_ns > 0:
        more = round((account.seen_ns - account.since_ns - account.first_age_ns) / gap_ns)  # snapshots than one
        after_ns += max(1 - more / _FEW, 0) * (max(gap_ns - account.first_age_ns, 0) - after_ns)
    return max(account.seen_ns - account.settled_ns + int(after_ns), 0)
