"""Transactions, the stacks that host profilers saw in them, and the queue of those that have ended.

A transaction is a sampled local root span. `TransactionBuffer` is pure: it has no clock and no thread.
The application's threads call `begin` and `defer` where spans begin and end, even in signal handlers
and finalisers. So nothing here waits for a lock: each step that matters is one operation on a dict or
a deque, which the interpreter does not interrupt. Only one thread may call `count`.

Specification: Elastic universal profiling integration, "Correlation Attribute".
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

MAX_STACK_IDS = 100_000  # of one transaction: a collector would refuse a larger span as a whole
_MAX_LIVE = 65_536
_MAX_UNMATCHED = 512
_MAX_UNMATCHED_STACKS = 64
_MAX_REFUSED = 64


class PendingExport(NamedTuple):
    """A span and the exporting processor that gets it."""

    exporter: Any
    span: Any


@dataclass(slots=True, eq=False)
class Transaction:
    """One local root span, from its start until it is forwarded.

    Attributes:
        ended_ns: time of its end (ns), 0 before.
        exports: one for each exporting processor; `take` begins with the last.
        is_closed: True once it has left the queue. An export added later must run at once.
        stacks: stack-trace id → number of samples.
        ids: sum of these numbers.
    """

    key: int
    ended_ns: int = 0
    exports: list[PendingExport] | None = None
    is_closed: bool = False
    stacks: dict[bytes, int] | None = None
    ids: int = 0

    def add(self, stack_trace_id: bytes, count: int) -> int:
        """Count samples of a stack. Return how many of `count` were too many."""
        kept = min(count, MAX_STACK_IDS - self.ids)
        if kept:
            self.ids += kept
            if self.stacks is None:
                self.stacks = {}
            self.stacks[stack_trace_id] = self.stacks.get(stack_trace_id, 0) + kept
        return count - kept

    def take(self) -> Iterator[PendingExport]:
        """Remove and yield the exports that are left; threads may share them."""
        while self.exports:
            try:
                yield self.exports.pop()
            except IndexError:  # another thread took it
                return


class TransactionBuffer:
    """The transactions of a process; `correlator.CorrelationCounters` documents the counters."""

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
        """Register a transaction that starts."""
        known = self._known
        known[key] = Transaction(key)
        _evict_oldest(known, self._max_known)

    def defer(self, key: int, exporter: Any, span: Any, now_ns: int) -> Transaction:
        """Keep the `span` of a transaction that has ended; called once for each `exporter`. Return the transaction.

        The caller exports one that `is_closed`: the queue is full, or its time is over.
        """
        transaction = self._known.get(key) or self._refused.get(key)
        if transaction is None:
            # It began before the correlation did. Samples of it may have come all the same.
            transaction = self._known.setdefault(key, self._unmatched.pop(key, Transaction(key)))
            self.matched += transaction.ids
            self.unmatched -= transaction.ids
        if not transaction.ended_ns:
            transaction.exports = []
            transaction.ended_ns = now_ns
            if len(self._waiting) < self._size:
                self._waiting.append(transaction)
            else:
                self._refuse(transaction)
        exports = transaction.exports
        assert exports is not None  # set before `ended_ns`
        exports.append(PendingExport(exporter, span))
        return transaction

    def count(self, key: int, stack_trace_id: bytes, count: int) -> None:
        """Count `count` samples of a stack in a transaction."""
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
        """Remove and yield up to `max_count` transactions that ended by `before_ns`; threads may share them."""
        waiting = self._waiting
        for _ in range(max_count):
            try:
                if waiting[0].ended_ns > before_ns:
                    return
                transaction = waiting.popleft()
            except IndexError:
                return
            self._close(transaction)
            yield transaction

    def first_end_ns(self) -> int | None:
        """Return when the first transaction in the queue ended; None if it is empty."""
        try:
            return self._waiting[0].ended_ns
        except IndexError:
            return None

    def _refuse(self, transaction: Transaction) -> None:
        self.refused += 1
        self._refused[transaction.key] = transaction  # for the calls of the other exporters
        self._close(transaction)
        _evict_oldest(self._refused, _MAX_REFUSED)

    def _close(self, transaction: Transaction) -> None:
        self._known.pop(transaction.key, None)
        transaction.is_closed = True


def _evict_oldest(known: dict[int, Transaction], max_count: int) -> None:
    """Remove the oldest transactions of a full dict: some never end.

    Removes many at once. A dict whose first entries are removed one by one is slow to find its first.
    """
    if len(known) > max_count:
        for key in list(known)[: max_count // 8 + 1]:  # a copy in one step: other threads change it
            known.pop(key, None)
