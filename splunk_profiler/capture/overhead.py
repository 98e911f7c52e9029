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

_NS_PER_S = 1_000_000_000
_NS_PER_MS = 1_000_000
_MIN_WINDOW_NS = _NS_PER_S  # the shortest time that the cost of a snapshot is worked out of
_WINDOW_TOLERANCE = (
    0.9  # of the distance: a snapshot may be handled a little sooner after its deadline than the one before
)
_MAX_CREDIT_S, _MAX_DEBT_S = 5.0, 10.0  # how much can be saved and owed, in seconds of the limit
_MIN_CREDIT_NS = 100 * _NS_PER_MS
_TARGET_SHARE = 0.85  # of the limit, while the distance is stretched
_RISE_WEIGHT = 0.5  # how much one snapshot says of the cost if that is more than before; several in one window say more
_FALL_WEIGHT = 0.25  # how much a window says of it if that is less
_MAX_COST_RATIO = (
    4.0  # that one snapshot may make the cost seem: it may have been interrupted, or have collected garbage
)
_DEBT_STRETCH_RATIO = 1.25  # where the debt grows although the cost of a snapshot does not say why
_MIN_PERIOD_RATIO = 0.5  # of the distance, in one window
_MAX_PERIOD_NS = 60 * _NS_PER_S


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
        self._max_period_ns = max(configured_ns, _MAX_PERIOD_NS)
        self._limit = limit
        self._max_credit_ns = max(limit * _MAX_CREDIT_S * _NS_PER_S, _MIN_CREDIT_NS)
        self._max_debt_ns = max(limit * _MAX_DEBT_S * _NS_PER_S, _MIN_CREDIT_NS)
        self._balance_ns = self._max_credit_ns  # negative: owed
        self._snapshot_cost_ns = (
            configured_ns * limit * _TARGET_SHARE
        )  # of a snapshot and all that becomes of it; to begin with, it is cheap
        self._window_start_ns: int | None = None  # the window began
        self._window_start_cpu_ns = 0  # at that time

    @property
    def is_stretched(self) -> bool:
        """Whether snapshots are further apart than they were to be."""
        return self.period_ns > self._configured_ns

    @property
    def _window_ns(self) -> float:
        # Where snapshots are far apart, the time between two of them would seem to show how cheap one is.
        return max(_MIN_WINDOW_NS, self.period_ns * _WINDOW_TOLERANCE)

    def is_due(self, now_ns: int) -> bool:
        """Whether `update_period` would look at the CPU time, which costs something to read."""
        return self._window_start_ns is None or now_ns - self._window_start_ns >= self._window_ns

    def update_period(self, now_ns: int, total_cpu_ns: int) -> int:
        """The distance from now on.

        Args:
            now_ns: on a clock that never goes back.
            total_cpu_ns: CPU time that the profiler has used in its life.
        """
        window_start_ns = self._window_start_ns
        if window_start_ns is None or now_ns - window_start_ns < self._window_ns:
            if window_start_ns is None:
                self._window_start_ns, self._window_start_cpu_ns = now_ns, total_cpu_ns
            return self.period_ns
        elapsed_ns, used_ns = now_ns - window_start_ns, max(total_cpu_ns - self._window_start_cpu_ns, 0)
        self._window_start_ns, self._window_start_cpu_ns = now_ns, total_cpu_ns
        was_in_debt = self._balance_ns < 0
        earned_ns = elapsed_ns * self._limit
        self._balance_ns = min(max(self._balance_ns + earned_ns - used_ns, -self._max_debt_ns), self._max_credit_ns)
        self._update_cost(used_ns, max(elapsed_ns / self.period_ns, 1.0))
        if self.is_stretched or self._balance_ns < 0:
            self.period_ns = self._next_period_ns(is_debt_growing=was_in_debt and used_ns > earned_ns)
        return self.period_ns

    def _update_cost(self, used_ns: int, snapshot_count: float) -> None:
        cost_ns, previous_cost_ns = used_ns / snapshot_count, self._snapshot_cost_ns
        if cost_ns > previous_cost_ns:
            capped_cost_ns = min(cost_ns, previous_cost_ns * _MAX_COST_RATIO * snapshot_count)
            self._snapshot_cost_ns += (capped_cost_ns - previous_cost_ns) * (
                1 - (1 - _RISE_WEIGHT) ** min(snapshot_count, 4.0)
            )
        else:
            self._snapshot_cost_ns += (cost_ns - previous_cost_ns) * _FALL_WEIGHT

    def _next_period_ns(self, *, is_debt_growing: bool) -> int:
        target_ns = self._snapshot_cost_ns / (self._limit * _TARGET_SHARE)
        if self._balance_ns >= 0:
            target_ns = max(target_ns, self.period_ns * _MIN_PERIOD_RATIO)
        else:
            target_ns = max(target_ns, self.period_ns * (_DEBT_STRETCH_RATIO if is_debt_growing else 1.0))
        if target_ns <= self._configured_ns:
            return self._configured_ns
        return max(min(_round_up_period(target_ns), self._max_period_ns), self._configured_ns)


def _round_up_period(period_ns: float) -> int:
    """The next of the distances 1, 2, … 99, 100, 110, … 990, 1000, 1100, … milliseconds: there are few of them."""
    period_ms = -int(-period_ns // _NS_PER_MS)
    step: int = 10 ** max(len(str(period_ms)) - 2, 0)
    return -(-period_ms // step) * step * _NS_PER_MS
