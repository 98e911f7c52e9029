"""Forwards all that waits now, as far as exporters take it: what a flush and a shutdown do.

On the thread of whoever asks for it, with the right to wait that it is given. Knows no threads and no messages.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from splunk_profiler.host_profilers.wrapped_exporters import WrappedProcessor
from splunk_profiler.system.guard import logger

if TYPE_CHECKING:
    from splunk_profiler.host_profilers.span_forwarder import SpanForwarder

BATCH_SIZE = 256  # transactions between two looks at the queues
POLL_INTERVAL_S = 0.005
_SLOW_NS = 10_000_000

ExportSpan = Callable[[WrappedProcessor, Any], None]


class FlushLoop:
    """Forwards all that has ended until now, without loss as far as exporters take it.

    Args:
        now_ns: the clock.
        deadline_ns: from then on nobody is waited for, and who then takes long for a span gets no more.
        stall_timeout_ns: how long an exporter is waited for that is full and takes nothing. It is given the rest all
            the same, and its SDK says what it drops for that.
        pause: waits that many seconds.
    """

    def __init__(
        self, now_ns: Callable[[], int], deadline_ns: int, stall_timeout_ns: int, pause: Callable[[float], object]
    ) -> None:
        self._now_ns = now_ns
        self._deadline_ns = deadline_ns
        self._stall_timeout_ns = stall_timeout_ns
        self._pause = pause

    def run(
        self,
        forwarder: SpanForwarder,
        export_span: ExportSpan,
        *,
        flushed: WrappedProcessor | None = None,
        stuck_processor: WrappedProcessor | None = None,
        lost_count: int = 0,
    ) -> bool:
        """Do it.

        Args:
            forwarder: of what.
            export_span: hands over a span.
            flushed: may export on this thread; what nobody takes in time then stays. Else it is dropped.
            stuck_processor: gets nothing, because it has not come back with the last that it got.
            lost_count: spans that are known to be lost already.

        Returns:
            False if something is left.
        """
        began_ns = last_progress_ns = self._now_ns()
        stuck_processors: list[WrappedProcessor] = []
        slow_processors = [] if stuck_processor is None else [stuck_processor]

        def try_export(wrapped: WrappedProcessor, span: Any) -> None:
            nonlocal lost_count
            if wrapped in slow_processors:
                lost_count += 1
                return
            export_start_ns = self._now_ns()
            export_span(wrapped, span)
            done_ns = self._now_ns()
            if done_ns > self._deadline_ns and done_ns - export_start_ns > _SLOW_NS:
                slow_processors.append(wrapped)

        for _ in forwarder.deliver_in_flight(try_export, is_flushing=flushed is not None):
            if slow_processors and flushed is not None:
                return False
        while True:
            first_ns = forwarder.first_end_ns()
            if first_ns is None or first_ns > began_ns:
                break
            free_slots = {
                wrapped: wrapped.free_slots
                for wrapped in forwarder.wrapped_processors
                if wrapped not in stuck_processors
            }
            full_processors = [wrapped for wrapped in free_slots if free_slots[wrapped] <= 0]
            if flushed in full_processors:
                flushed.force_flush()
                stuck_processors += [flushed] if flushed.free_slots <= 0 else []
                continue
            if full_processors:
                if self._now_ns() < min(self._deadline_ns, last_progress_ns + self._stall_timeout_ns):
                    for wrapped in full_processors:
                        wrapped.wake_exporter()
                    self._pause(POLL_INTERVAL_S)
                    continue
                stuck_processors += full_processors
                continue
            for _ in forwarder.deliver_due(began_ns, min([BATCH_SIZE, *free_slots.values()]), try_export):
                if slow_processors and flushed is not None:
                    return False
            last_progress_ns = self._now_ns()
        if lost_count:
            logger.warning(
                "%d spans that waited for the host profiler were not sent: their exporter takes too long", lost_count
            )
        return True
