"""Forwards all that waits now, as far as exporters take it: what a flush and a shutdown do.

On the thread of whoever asks for it, with the right to wait that it is given. Knows no threads and no messages.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from splunk_profiler.host_profilers.wrapped_exporters import Exporting
from splunk_profiler.system.guard import logger

if TYPE_CHECKING:
    from splunk_profiler.host_profilers.span_forwarder import SpanForwarder

LOT = 256  # transactions between two looks at the queues
ROOM_S = 0.005
_SLOW_NS = 10_000_000

Hand = Callable[[Exporting, Any], None]


class FlushLoop:
    """Forwards all that has ended until now, without loss as far as exporters take it.

    Args:
        now_ns: the clock.
        until_ns: from then on nobody is waited for, and who then takes long for a span gets no more.
        patience_ns: how long an exporter is waited for that is full and takes nothing. It is given the rest all the
            same, and its SDK says what it drops for that.
        pause: waits that many seconds.
    """

    def __init__(
        self, now_ns: Callable[[], int], until_ns: int, patience_ns: int, pause: Callable[[float], object]
    ) -> None:
        self._now_ns = now_ns
        self._until_ns = until_ns
        self._patience_ns = patience_ns
        self._pause = pause

    def run(
        self,
        forwarding: SpanForwarder,
        hand: Hand,
        *,
        flushed: Exporting | None = None,
        given_up: Exporting | None = None,
        lost: int = 0,
    ) -> bool:
        """Do it.

        Args:
            forwarding: of what.
            hand: hands over a span.
            flushed: may export on this thread; what nobody takes in time then stays. Else it is dropped.
            given_up: gets nothing, because it has not come back with the last that it got.
            lost: spans that are known to be lost already.

        Returns:
            False if something is left.
        """
        began_ns = moved_ns = self._now_ns()
        stuck: list[Exporting] = []
        slow = [] if given_up is None else [given_up]

        def try_to_hand(one: Exporting, span: Any) -> None:
            nonlocal lost
            if one in slow:
                lost += 1
                return
            handed_ns = self._now_ns()
            hand(one, span)
            done_ns = self._now_ns()
            if done_ns > self._until_ns and done_ns - handed_ns > _SLOW_NS:
                slow.append(one)

        for _ in forwarding.deliver_begun(try_to_hand, flushing=flushed is not None):
            if slow and flushed is not None:
                return False
        while True:
            first_ns = forwarding.first_end_ns()
            if first_ns is None or first_ns > began_ns:
                break
            room = {one: one.room for one in forwarding.exporting if one not in stuck}
            full = [one for one in room if room[one] <= 0]
            if flushed in full:
                flushed.force_flush()
                stuck += [flushed] if flushed.room <= 0 else []
                continue
            if full:
                if self._now_ns() < min(self._until_ns, moved_ns + self._patience_ns):
                    for one in full:
                        one.hurry()
                    self._pause(ROOM_S)
                    continue
                stuck += full
                continue
            for _ in forwarding.deliver_some(began_ns, min([LOT, *room.values()]), try_to_hand):
                if slow and flushed is not None:
                    return False
            moved_ns = self._now_ns()
        if lost:
            logger.warning(
                "%d spans that waited for the host profiler were not sent: their exporter takes too long", lost
            )
        return True
