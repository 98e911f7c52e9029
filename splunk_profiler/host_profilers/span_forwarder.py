"""Hands the transactions that have waited to the exporters, with what is known of them by then; in bounded time.

Three occasions, with three rights to wait. Our own thread forwards what is due, and waits for exporters that are full.
An application that flushes waits for its batch processor as it always does, and for our thread where a processor
exports at once: no longer than it said, and what is not out by then stays. One that shuts down or ends waits for our
thread to hand everything over, as long as that gets on: an exporter that hangs, hangs there. What is lost then is said.

Specification: Elastic universal profiling integration, "Correlation Attribute".
"""

from __future__ import annotations

import _thread
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from splunk_profiler.host_profilers.annotation import HostId, with_stacks
from splunk_profiler.host_profilers.flush_loop import LOT, ROOM_S, FlushLoop, Hand
from splunk_profiler.host_profilers.transactions import Transaction, Transactions
from splunk_profiler.host_profilers.wrapped_exporters import Exporting
from splunk_profiler.system.guard import Guard
from splunk_profiler.system.threads import Signal, let_the_application_run, real_lock, threads_are_greenlets

_NS = 1_000_000_000
_MOST_NS = 5 * _NS  # that a shutdown may take longer than the SDK's own
_PATIENCE_NS = 1 * _NS  # with an exporter that takes nothing
_TURN_NS = _NS // 5  # that our thread forwards before it looks at messages again
_SETTLE_S = 1.0  # for our thread to count what has come; longer only if it hangs
_MOST_DEPTH = 3  # of flushes within each other
_MOST_HANDED_ON = 1_024  # spans that our thread has not got to; more of them stay where they wait

Ask = Callable[[Callable[[], None]], bool]


class ForwardingError(Exception):
    """An exporter wanted to end the thread that it was called on, which is ours."""


class SpanForwarder:
    """What waits, on its way to its exporters.

    Args:
        transactions: the bookkeeping.
        host_id: what is known of the host.
        ask: has something done on our own thread, once what has come until now is counted. False if it cannot.
        monotonic_ns: the clock.

    Attributes:
        exporting: the exporters.
    """

    def __init__(
        self,
        transactions: Transactions,
        host_id: HostId,
        ask: Ask,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.exporting: list[Exporting] = []
        self._transactions = transactions
        self._host_id = host_id
        self._ask = ask
        self._now_ns = monotonic_ns
        self._under_way: dict[int, Transaction] = {}  # a signal may have interrupted whoever forwards them, for good
        self._handed_on: deque[tuple[Exporting, Any] | Signal] = deque()  # by who flushes, to our own thread
        self._handing = real_lock()  # our own thread is in somebody else's code, which may have locks
        self._forking = 0  # ident of the thread that holds `_handing` while it forks
        self._held_up_at = -1  # `_handed`, when somebody had waited in vain to fork
        self._own = 0  # ident of our own thread
        self._overdue_ns = 0  # what ended before then should have gone long ago; 0 if there is nothing
        self._is_at_it = False  # it is forwarding
        self._in_hand: Exporting | None = None  # has been handed a span on our own thread, and has it still
        self._handed = 0  # how many were before
        self._hung_at = -1  # `_handed`, when somebody had waited for that one in vain
        self._depth: dict[int, int] = {}  # thread → how many spans it is handing over, one within another
        self._guard = Guard("handing spans to the application's exporters")
        self._writing = Guard("writing on spans what host profilers say")

    def start_anew(self, transactions: Transactions) -> None:
        """In a forked child: what waits is the parent's to forward."""
        self._transactions = transactions
        self._under_way = {}
        self._handed_on.clear()
        self._overdue_ns = 0
        self._is_at_it = False
        self._handing = real_lock()  # our thread, which is not here, may have held it
        self._forking = 0
        self._in_hand = None
        self._depth = {}

    def deliver(self, transaction: Transaction) -> None:
        """Forward the spans of a transaction that is closed. On any thread."""
        self._deliver(transaction, _hand)

    def deliver_all(self) -> None:
        """Forward everything, waiting for nobody. On any thread."""
        for _ in self.deliver_handed_on(_hand):
            pass
        for transaction in self._transactions.due(self._now_ns()):
            self.deliver(transaction)

    # ---- on our own thread ----

    def forward(self, ended_before_ns: int) -> bool:
        """Forward what ended before then. False if there is more of it, for which there is no room or no time now."""
        overdue_ns = ended_before_ns - _PATIENCE_NS
        until_ns = self._now_ns() + _TURN_NS
        self._own = _thread.get_ident()
        self._is_at_it = True
        try:
            for _ in self.deliver_handed_on(self._hand_here):
                if self._now_ns() > until_ns:
                    return False
            for _ in self.deliver_some(overdue_ns, sys.maxsize, self._hand_here):
                if self._now_ns() > until_ns:
                    self._overdue_ns = overdue_ns
                    return False
            self._overdue_ns = 0
            while True:
                first_ns = self._transactions.first_end_ns()
                if first_ns is None or first_ns > ended_before_ns:
                    return True
                room = min((one.room for one in self.exporting), default=LOT)
                if room <= 0:
                    return False
                for _ in self.deliver_some(ended_before_ns, min(room, LOT), self._hand_here):
                    if self._now_ns() > until_ns:
                        return False
        finally:
            self._is_at_it = False

    def _hand_here(self, one: Exporting, span: Any) -> None:
        with self._handing:
            self._in_hand = one
            try:
                one.on_end(span)
            except Exception:
                raise
            except BaseException as error:  # is to end a thread or a task of the application; this is neither
                raise ForwardingError(f"an exporter raised {type(error).__name__}") from error
            finally:
                self._in_hand = None
                self._handed += 1

    # ---- on the application's threads ----

    def help(self) -> None:
        """Hand on one transaction where our thread cannot keep up with those that end.

        Exporters that export at once slow down whoever ends a span, if they are slow. On our thread they would not, and
        more and more would wait, for longer and longer.
        """
        if self._overdue_ns:
            for _ in self.deliver_some(self._overdue_ns, 1, _hand):
                pass

    def hold(self, timeout_s: float) -> None:
        """Before a fork: have our thread out of all exporters, whose locks would stay locked in the child for ever.

        Waits at most `timeout_s` seconds for an exporter, and not a second time for the same span.
        """
        if self._is_in_own_hand or (self._in_hand is not None and self._handed == self._held_up_at):
            return
        if self._handing.acquire(timeout=timeout_s):
            self._forking = _thread.get_ident()
        else:
            self._held_up_at = self._handed

    def release(self) -> None:
        """After it, in the parent."""
        if self._forking == _thread.get_ident():
            self._forking = 0
            self._handing.release()

    def flush(self, flushed: Exporting, timeout_ms: int) -> bool:
        """Forward all that has ended until now; `flushed` is about to export it. False if it takes longer than that.

        Processors may flush at the end of each transaction, and so for each one that is handed to them here: then it is
        for the outermost flush to go on. A signal handler may be one level further in.
        """
        depth = self._depth.get(_thread.get_ident(), 0)
        if depth >= _MOST_DEPTH or self._is_in_own_hand:
            return True
        until_ns = self._now_ns() + timeout_ms * 1_000_000
        if self._transactions.first_end_ns() is not None:
            self._settle(until_ns)  # what was sent before is counted
        # Who is inside of an exporter may have its locks, and our thread would wait for them.
        inside = depth or any(one.is_inside for one in self.exporting)
        waits = not inside and not threads_are_greenlets() and self._ask(_nothing)
        if waits and len(self._handed_on) > _MOST_HANDED_ON:
            return self._wait_for_handed_on(until_ns)
        drain = FlushLoop(self._now_ns, until_ns, _PATIENCE_NS, let_the_application_run)
        complete = drain.run(self, self._hand_on if waits else _hand, flushed=flushed)
        if waits and not self._wait_for_handed_on(until_ns):
            return False
        if self._is_at_it:
            self._settle(until_ns)  # what our thread has taken out meanwhile has got there
        return complete

    def _hand_on(self, one: Exporting, span: Any) -> None:
        """What only puts the span into a queue is done here; what may take for ever is for our own thread."""
        if one.has_queue:
            one.on_end(span)
        else:
            self._handed_on.append((one, span))

    def _wait_for_handed_on(self, until_ns: int) -> bool:
        """Until our own thread has handed it over, and what it had in hand before; False if it takes longer."""
        if not self._handed_on and (self._in_hand is None or self._in_hand.has_queue):
            return True
        done = Signal()
        self._handed_on.append(done)
        while self._ask(_nothing):
            left_s = (until_ns - self._now_ns()) / _NS
            if done.wait(min(left_s, _SETTLE_S)):
                return True
            if left_s <= 0:
                with suppress(ValueError):  # it has just been reached
                    self._handed_on.remove(done)
                return False
        for _ in self.deliver_handed_on(_hand):  # there is no such thread now
            pass
        return True

    def _settle(self, until_ns: int) -> None:
        """Wait until our thread is done with what it is at; at most until then."""
        done = Signal()
        wait_s = min(_SETTLE_S, (until_ns - self._now_ns()) / _NS)
        if not self._hangs and self._ask(done.set) and not done.wait(wait_s) and wait_s == _SETTLE_S:
            self._note_who_hangs()

    def hand_over(self, patience_s: float) -> None:
        """Have all that has ended until now forwarded, and drop what nobody takes.

        Args:
            patience_s: how long it may take without getting on; at least 1 second. As long as it does, it gets 5.
        """
        patience_ns = max(int(patience_s * _NS), _PATIENCE_NS)
        began_ns = moved_ns = self._now_ns()
        until_ns = began_ns + _MOST_NS
        handed_over = False

        def hand_over() -> None:
            nonlocal handed_over
            self._own = _thread.get_ident()
            drain = FlushLoop(self._now_ns, until_ns, patience_ns // 2, lambda seconds: Signal().wait(seconds))
            drain.run(self, self._hand_here)
            handed_over = True

        hung = self._hangs
        asked = not hung and not self._is_in_own_hand and self._ask(hand_over)
        if not asked and not hung:
            FlushLoop(self._now_ns, until_ns, patience_ns // 2, let_the_application_run).run(self, _hand)
            return
        left = self._left
        while asked and not handed_over and self._now_ns() < min(until_ns, moved_ns + patience_ns):
            let_the_application_run(ROOM_S)
            if self._left != left:
                left, moved_ns = self._left, self._now_ns()
        if not handed_over:
            hanging = self._in_hand
            drain = FlushLoop(self._now_ns, self._now_ns(), 0, let_the_application_run)
            drain.run(self, _hand, given_up=hanging, lost=int(hanging is not None and asked))
            self._note_who_hangs()

    @property
    def _left(self) -> int:
        return len(self._transactions) + len(self._handed_on)

    @property
    def _hangs(self) -> bool:
        """Whether our thread is still with the exporter that somebody has waited for in vain."""
        return self._in_hand is not None and self._handed == self._hung_at

    @property
    def _is_in_own_hand(self) -> bool:
        """Whether this is our own thread, in what it has handed a span to: it cannot wait for itself."""
        return self._in_hand is not None and self._own == _thread.get_ident()

    def _note_who_hangs(self) -> None:
        if self._in_hand is not None:
            self._hung_at = self._handed

    # ---- on any ----

    def annotated(self, span: Any, stacks: Mapping[bytes, int] | None = None) -> Any:
        """`span`, or a copy with what is known; never raises: what cannot be copied, as views are, stays."""
        try:
            return self._host_id.added(with_stacks(span, stacks) if stacks else span)
        except Exception as error:
            self._writing.note(error)
            return span

    @property
    def is_behind(self) -> bool:
        """Whether flushes have left spans to our own thread."""
        return bool(self._handed_on)

    def first_end_ns(self) -> int | None:
        """See `Transactions.first_end_ns`."""
        return self._transactions.first_end_ns()

    def deliver_handed_on(self, hand: Hand) -> Iterator[None]:
        """Forward what flushes have left to our own thread, one by one."""
        while self._handed_on:
            try:
                handed_on = self._handed_on.popleft()
            except IndexError:  # another thread was quicker
                return
            if isinstance(handed_on, Signal):
                handed_on.set()
                continue
            try:
                hand(*handed_on)
            except Exception as error:
                self._guard.note(error)
            yield

    def deliver_begun(self, hand: Hand, *, flushing: bool) -> Iterator[None]:
        """Forward what others have begun to forward and are not done with, one by one; who flushes only waits for it
        where it is for our own thread."""
        if not flushing:
            yield from self.deliver_handed_on(hand)
        for transaction in list(self._under_way.values()):
            self._deliver(transaction, hand)
            yield

    def deliver_some(self, ended_before_ns: int, most: int, hand: Hand) -> Iterator[None]:
        """Forward some of those that ended until then, one by one."""
        for transaction in self._transactions.due(ended_before_ns, most):
            self._deliver(transaction, hand)
            yield

    def _deliver(self, transaction: Transaction, hand: Hand) -> None:
        stacks = transaction.stacks
        original = made = None
        own = _thread.get_ident()
        depth = self._depth.get(own, 0)
        self._depth[own] = depth + 1
        self._under_way[id(transaction)] = transaction
        try:
            for one, span in transaction.take():
                try:
                    if span is not original:
                        original, made = span, self.annotated(span, stacks)
                    hand(one, made)
                except Exception as error:
                    self._guard.note(error)
        finally:
            if not transaction.deliveries:
                self._under_way.pop(id(transaction), None)
            if depth:
                self._depth[own] = depth
            else:
                self._depth.pop(own, None)


def _hand(one: Exporting, span: Any) -> None:
    one.on_end(span)


def _nothing() -> None:
    pass
