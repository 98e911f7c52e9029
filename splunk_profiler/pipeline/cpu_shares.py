"""Which samples of a profile have the CPU time that a thread has used.

A clock says how much a thread has used between two samples, not where. So what it has used in a profile is shared out
among those of its samples in which it ran, each by the time that it stands for: nothing gets lost, and on the average
each place has what was used there. Pure; imports nothing of ours.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

_ENDED_THREADS = 0  # no thread's index


@dataclass(slots=True, eq=False)
class Bucket:
    """Samples that are not told apart."""

    first_ns: int
    count: int = 0
    period_ns: int = 0  # of all together: the distance of snapshots may have changed in between
    wall_ns: int = 0
    cpu_ns: int = 0
    event_count: int = 0
    event_amount: int = 0


@dataclass(slots=True)
class _Share:
    """What is to be divided, and among which: sum → time in which the thread had a processor, or wanted one."""

    cpu_ns: int = 0
    ran: Counter[Bucket] = field(default_factory=Counter)
    wanted: Counter[Bucket] = field(default_factory=Counter)


class CpuShares:
    """The CPU time that is not in samples yet, by the index of the thread.

    Threads that have ended share with each other: of those that live for a few snapshots most are in none while they
    run, and the samples of the others stand for theirs, too.
    """

    def __init__(self) -> None:
        self._shares: dict[int, _Share] = {}

    def add(self, thread_index: int, bucket: Bucket, cpu_ns: int, cpu_weight_ns: int, runnable_ns: int) -> None:
        """A thread has used so much since its last sample; in this one it ran, or wanted to, for so long."""
        if cpu_ns or cpu_weight_ns or runnable_ns:
            share = self._shares.setdefault(thread_index, _Share())
            share.cpu_ns += cpu_ns
            if cpu_weight_ns:
                share.ran[bucket] += cpu_weight_ns
            elif runnable_ns:
                share.wanted[bucket] += runnable_ns

    def forget(self, thread_index: int) -> None:
        """The thread has ended."""
        share = self._shares.pop(thread_index, None)
        if share is not None:
            ended = self._shares.setdefault(_ENDED_THREADS, _Share())
            ended.cpu_ns += share.cpu_ns
            ended.ran.update(share.ran)
            ended.wanted.update(share.wanted)

    def distribute(self) -> None:
        """The profile ends. What was used by threads that did not run in any sample is kept for the next one.

        Where no processor is ever seen to be used (some sandboxes have clocks that are too coarse), or all are taken by
        other processes, those samples count that wanted one.
        """
        shares, self._shares = self._shares, {}
        for index, share in shares.items():
            if share.ran or share.wanted:
                _distribute_cpu(share.cpu_ns, share.ran or share.wanted)
            elif share.cpu_ns:
                self._shares[index] = share

    def undistributed_ns(self) -> int:
        """All that was not given, when there are no more profiles."""
        return sum(share.cpu_ns for share in self._shares.values())


def _distribute_cpu(cpu_ns: int, ran: Counter[Bucket]) -> None:
    weights = ran.total()
    for bucket, weight in ran.items():
        part_ns = cpu_ns * weight // weights
        bucket.cpu_ns += part_ns
        cpu_ns, weights = cpu_ns - part_ns, weights - weight
