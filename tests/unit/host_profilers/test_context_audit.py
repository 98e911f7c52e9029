"""Tests of the audit, which repairs the records of threads that differ from their contexts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

pytest.importorskip("splunk_profiler._context", reason="the native publisher is not built for this interpreter")

from own_memory import SPAN_KEY, Elastic, InstalledPublisher, OwnMemory, Span
from unseen_changes import reset_unseen, set_unseen

from splunk_profiler import _context

TRACE, FIRST, SECOND = 0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331, 0x00F067AA0BA902B7
PAIRS = ((b"route", b"/checkout"),)


@pytest.fixture(autouse=True)
def a_record_of_this_thread(publishing: InstalledPublisher) -> None:
    """Publish a span once, so that the audit always compares this thread."""
    _context.detach(publishing.attach(known(1)))


def known(span_id: int) -> Span:
    """Return a span that has an identity."""
    span = Span(TRACE, span_id)
    _context.assign_identity(span, {})
    return span


def shown(span_id: int) -> Elastic:
    return Elastic(1, 1, 1, 1, TRACE, span_id, span_id)


@contextmanager
def waiting_thread(first: Callable[[], Any]) -> Iterator[Any]:
    """Run `first` on a thread that waits until the block ends. Yield the result."""
    reached, leave, result = threading.Event(), threading.Event(), []

    def run() -> None:
        result.append(first())
        reached.set()
        leave.wait()

    thread = threading.Thread(target=run)
    thread.start()
    reached.wait()
    try:
        yield result[0]
    finally:
        leave.set()
        thread.join()


def test_threads_that_show_the_truth_are_left_alone(publishing: InstalledPublisher, memory: OwnMemory) -> None:
    token = publishing.attach(known(FIRST))
    repaired = _context.counters()["repaired"]
    with waiting_thread(lambda: (publishing.attach(known(SECOND)), memory.elastic_slot())) as (_, slot):
        assert _context.audit() == (2, 0)
        assert memory.elastic(slot) == shown(SECOND)
    assert memory.elastic() == shown(FIRST)
    assert _context.counters()["repaired"] == repaired
    _context.detach(token)


def test_a_missed_switch_is_repaired_and_counted(publishing: InstalledPublisher, memory: OwnMemory) -> None:
    repaired = _context.counters()["repaired"]

    def switch_unseen() -> Any:
        publishing.attach(known(FIRST))
        set_unseen(publishing.variable, {SPAN_KEY: known(SECOND)})
        return memory.elastic_slot(), memory.labels_slot()

    with waiting_thread(switch_unseen) as (slot, labels_slot):
        assert memory.elastic(slot) == shown(FIRST)
        assert _context.audit() == (2, 1)
        assert memory.elastic(slot) == shown(SECOND)
        labels = memory.labels(labels_slot)
        assert labels is not None
        assert labels[1] == (b"span_id", f"{SECOND:016x}".encode())
        assert _context.audit() == (2, 0)
    assert _context.counters()["repaired"] == repaired + 1


def test_a_missed_end_of_a_span_is_repaired(publishing: InstalledPublisher, memory: OwnMemory) -> None:
    token = publishing.attach(known(FIRST))
    reset_unseen(publishing.variable, token)
    assert memory.elastic() == shown(FIRST)
    assert _context.audit() == (1, 1)
    assert memory.elastic() == Elastic(1, 1, 0, 0, 0, 0, 0)


def test_a_missed_change_of_labels_is_repaired(publishing: InstalledPublisher, memory: OwnMemory) -> None:
    token = publishing.attach(known(FIRST))
    labels = set_unseen(publishing.labels, _context.UserLabels(PAIRS))
    assert _context.audit() == (1, 1)
    found = memory.labels()
    assert found is not None
    assert found[3:] == list(PAIRS)
    reset_unseen(publishing.labels, labels)
    _context.detach(token)


class Dynamic(Span):
    """An object whose attribute lookup runs Python code."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


@pytest.mark.parametrize("kind", [Span, Dynamic])
def test_a_span_that_would_have_to_be_asked_about_is_skipped(
    publishing: InstalledPublisher, memory: OwnMemory, kind: type[Span]
) -> None:
    token = publishing.attach(known(FIRST))
    inner = set_unseen(publishing.variable, {SPAN_KEY: kind(TRACE, SECOND)})
    assert _context.audit() == (0, 0)
    assert memory.elastic() == shown(FIRST)
    assert not publishing.asked
    reset_unseen(publishing.variable, inner)
    _context.detach(token)


def test_a_thread_that_is_just_finding_out_is_skipped(publishing: InstalledPublisher, memory: OwnMemory) -> None:
    audits = []

    def answer(_: Span) -> Any:
        token = set_unseen(publishing.variable, {})
        audits.append(_context.audit())
        reset_unseen(publishing.variable, token)
        return _context.Identity(TRACE, SECOND, FIRST, 1)

    token = publishing.attach(known(FIRST))
    publishing.answer = answer
    inner = publishing.attach(Span(TRACE, SECOND))
    assert audits == [(0, 0)]
    assert memory.elastic() == Elastic(1, 1, 1, 1, TRACE, SECOND, FIRST)
    assert _context.audit() == (1, 0)
    _context.detach(inner)
    _context.detach(token)


def test_a_thread_that_could_not_start_another_is_compared(publishing: InstalledPublisher, memory: OwnMemory) -> None:
    """Before CPython 3.13 the failed start leaves a thread state behind, with the ident of the thread that tried."""

    def fail_and_switch_unseen() -> Any:
        size = threading.stack_size(1 << 62)  # more than any system has room for
        with pytest.raises(RuntimeError, match="can't start new thread"):
            threading.Thread(target=print).start()
        threading.stack_size(size)
        publishing.attach(known(FIRST))
        set_unseen(publishing.variable, {SPAN_KEY: known(SECOND)})
        return memory.elastic_slot()

    with waiting_thread(fail_and_switch_unseen) as slot:
        assert _context.audit() == (2, 1)
        assert memory.elastic(slot) == shown(SECOND)


def test_two_hundred_threads_are_compared_at_once(publishing: InstalledPublisher) -> None:
    ready, leave = threading.Barrier(201), threading.Event()

    def run(number: int) -> None:
        publishing.attach(known(number + 1))
        if number % 2:
            set_unseen(publishing.variable, {})
        ready.wait()
        leave.wait()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(200)]
    for thread in threads:
        thread.start()
    ready.wait()
    audits = [_context.audit(), _context.audit()]
    leave.set()
    for thread in threads:
        thread.join()
    assert audits == [(201, 100), (201, 0)]


def test_without_a_publisher_there_is_nothing_to_compare(publishing: InstalledPublisher) -> None:
    token = publishing.attach(known(FIRST))
    publishing.uninstall()
    assert _context.audit() == (0, 0)
    _context.detach(token)


def test_thread_waiting_in_a_span_shows_it_again_after_a_restart(
    publishing: InstalledPublisher, memory: OwnMemory
) -> None:
    def enter() -> Any:
        publishing.attach(known(FIRST))
        return memory.elastic_slot()

    with waiting_thread(enter) as slot:
        publishing.uninstall()
        hidden = memory.elastic(slot)
        publishing.install()
        _, repaired = _context.audit()
        shown_again = memory.elastic(slot)
    assert (hidden, shown_again, repaired) == (None, shown(FIRST), 0)
