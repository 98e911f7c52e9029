"""Limit the CPU time of the profiler itself by the distance of snapshots.

`OverheadLimiter` takes the CPU time used so far and returns how far apart snapshots are to be. Pure: no clock, no
thread, nothing of ours imported; the sampling worker's thread calls it.

CPU time is earned at the rate of the limit and spent as it is used; some of it can be saved, some owed. While nothing
is owed the distance is the configured one: what comes once (naming code for the first time) or now and then (sending a
profile) is paid out of savings. In debt, the distance is what a snapshot costs divided by a little less than the limit,
and as long as there is a debt it does not shrink. It is the configured one again when nothing is owed and a snapshot
costs little enough for that. The two ends are apart, so that nothing swings to and fro.
"""

from __future__ import annotations

_NS = 1_000_000_000
_MS = 1_000_000
_WINDOW_NS = _NS  # the shortest time that the cost of a snapshot is worked out of
_NEARLY = 0.9  # of the distance: a snapshot may be handled a little sooner after its deadline than the one before
_SAVED_S, _OWED_S = 5.0, 10.0  # how much can be saved and owed, in seconds of the limit
_LEAST_SAVED_NS = 100 * _MS
_AIM = 0.85  # of the limit, while the distance is stretched
_RISE = 0.5  # how much one snapshot says of the cost if that is more than before; several in one window say more
_FALL = 0.25  # how much a window says of it if that is less
_MOST_DEARER = 4.0  # that one snapshot may make the cost seem: it may have been interrupted, or have collected garbage
_STEP = 1.25  # where the debt grows although the cost of a snapshot does not say why
_FASTEST_RETURN = 0.5  # of the distance, in one window
_LONGEST_NS = 60 * _NS


class OverheadLimiter:
    """Says how far apart snapshots are to be.

    Args:
        configured_ns: their distance as long as the limit allows it; it is never less.
        limit: CPU time that the profiler may use, as a part of one core.

    Attributes:
        period_ns: their distance now: `configured_ns`, or more, and then whole milliseconds with two digits that count.
    """

    def __init__(self, configured_ns: int, limit: float) -> None:
        self.period_ns = configured_ns
        self._configured_ns = configured_ns
        self._longest_ns = max(configured_ns, _LONGEST_NS)
        self._limit = limit
        self._most_saved_ns = max(limit * _SAVED_S * _NS, _LEAST_SAVED_NS)
        self._most_owed_ns = max(limit * _OWED_S * _NS, _LEAST_SAVED_NS)
        self._saved_ns = self._most_saved_ns  # negative: owed
        self._cost_ns = (
            configured_ns * limit * _AIM
        )  # of a snapshot and all that becomes of it; to begin with, it is cheap
        self._since_ns: int | None = None  # the window began
        self._spent_ns = 0  # at that time

    @property
    def is_stretched(self) -> bool:
        """Whether snapshots are further apart than they were to be."""
        return self.period_ns > self._configured_ns

    @property
    def _window_ns(self) -> float:
        # Where snapshots are far apart, the time between two of them would seem to show how cheap one is.
        return max(_WINDOW_NS, self.period_ns * _NEARLY)

    def is_due(self, now_ns: int) -> bool:
        """Whether `advance` would look at the CPU time, which costs something to read."""
        return self._since_ns is None or now_ns - self._since_ns >= self._window_ns

    def advance(self, now_ns: int, spent_ns: int) -> int:
        """The distance from now on.

        Args:
            now_ns: on a clock that never goes back.
            spent_ns: CPU time that the profiler has used in its life.
        """
        since_ns = self._since_ns
        if since_ns is None or now_ns - since_ns < self._window_ns:
            if since_ns is None:
                self._since_ns, self._spent_ns = now_ns, spent_ns
            return self.period_ns
        elapsed_ns, used_ns = now_ns - since_ns, max(spent_ns - self._spent_ns, 0)
        self._since_ns, self._spent_ns = now_ns, spent_ns
        owed_before = self._saved_ns < 0
        earned_ns = elapsed_ns * self._limit
        self._saved_ns = min(max(self._saved_ns + earned_ns - used_ns, -self._most_owed_ns), self._most_saved_ns)
        self._learn(used_ns, max(elapsed_ns / self.period_ns, 1.0))
        if self.is_stretched or self._saved_ns < 0:
            self.period_ns = self._next_ns(grows=owed_before and used_ns > earned_ns)
        return self.period_ns

    def _learn(self, used_ns: int, snapshots: float) -> None:
        cost_ns, known_ns = used_ns / snapshots, self._cost_ns
        if cost_ns > known_ns:
            believed_ns = min(cost_ns, known_ns * _MOST_DEARER * snapshots)
            self._cost_ns += (believed_ns - known_ns) * (1 - (1 - _RISE) ** min(snapshots, 4.0))
        else:
            self._cost_ns += (cost_ns - known_ns) * _FALL

    def _next_ns(self, *, grows: bool) -> int:
        needed_ns = self._cost_ns / (self._limit * _AIM)
        if self._saved_ns >= 0:
            needed_ns = max(needed_ns, self.period_ns * _FASTEST_RETURN)
        else:
            needed_ns = max(needed_ns, self.period_ns * (_STEP if grows else 1.0))
        if needed_ns <= self._configured_ns:
            return self._configured_ns
        return max(min(_in_steps(needed_ns), self._longest_ns), self._configured_ns)


def _in_steps(period_ns: float) -> int:
    """The next of the distances 1, 2, … 99, 100, 110, … 990, 1000, 1100, … milliseconds: there are few of them."""
    period_ms = -int(-period_ns // _MS)
    step: int = 10 ** max(len(str(period_ms)) - 2, 0)
    return -(-period_ms // step) * step * _MS
