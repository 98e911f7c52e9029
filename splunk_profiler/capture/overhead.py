"""The limit of the profiler's own CPU time, kept by stretching the sampling period.

`OverheadLimiter` takes the CPU time used so far and returns the period. Pure: no clock, no thread,
imports nothing of ours. The sampler thread calls it.

A token bucket with a maximum credit and a maximum debt: CPU time is credited at the rate of the
limit and debited as it is used. Without debt the period is the configured one, and credit pays
for bursts: first symbolization, an export. In debt the period does not shrink; it is the cost of a
snapshot divided by slightly less than the limit. It returns to the configured one when there is no
debt and snapshots are cheap enough. What the exporter process has not taken in time is a debt, too:
nothing is charged yet for the work that it makes. The two thresholds differ, so that the period does not oscillate.
"""

from __future__ import annotations

_NS_PER_S = 1_000_000_000
_NS_PER_MS = 1_000_000
_MIN_WINDOW_NS = _NS_PER_S  # the shortest time over which the cost of a snapshot is measured
_WINDOW_TOLERANCE = 0.9  # of the period: snapshots are handled with varying latency
_MAX_CREDIT_S, _MAX_DEBT_S = 5.0, 10.0  # in seconds at the limit
_MIN_CREDIT_NS = 100 * _NS_PER_MS
_TARGET_SHARE = 0.85  # of the limit, while the period is stretched
_RISE_WEIGHT = 0.5  # smoothing weight of one snapshot with a higher cost; several in a window weigh more
_FALL_WEIGHT = 0.25  # smoothing weight of a window with a lower cost
_MAX_COST_RATIO = 4.0  # of one snapshot to the estimate: it may include an interruption or a collection
_DEBT_STRETCH_RATIO = 1.25  # for debt that grows although the cost of snapshots does not explain it
_MIN_PERIOD_RATIO = 0.5  # of one window's period to the previous
_MAX_PERIOD_NS = 60 * _NS_PER_S
_MAX_BACKLOG_BYTES = 1 << 20  # that is no debt: 10 s of 33 threads at 10 ms, of an exporter that is starting


class OverheadLimiter:
    """A controller of the sampling period.

    Args:
        configured_ns: minimum period, in force while the limit allows it.
        limit: CPU time that the profiler may use, as a share of one core.

    Attributes:
        period_ns: current period: `configured_ns`, or more in whole milliseconds of two digits.
    """

    def __init__(self, configured_ns: int, limit: float) -> None:
        self.period_ns = configured_ns
        self._configured_ns = configured_ns
        self._max_period_ns = max(configured_ns, _MAX_PERIOD_NS)
        self._limit = limit
        self._max_credit_ns = max(limit * _MAX_CREDIT_S * _NS_PER_S, _MIN_CREDIT_NS)
        self._max_debt_ns = max(limit * _MAX_DEBT_S * _NS_PER_S, _MIN_CREDIT_NS)
        self._balance_ns = self._max_credit_ns  # negative: debt
        self._snapshot_cost_ns = configured_ns * limit * _TARGET_SHARE  # capture to export; an optimistic start
        self._window_start_ns: int | None = None
        self._window_start_cpu_ns = 0
        self._backlog_bytes = 0

    @property
    def is_stretched(self) -> bool:
        """True if the period is longer than configured."""
        return self.period_ns > self._configured_ns

    @property
    def _window_ns(self) -> float:
        # A window without a snapshot would make snapshots seem cheap.
        return max(_MIN_WINDOW_NS, self.period_ns * _WINDOW_TOLERANCE)

    def is_due(self, now_ns: int) -> bool:
        """Return True if `update_period` would use the CPU time, which costs something to read."""
        return self._window_start_ns is None or now_ns - self._window_start_ns >= self._window_ns

    def update_period(self, now_ns: int, total_cpu_ns: int, backlog_bytes: int = 0) -> int:
        """Return the period from now on.

        Args:
            now_ns: time on a monotonic clock.
            total_cpu_ns: total CPU time of the profiler.
            backlog_bytes: size of what the exporter process has not taken yet.
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
        is_debt_growing = was_in_debt and used_ns > earned_ns
        if backlog_bytes > _MAX_BACKLOG_BYTES:
            self._balance_ns = min(self._balance_ns, -1.0)
            is_debt_growing = is_debt_growing or backlog_bytes > self._backlog_bytes
        self._backlog_bytes = backlog_bytes
        self._update_cost(used_ns, max(elapsed_ns / self.period_ns, 1.0))
        if self.is_stretched or self._balance_ns < 0:
            self.period_ns = self._next_period_ns(is_debt_growing=is_debt_growing)
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
    """Round up to 1, 2, … 99, 100, 110, … 990, 1000, 1100, … milliseconds, for few distinct periods."""
    period_ms = -int(-period_ns // _NS_PER_MS)
    step: int = 10 ** max(len(str(period_ms)) - 2, 0)
    return -(-period_ms // step) * step * _NS_PER_MS
