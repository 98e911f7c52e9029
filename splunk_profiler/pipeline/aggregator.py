"""The step from samples to profiles: one aggregate for equal stacks and labels in a period.

The thread that feeds the pipeline calls `Aggregator.take`. The thread that stops the profiler calls
`close` after that. Imports neither settings nor OpenTelemetry. `window` bounds the memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache

from splunk_profiler.model import DataType, EventKind
from splunk_profiler.pipeline.cpu_shares import CpuShares
from splunk_profiler.pipeline.live_heap import HEAP_BEGINS, InUse
from splunk_profiler.pipeline.pseudo_stacks import UNATTRIBUTED_STACKS
from splunk_profiler.pipeline.waits import GIL_WAIT, wait_kind
from splunk_profiler.pipeline.window import Bounds, BucketKey, Window
from splunk_profiler.samples import (
    Aggregate,
    IdleRepeat,
    InstrumentationSource,
    Profile,
    Snapshot,
    Thread,
    UnattributedReason,
    UnattributedTime,
)
from splunk_profiler.system import clocks
from splunk_profiler.system.gil import yield_gil
from splunk_profiler.system.guard import logger
from splunk_profiler.system.threads import OwnedLock

Label = tuple[str, str | int]
_WAITING_TASK: Label = ("thread.state", "waiting task")
_TIMER: Label = ("source.event.name", "timer")
_SAMPLED_FLAG = 1  # the W3C trace flag
_YIELD_EVERY = 64  # buckets between two offers of the GIL


class Aggregator:
    """Adds up the samples of a period and delivers them as profiles.

    Args:
        deliver: takes profiles; returns at once.
        interval_ns: length of a period, which ends at the nearest snapshot.
        endpoint_of: returns the current name of a local root by its span id, or an empty text.
        take_idle_repeats: called at the end of a period; returns further repeats of its samples. The next
            snapshot samples all threads again.
        take_in_use: called at the end of a period; returns the memory in use. Each period has a profile then, an
            empty one where nothing is: a reader would take the one before it for the last.
        kinds: kinds of events; every profile of their data type has values for them.
    """

    def __init__(
        self,
        deliver: Callable[[tuple[Profile]], None],
        *,
        interval_ns: int,
        endpoint_of: Callable[[int], str] | None = None,
        bounds: Bounds | None = None,
        monotonic_ns: Callable[[], int] = clocks.monotonic_ns,
        source: InstrumentationSource = InstrumentationSource.CONTINUOUS,
        take_idle_repeats: Callable[[], Iterable[IdleRepeat]] | None = None,
        take_in_use: Callable[[], InUse] | None = None,
        kinds: Iterable[EventKind] = (),
    ) -> None:
        self._deliver = deliver
        self._interval_ns = interval_ns
        self._endpoint_of = endpoint_of
        self._bounds = bounds or Bounds()
        self._now_ns = monotonic_ns
        self._source = source
        self._take_idle_repeats = take_idle_repeats
        self._take_in_use = take_in_use
        self._kinds = tuple(kinds)
        self._lock = OwnedLock()  # guards what follows
        self._shares = CpuShares()
        self._window: Window | None = None
        self._has_dropped_labels = False

    def begin(self, time_ns: int, period_ns: int) -> None:
        """Start the first period now, `time_ns` since the epoch, instead of with the first snapshot."""
        with self._lock:
            self._start_window(time_ns, self._now_ns(), period_ns)

    def take(self, snapshot: Snapshot) -> None:
        """Add a snapshot; deliver the profile if its period ends here.

        A snapshot with a period of 0 was not taken at a tick and has samples of events only. One without samples, too,
        is the end of the process, and ends no period: `close` does, and adds the time up to it.
        """
        with self._lock:
            now_ns, period_ns = self._now_ns(), snapshot.period_ns
            window = self._window
            if window is None:
                window = self._start_window(snapshot.time_ns - period_ns, now_ns - period_ns, period_ns)
            window.add_snapshot(snapshot, now_ns)
            is_end = not (period_ns or snapshot.samples)
            if is_end or now_ns - window.began_ns + period_ns // 2 < self._interval_ns:
                return
            following = self._start_window(snapshot.time_ns, now_ns, period_ns or window.period_ns)
            following.add_unattributed(*window.drop_excess())
            self._shares.distribute()
            if self._take_idle_repeats is not None:
                for repeat in self._take_idle_repeats():
                    window.repeat(repeat)
            self._add_live(window, now_ns)
        self._send(window)

    def flush_if_due(self, now_ns: int) -> None:
        """Deliver a period that is over at the instant `now_ns` although no snapshot has ended it.

        Another one is started only where memory in use is counted.
        """
        with self._lock:
            window = self._window
            if window is None or now_ns - window.began_ns < self._interval_ns:
                return
            self._window = None
            if self._take_in_use is not None:
                self._start_window(window.time_ns + now_ns - window.began_ns, now_ns, window.period_ns)
                self._add_live(window, now_ns)
        self._send(window)

    def close(self, unattributed: Iterable[UnattributedTime]) -> None:
        """Deliver the last period, with the time `unattributed` since the last snapshot."""
        with self._lock:
            window, self._window = self._window, None
        if window is not None:
            window.add_unattributed(*unattributed)
            self._shares.distribute()
            if (undistributed_ns := self._shares.undistributed_ns()) > 0:
                window.add_unattributed(UnattributedTime(UnattributedReason.UNSAMPLED, 0, undistributed_ns))
            window.drop_excess()
            window.ended_ns = self._now_ns()
            self._add_live(window, window.ended_ns)
            self._send(window)

    def _add_live(self, window: Window, now_ns: int) -> None:
        if self._take_in_use is not None:
            in_use = self._take_in_use()
            # With bounds of its own: the window may be full.
            live = self._make_window(window.time_ns, window.began_ns, window.period_ns, CpuShares())
            window.ended_ns = now_ns
            live.add_snapshot(Snapshot(0, 0, in_use.samples), now_ns)
            window.live, window.heap_begins = live, in_use.begins
            window.dropped_labels += live.dropped_labels

    def _start_window(self, time_ns: int, began_ns: int, period_ns: int) -> Window:
        self._window = self._make_window(time_ns, began_ns, period_ns, self._shares)
        return self._window

    def _make_window(self, time_ns: int, began_ns: int, period_ns: int, shares: CpuShares) -> Window:
        return Window(self._bounds, time_ns, began_ns, period_ns, shares, endpoint_of=self._current_endpoint)

    def _send(self, window: Window) -> None:
        if window.dropped_labels and not self._has_dropped_labels:
            self._has_dropped_labels = True
            logger.info(
                "there are more different spans, threads or stacks than a profile holds: further samples"
                " are counted without them (logged once)"
            )
        for profile in self._profiles(window):
            self._deliver((profile,))

    def _profiles(self, window: Window) -> Iterator[Profile]:
        """Yield a profile for each data type that has aggregates, and of memory in use, where that is counted."""
        aggregates_by_type: dict[DataType, list[Aggregate]] = {DataType.CPU: [], DataType.ALLOCATION: []}
        period_ns = window.average_period_ns
        for number, (key, bucket) in enumerate(window.buckets(), 1):
            if number % _YIELD_EVERY == 0:
                yield_gil()
            kind = None if key.event is None else key.event.kind
            every_ns = bucket.period_ns // bucket.count if kind is None else None
            aggregates_by_type[DataType.CPU if kind is None else kind.data_type].append(
                Aggregate(
                    key.stack,
                    (*_time_labels(bucket.first_ns, every_ns), *self._labels(key)),
                    bucket.count,
                    bucket.wall_ns,
                    bucket.cpu_ns,
                    kind,
                    bucket.event_count,
                    bucket.event_amount,
                )
            )
        comments = {
            DataType.CPU: window.gil_waits.describe(),
            DataType.ALLOCATION: HEAP_BEGINS if window.heap_begins else "",
        }
        labels = _time_labels(window.time_ns, period_ns)
        aggregates_by_type[DataType.CPU] += [
            Aggregate(UNATTRIBUTED_STACKS[unattributed.reason], labels, 0, unattributed.wall_ns, unattributed.cpu_ns)
            for unattributed in window.unattributed.values()
            if unattributed.wall_ns or unattributed.cpu_ns
        ]
        for data_type, aggregates in aggregates_by_type.items():
            if aggregates or (window.live is not None and data_type is DataType.ALLOCATION):
                yield Profile(
                    window.time_ns,
                    max(window.ended_ns - window.began_ns, 0),
                    period_ns,
                    tuple(aggregates),
                    window.dropped_labels[data_type],
                    self._source,
                    data_type,
                    self._kinds_of(data_type, aggregates),
                    tuple(filter(None, [comments[data_type]])),
                )

    def _kinds_of(self, data_type: DataType, aggregates: Iterable[Aggregate]) -> tuple[EventKind, ...]:
        kinds = (*self._kinds, *(aggregate.kind for aggregate in aggregates if aggregate.kind is not None))
        return tuple(dict.fromkeys(kind for kind in kinds if kind.data_type is data_type))

    def _labels(self, key: BucketKey) -> tuple[Label, ...]:
        labels: list[Label] = [_TIMER] if key.state else []
        if key.event is not None:
            labels = [("source.event.name", key.event.kind.name), *key.event.labels]
        labels += _thread_labels(key.thread, key.state, key.stack.truncated)
        is_waiting = _WAITING_TASK in key.event.labels if key.event is not None else key.state == "WAITING"
        if is_waiting and (kind := GIL_WAIT if key.wants_gil else key.stack.derive(wait_kind)):
            labels.append(("wait.kind", kind))
        if (span := key.span) is not None:
            labels += [("trace_id", f"{span.trace_id:032x}"), ("span_id", f"{span.span_id:016x}")]
            if not span.trace_flags & _SAMPLED_FLAG:
                labels.append(("trace_flags", f"{span.trace_flags:02x}"))  # no backend has such a span
            if span.local_root_id:
                labels.append(("local_root_span_id", f"{span.local_root_id:016x}"))
        if endpoint := self._current_endpoint(key):
            labels.append(("endpoint", endpoint))
        return (*labels, *key.labels)

    def _current_endpoint(self, key: BucketKey) -> str:
        current = ""
        if self._endpoint_of is not None and key.span is not None and key.span.local_root_id:
            current = self._endpoint_of(key.span.local_root_id)
        return current or key.endpoint


def estimate_size(profile: Profile) -> int:
    """Return about the bytes of a profile in memory, which are more than on the wire."""
    stacks = {id(aggregate.stack): len(aggregate.stack.frames) for aggregate in profile.aggregates}
    return 1000 + 1000 * len(profile.aggregates) + 8 * sum(stacks.values())


@lru_cache(maxsize=1024)  # thousands of aggregates have the same
def _thread_labels(thread: Thread | None, state: str, truncated: bool) -> tuple[Label, ...]:
    labels: list[Label] = []
    if thread is not None:
        labels.append(("thread.id", thread.ident))
        if thread.native_id:
            labels.append(("thread.os.id", thread.native_id))
        labels.append(("thread.name", thread.name))
    if state:
        labels.append(("thread.state", state))
    if truncated:
        labels.append(("thread.stack.truncated", "true"))
    return tuple(labels)


def _time_labels(time_ns: int, period_ns: int | None) -> tuple[Label, ...]:
    at: Label = ("source.event.time", time_ns // 1_000_000)
    return (at,) if period_ns is None else (at, ("source.event.period", max(period_ns // 1_000_000, 1)))
