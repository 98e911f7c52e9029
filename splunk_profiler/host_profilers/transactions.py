"""Which transactions there are, which stacks were seen in them, and which of them are to be forwarded when.

`Transactions` is the bookkeeping of the correlation: pure, without a clock and without a thread of its own. A
transaction is a local root span that is sampled. The application's threads call `begin` and `defer`, wherever a span
begins or ends, be it in a signal handler or in a finaliser: so nothing here waits for a lock. Each step that matters is
one operation on a dict or a deque, which the interpreter does not interrupt. `count` is for one thread only.

Specification: Elastic universal profiling integration, "Correlation Attribute".
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Any

MAX_STACK_IDS = 100_000  # of one transaction: spans that are larger than a collector takes would be lost as a whole
_MAX_LIVE = 65_536
_MAX_UNMATCHED = 512
_MAX_UNMATCHED_STACKS = 64
_MAX_REFUSED = 64

Exporter = Any
"""One exporting processor, as it is given to `Transactions.defer`."""


class Transaction:
    """One local root span, from its start until it is forwarded.

    Attributes:
        key: trace id and span id as one number.
        ended_ns: when it ended, 0 while it lives.
        deliveries: (exporter, span) for each exporting processor that has been told of its end; the last one first.
        is_closed: it is being forwarded; nobody will look at `deliveries` again.
        stacks: stack-trace id → how often it was seen.
        ids: the sum of that.
    """

    __slots__ = ("deliveries", "ended_ns", "ids", "is_closed", "key", "stacks")

    def __init__(self, key: int) -> None:
        self.key = key
        self.ended_ns = 0
        self.is_closed = False
        self.deliveries: list[tuple[Exporter, Any]] | None = None
        self.stacks: dict[bytes, int] | None = None
        self.ids = 0

    def add(self, stack_trace_id: bytes, count: int) -> int:
        """Count a stack; how many of `count` were too many."""
        kept = min(count, MAX_STACK_IDS - self.ids)
        if kept:
            self.ids += kept
            if self.stacks is None:
                self.stacks = {}
            self.stacks[stack_trace_id] = self.stacks.get(stack_trace_id, 0) + kept
        return count - kept

    def take(self) -> Iterator[tuple[Exporter, Any]]:
        """The deliveries that are left, each for one taker."""
        while self.deliveries:
            try:
                yield self.deliveries.pop()
            except IndexError:  # another thread was quicker
                return


class Transactions:
    """The transactions of a process.

    Args:
        size: how many may wait to be forwarded.

    Attributes:
        matched: samples that were counted to a transaction.
        unmatched: samples of transactions that nobody knew (not sampled, or forwarded already).
        beyond: samples beyond `MAX_STACK_IDS` of one transaction.
        refused: transactions that found the queue full.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._max_known = _MAX_LIVE + size
        self._known: dict[int, Transaction] = {}
        self._refused: dict[int, Transaction] = {}
        self._waiting: deque[Transaction] = deque()
        self._unmatched: dict[int, Transaction] = {}
        self.matched = self.unmatched = self.beyond = self.refused = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def begin(self, key: int) -> None:
        """A transaction starts."""
        known = self._known
        known[key] = Transaction(key)
        _evict_oldest(known, self._max_known)

    def defer(self, key: int, exporter: Exporter, span: Any, now_ns: int) -> Transaction:
        """A transaction has ended: keep `span` for `exporter`.

        Args:
            key: of the transaction.
            exporter: is to be given the span; there is a call for each exporter.
            span: the span.
            now_ns: the time.

        Returns:
            The transaction. If it is `is_closed`, because there is no room or its time is over, the caller delivers it.
        """
        transaction = self._known.get(key) or self._refused.get(key)
        if transaction is None:
            # It began before anybody listened. Samples of it may have come all the same.
            early_transaction: Transaction | None = self._unmatched.pop(key, None)
            transaction = self._known.setdefault(
                key, Transaction(key) if early_transaction is None else early_transaction
            )
            self.matched += transaction.ids
            self.unmatched -= transaction.ids
        if not transaction.ended_ns:
            transaction.deliveries = []
            transaction.ended_ns = now_ns
            if len(self._waiting) < self._size:
                self._waiting.append(transaction)
            else:
                self._refuse(transaction)
        deliveries = transaction.deliveries
        assert deliveries is not None  # set before `ended_ns`
        deliveries.append((exporter, span))
        return transaction

    def count(self, key: int, stack_trace_id: bytes, count: int) -> None:
        """A stack was seen `count` times in a transaction."""
        transaction = self._known.get(key)
        if transaction is not None:
            beyond = transaction.add(stack_trace_id, count)
            self.beyond += beyond
            self.matched += count - beyond
            return
        self.unmatched += count
        transaction = self._unmatched.get(key)
        if transaction is None:
            transaction = self._unmatched[key] = Transaction(key)
            _evict_oldest(self._unmatched, _MAX_UNMATCHED)
        if transaction.stacks is None or len(transaction.stacks) < _MAX_UNMATCHED_STACKS:
            transaction.add(stack_trace_id, count)

    def due(self, before_ns: int, max_count: int = sys.maxsize) -> Iterator[Transaction]:
        """Those that ended until then, at most so many; each for one taker and out of the queue."""
        waiting = self._waiting
        for _ in range(max_count):
            try:
                if waiting[0].ended_ns > before_ns:
                    return
                transaction = waiting.popleft()
            except IndexError:  # none is left
                return
            self._close(transaction)
            yield transaction

    def first_end_ns(self) -> int | None:
        """When the first of those that wait ended; None if none waits."""
        try:
            return self._waiting[0].ended_ns
        except IndexError:
            return None

    def _refuse(self, transaction: Transaction) -> None:
        self.refused += 1
        self._refused[transaction.key] = transaction  # for the other exporting processors, which are told next
        _evict_oldest(self._refused, _MAX_REFUSED)
        self._close(transaction)

    def _close(self, transaction: Transaction) -> None:
        self._known.pop(transaction.key, None)
        transaction.is_closed = True


def _evict_oldest(known: dict[int, Transaction], max_count: int) -> None:
    """Spans that are never ended, or never known, must not stay for ever.

    The oldest go, many at once: a dict whose first entries have been taken out one by one takes long to find its first.
    """
    if len(known) > max_count:
        for key in list(islice(known, max_count // 8 + 1)):
            known.pop(key, None)
