"""The distribution of each thread's CPU time among its samples of a profile.

A clock says how much a thread has used between two samples, but not where. So the CPU time of a
profile is divided among the samples in which the thread ran, by the time that each stands for. The
sum is exact; each place has on average what was used there. Pure; imports `samples` only.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from functools import lru_cache

from splunk_profiler.samples import Thread

_DEFAULT_NAME = re.compile(r"(Thread|Dummy)-\d+")  # says nothing of what a thread does
_LAST_NUMBER = re.compile(r"\d+(?=$| \()")  # before the function that CPython adds to a default name
_MAX_SHARES = 4_096


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
    """CPU time to divide, and the times in which threads ran, or waited for a processor, by bucket."""

    kind: str
    cpu_ns: int = 0
    ran: Counter[Bucket] = field(default_factory=Counter)
    runnable: Counter[Bucket] = field(default_factory=Counter)

    @property
    def weights_ns(self) -> Counter[Bucket]:
        """Times in which they ran.

        A thread that ran in no sample has its CPU time in those in which it waited for a processor: some
        sandboxes have too coarse clocks, and other processes may use all processors.
        """
        return self.ran or self.runnable

    def add(self, other: _Share) -> None:
        self.cpu_ns += other.cpu_ns
        self.ran.update(other.ran)
        self.runnable.update(other.runnable)


class CpuShares:
    """CPU time that is in no sample yet, of each thread, and of those that have ended together by kind.

    Threads are of one kind if only the last numbers of their names differ, as in a pool: those before it tell pools
    apart. Beside busy processes, or with few samples, many a thread runs in none of its samples. Those of its kind
    stand for it then: where it used its time is where they did. For threads that have ended, all others that have
    ended do so at last.
    """

    def __init__(self) -> None:
        self._shares: dict[int | str, _Share] = {}  # by index of the thread; of ended ones by kind

    def add(self, thread: Thread, bucket: Bucket, cpu_ns: int, cpu_weight_ns: int, runnable_ns: int) -> None:
        """Add the CPU time of a thread since its last sample, and the weight of this sample.

        `cpu_weight_ns` is 0 unless the thread ran, `runnable_ns` unless it ran or waited for a processor.
        """
        if cpu_ns or cpu_weight_ns or runnable_ns:
            share = self._shares.get(thread.index)
            if share is None:
                share = self._shares[thread.index] = _Share(_kind_of(thread.name))
            share.cpu_ns += cpu_ns
            if cpu_weight_ns:
                share.ran[bucket] += cpu_weight_ns
            elif runnable_ns:
                share.runnable[bucket] += runnable_ns

    def forget(self, thread_index: int) -> None:
        """Move the share of a thread that has ended to the one of its kind; of too many kinds to one for all."""
        share = self._shares.pop(thread_index, None)
        if share is not None:
            kind = share.kind if share.kind in self._shares or len(self._shares) < _MAX_SHARES else ""
            self._shares.setdefault(kind, _Share(kind)).add(share)

    def distribute(self) -> None:
        """Divide all CPU time at the end of a profile; keep that of threads that no sample stands for."""
        shares, self._shares = self._shares, {}
        weights_ns: defaultdict[str, Counter[Bucket]] = defaultdict(Counter)  # by kind
        ended_weights_ns = Counter[Bucket]()
        donors = []
        for key, share in shares.items():
            if share.weights_ns:
                _distribute_cpu(share.cpu_ns, share.weights_ns)
                weights_ns[share.kind].update(share.weights_ns)
                if isinstance(key, str):
                    ended_weights_ns.update(share.weights_ns)
            elif share.cpu_ns:
                donors.append((key, share))
        ended = _Share("")  # all in one: there may be many kinds
        for key, share in donors:
            if of_kind_ns := weights_ns.get(share.kind):
                _distribute_cpu(share.cpu_ns, of_kind_ns)
            elif isinstance(key, str):
                ended.cpu_ns += share.cpu_ns
            else:
                self._shares[key] = share
        if ended.cpu_ns and ended_weights_ns:
            _distribute_cpu(ended.cpu_ns, ended_weights_ns)
        elif ended.cpu_ns:
            self._shares[""] = ended

    def undistributed_ns(self) -> int:
        """Return the CPU time that is left after the last profile."""
        return sum(share.cpu_ns for share in self._shares.values())


@lru_cache(maxsize=4096)
def _kind_of(name: str) -> str:
    return name if _DEFAULT_NAME.fullmatch(name) else _LAST_NUMBER.sub("", name)


def _distribute_cpu(cpu_ns: int, weights_ns: Counter[Bucket]) -> None:
    left_ns = weights_ns.total()
    for bucket, weight_ns in weights_ns.items():
        part_ns = cpu_ns * weight_ns // left_ns
        bucket.cpu_ns += part_ns
        cpu_ns, left_ns = cpu_ns - part_ns, left_ns - weight_ns
