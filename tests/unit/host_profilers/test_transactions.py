"""Tests of transactions, their samples and their queue."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

from splunk_profiler.host_profilers.transactions import MAX_STACK_IDS, Transaction, TransactionBuffer

ONE, OTHER = b"1" * 16, b"2" * 16
EXPORTER, SECOND = "exporter", "second exporter"


def ended(transactions: TransactionBuffer, key: int, span: str, now_ns: int = 10) -> Transaction:
    transactions.begin(key)
    return transactions.defer(key, EXPORTER, span, now_ns)


def test_samples_that_come_before_and_after_the_end_are_counted_together() -> None:
    transactions = TransactionBuffer(10)
    transactions.begin(7)
    transactions.count(7, ONE, 2)
    transactions.defer(7, EXPORTER, "span", 10)
    transactions.count(7, OTHER, 1)
    transactions.count(7, ONE, 1)
    (transaction,) = transactions.due(10)
    assert transaction.stacks == {ONE: 3, OTHER: 1}
    assert list(transaction.take()) == [(EXPORTER, "span")]
    assert (transactions.matched, transactions.unmatched) == (4, 0)


def test_transactions_come_in_the_order_of_their_ends_and_not_early() -> None:
    transactions = TransactionBuffer(10)
    for key in (3, 1, 2):
        ended(transactions, key, str(key), now_ns=10 * key if key != 3 else 5)
    assert [one.key for one in transactions.due(10)] == [3, 1]
    assert transactions.first_end_ns() == 20
    assert [one.key for one in transactions.due(19)] == []
    assert [one.key for one in transactions.due(20)] == [2]
    assert transactions.first_end_ns() is None


def test_no_more_are_taken_than_there_is_room_for() -> None:
    transactions = TransactionBuffer(10)
    for key in (1, 2, 3):
        ended(transactions, key, str(key))
    assert [one.key for one in transactions.due(10, 2)] == [1, 2]
    assert len(transactions) == 1


def test_samples_after_the_transaction_was_forwarded_are_unmatched() -> None:
    transactions = TransactionBuffer(10)
    ended(transactions, 1, "span")
    (transaction,) = transactions.due(10)
    transactions.count(1, ONE, 5)
    assert transaction.stacks is None
    assert (transactions.matched, transactions.unmatched) == (0, 5)


def test_samples_from_before_a_transaction_was_known_are_found_at_its_end() -> None:
    transactions = TransactionBuffer(10)
    transactions.count(1, ONE, 5)
    assert transactions.unmatched == 5
    transactions.defer(1, EXPORTER, "span", 10)  # it began before the first message
    (transaction,) = transactions.due(10)
    assert transaction.stacks == {ONE: 5}
    assert (transactions.matched, transactions.unmatched) == (5, 0)


def test_all_exporters_of_a_transaction_are_given_their_span_at_once() -> None:
    transactions = TransactionBuffer(10)
    transactions.begin(1)
    transactions.defer(1, EXPORTER, "span", 10)
    transactions.defer(1, SECOND, "span", 11)
    assert len(transactions) == 1
    (transaction,) = transactions.due(10)
    assert sorted(transaction.take()) == [(EXPORTER, "span"), (SECOND, "span")]


def test_a_span_deferred_after_its_transaction_starts_another_one() -> None:
    transactions = TransactionBuffer(10)
    transactions.begin(1)
    transaction = transactions.defer(1, EXPORTER, "span", 10)
    assert not transaction.is_closed
    assert [list(one.take()) for one in transactions.due(10)] == [[(EXPORTER, "span")]]
    late = transactions.defer(1, SECOND, "span", 11)
    assert late is not transaction
    assert [list(one.take()) for one in transactions.due(11)] == [[(SECOND, "span")]]


def test_a_full_queue_refuses_and_gives_what_is_known_to_every_exporter() -> None:
    transactions = TransactionBuffer(1)
    ended(transactions, 1, "waits")
    transactions.begin(2)
    transactions.count(2, ONE, 3)
    for exporter in (EXPORTER, SECOND):
        refused = transactions.defer(2, exporter, "span", 10)
        assert refused.is_closed
        assert refused.stacks == {ONE: 3}
        assert list(refused.take()) == [(exporter, "span")]
    assert transactions.refused == 1
    assert len(transactions) == 1


def test_ids_of_one_transaction_are_bounded_and_the_surplus_is_counted() -> None:
    transactions = TransactionBuffer(10)
    transactions.begin(1)
    for _ in range(3):
        transactions.count(1, ONE, 65_535)
    transactions.count(1, OTHER, 1)
    transactions.defer(1, EXPORTER, "span", 10)
    (transaction,) = transactions.due(10)
    assert transaction.stacks == {ONE: MAX_STACK_IDS}
    assert transactions.matched == MAX_STACK_IDS
    assert transactions.beyond == 3 * 65_535 + 1 - MAX_STACK_IDS


def test_spans_that_never_end_and_samples_of_strangers_do_not_pile_up() -> None:
    transactions, count = TransactionBuffer(10), 100_000
    for key in range(count):
        transactions.begin(key)
        transactions.count(1_000_000 + key, ONE, 1)
    assert sum(1 for key in range(count) if _is_known(transactions, key)) < 70_000
    assert transactions.unmatched >= count


def test_full_queue_refuses_on_many_threads_at_once() -> None:
    transactions = TransactionBuffer(1)
    transactions.defer(0, EXPORTER, "waits", 1)
    lost: list[list[str]] = []

    def work(number: int) -> None:
        for key in range(number << 40, (number << 40) + 30_000):
            transactions.begin(key)
            got = [
                who for exporter in (EXPORTER, SECOND) for who, _ in transactions.defer(key, exporter, "s", 1).take()
            ]
            if got != [EXPORTER, SECOND]:
                lost.append(got)

    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(6) as pool:
            list(pool.map(work, range(1, 7)))  # raises what they have raised
    finally:
        sys.setswitchinterval(interval_s)
    assert not lost


def _is_known(transactions: TransactionBuffer, key: int) -> bool:
    before = transactions.matched
    transactions.count(key, ONE, 1)
    return transactions.matched > before


def test_spans_ended_on_many_threads_are_forwarded_once() -> None:
    transactions = TransactionBuffer(1_000_000)
    threads, each = 6, 20_000
    left = [threads]
    got: list[str] = []

    def work(number: int) -> None:
        for index in range(each):
            key = number * each + index
            transactions.begin(key)
            transaction = transactions.defer(key, EXPORTER, f"{number}-{index}", 1)
            if transaction.is_closed:
                got.extend(span for _, span in transaction.take())
        left[0] -= 1

    def forward() -> None:
        while left[0] or len(transactions):
            for transaction in transactions.due(1):
                got.extend(span for _, span in transaction.take())

    running = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    running += [threading.Thread(target=forward) for _ in range(2)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert len(got) == threads * each
    assert len(set(got)) == threads * each
