"""The distribution of each thread's CPU time among its samples of a profile.

A clock says how much a thread has used between two samples, but not where. So the CPU time of a
profile is divided among the samples in which the thread ran, by the time that each stands for. The
sum is exact; each place has on average what was used there. Pure; imports nothing of ours.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

_ENDED_THREADS = 0  # no thread has this index


@dataclass(slots=True, eq=False)
class Bucket:
    """The sums of samples with equal stack and labels."""

    first_ns: int
    count: int = 0
    period_ns: int = 0  # sum; the distance of snapshots may change
    wall_ns: int = 0
    cpu_ns: int = 0
    event_count: int = 0
    event_amount: int = 0


@dataclass(slots=True)
class _Share:
    """CPU time to divide, and the times in which the thread ran, or waited for a processor, by bucket."""

    cpu_ns: int = 0
    ran: Counter[Bucket] = field(default_factory=Counter)
    runnable: Counter[Bucket] = field(default_factory=Counter)


class CpuShares:
    """CPU time that is in no sample yet, by thread index.

    Ended threads share theirs with each other. Most threads that live for a few snapshots only are in
    none while they run; the samples of the others stand for them too.
    """

    def __init__(self) -> None:
        self._shares: dict[int, _Share] = {}

    def add(self, thread_index: int, bucket: Bucket, cpu_ns: int, cpu_weight_ns: int, runnable_ns: int) -> None:
        """Add the CPU time of a thread since its last sample, and the weight of this sample.

        `cpu_weight_ns` is 0 unless the thread ran, `runnable_ns` unless it ran or waited for a processor.
        """
        if cpu_ns or cpu_weight_ns or runnable_ns:
            share = self._shares.get(thread_index)
            if share is None:
                share = self._shares[thread_index] = _Share()
            share.cpu_ns += cpu_ns
            if cpu_weight_ns:
                share.ran[bucket] += cpu_weight_ns
            elif runnable_ns:
                share.runnable[bucket] += runnable_ns

    def forget(self, thread_index: int) -> None:
        """Move the share of a thread that has ended to the one of all ended threads."""
        share = self._shares.pop(thread_index, None)
        if share is not None:
            ended = self._shares.setdefault(_ENDED_THREADS, _Share())
            ended.cpu_ns += share.cpu_ns
            ended.ran.update(share.ran)
            ended.runnable.update(share.runnable)

    def distribute(self) -> None:
        """Divide all CPU time at the end of a profile; keep that of threads without a sample for the next one.

        A thread that ran in no sample has its CPU time in those in which it waited for a processor: some
        sandboxes have too coarse clocks, and other processes may use all processors.
        """
        shares, self._shares = self._shares, {}
        for index, share in shares.items():
            if share.ran or share.runnable:
                _distribute_cpu(share.cpu_ns, share.ran or share.runnable)
            elif share.cpu_ns:
                self._shares[index] = share

    def undistributed_ns(self) -> int:
        """Return the CPU time that is left after the last profile."""
        return sum(share.cpu_ns for share in self._shares.values())


def _distribute_cpu(cpu_ns: int, weights_ns: Counter[Bucket]) -> None:
    left_ns = weights_ns.total()
    for bucket, weight_ns in weights_ns.items():
        part_ns = cpu_ns * weight_ns // left_ns
        bucket.cpu_ns += part_ns
        cpu_ns, left_ns = cpu_ns - part_ns, left_ns - weight_ns
