"""Which threads of a snapshot its record lists."""

from __future__ import annotations

from typing import Any

import pytest
from written_snapshots import Numbers, decode

from splunk_profiler.capture.snapshot_writer import PortableSnapshotWriter
from splunk_profiler.raw import RawSnapshot, RawThread
from splunk_profiler.stream.records import CHANGES, COMPLETE, FOCUSED, ThreadEntry
from splunk_profiler.stream.writer import Floors

STACK, OTHER_STACK = object(), object()
ALL_VALID = Floors(1, 1, 1, 1)


def thread(
    key: int, stack: object = STACK, context: object = None, labels: object = None, *, cpu_ns: int = 5, state: int = 0
) -> Any:
    return RawThread(key, 0, 0, stack, context, labels, cpu_ns, state)


class Bench:
    """A portable writer, whose threads are made up."""

    def __init__(self) -> None:
        self.numbers = Numbers()
        self.entries: list[ThreadEntry] = []  # of the last snapshot
        self.writer = PortableSnapshotWriter(**self.numbers.callables())

    def see(self, *threads: Any, is_complete: bool = False, is_focused: bool = False) -> tuple[list[int], list[int]]:
        """Return the numbers of the threads that are listed, and of those that have ended."""
        raw = RawSnapshot(1, 2, threads, 3, is_focused, 4, 5, 6)
        encoded, ended_keys = self.writer.write(raw, is_complete, ALL_VALID)
        record = decode(encoded)
        self.entries = record.threads
        assert record[:6] == (1, 6, 2, 3, 4, 5)
        assert record.scope == (FOCUSED if is_focused else COMPLETE if is_complete else CHANGES)
        assert record.idle == len(threads) - len(record.threads)
        assert record.ended == ended_keys
        return [entry.thread for entry in record.threads], record.ended


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_idle_thread_is_listed_once_more_and_then_when_it_changes(bench: Bench) -> None:
    assert bench.see(thread(1), thread(2)) == ([1, 2], [])
    # The first snapshot in which they are known to be idle.
    assert bench.see(thread(1), thread(2)) == ([1, 2], [])
    for _ in range(3):
        assert bench.see(thread(1), thread(2)) == ([], [])
    assert bench.see(thread(1), thread(2, OTHER_STACK)) == ([2], [])
    assert bench.see(thread(2, OTHER_STACK)) == ([], [1])


@pytest.mark.parametrize("field", ["stack", "context", "labels"])
def test_thread_with_another_stack_context_or_labels_is_listed(bench: Bench, field: str) -> None:
    before = thread(1, *[object()] * 3)
    for _ in range(3):
        bench.see(before)
    after = before._replace(**{field: object()})
    assert bench.see(after) == ([1], [])
    assert bench.see(after) == ([], [])


def test_thread_that_has_used_cpu_time_is_listed_each_time(bench: Bench) -> None:
    assert [bench.see(thread(1, cpu_ns=cpu_ns)) for cpu_ns in range(1, 6)] == [([1], [])] * 5


@pytest.mark.parametrize("state", [1, 2])
def test_thread_that_does_not_wait_is_listed_whatever_its_cpu_time(bench: Bench, state: int) -> None:
    for _ in range(4):
        assert bench.see(thread(1, state=state), thread(2))[0][0] == 1
    assert bench.see(thread(1), thread(2)) == ([1], [])


def test_thread_whose_state_is_not_known_rests_if_its_clock_does(bench: Bench) -> None:
    unknown = thread(1)._replace(state=None)
    assert [len(bench.see(unknown)[0]) for _ in range(4)] == [1, 1, 0, 0]


def test_thread_whose_clock_cannot_be_read_any_more_rests(bench: Bench) -> None:
    for cpu_ns in (5, 5, 0):
        bench.see(thread(1, cpu_ns=cpu_ns))
    assert bench.see(thread(1)) == ([], [])


def test_complete_record_lists_idle_threads_and_who_has_ended(bench: Bench) -> None:
    for _ in range(3):
        bench.see(thread(1), thread(2))
    assert bench.see(thread(2), thread(3), is_complete=True) == ([2, 3], [1])
    assert bench.see(thread(2), thread(3)) == ([3], [])


def test_focused_record_lists_its_threads_and_changes_nothing(bench: Bench) -> None:
    for _ in range(3):
        bench.see(thread(1), thread(2))
    assert bench.see(thread(2), is_focused=True) == ([2], [])
    assert bench.see(thread(1), thread(2)) == ([], [])
