"""Tests of a thread's records of its context, in both layouts."""

from __future__ import annotations

import contextvars
import threading
from typing import Any

import pytest

pytest.importorskip("splunk_profiler._context", reason="the native publisher is not built for this interpreter")

from own_memory import ATTRIBUTE, SPAN_KEY, Elastic, InstalledPublisher, OwnMemory, Span

from splunk_profiler import _context

TRACE, ROOT, CHILD = 0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331, 0x00F067AA0BA902B7
NO_TRACE = Elastic(1, 1, 0, 0, 0, 0, 0)


def trace_labels(trace_id: int, span_id: int, root_id: int) -> list[tuple[bytes, bytes]]:
    return [
        (b"trace_id", f"{trace_id:032x}".encode()),
        (b"span_id", f"{span_id:016x}".encode()),
        (b"local_root_span_id", f"{root_id:016x}".encode()),
    ]


def in_thread(run: Any) -> Any:
    """Return the result of `run` on a new thread."""
    result = []
    thread = threading.Thread(target=lambda: result.append(run()))
    thread.start()
    thread.join()
    return result[0]


def test_an_attached_span_is_shown_in_both_layouts(publishing: InstalledPublisher, memory: OwnMemory) -> None:
    token = publishing.attach(Span(TRACE, ROOT))
    assert memory.elastic() == Elastic(1, 1, 1, 1, TRACE, ROOT, ROOT)
    assert memory.labels() == trace_labels(TRACE, ROOT, ROOT)
    _context.detach(token)


def test_record_after_the_last_span_is_valid_and_has_no_trace(
    publishing: InstalledPublisher, memory: OwnMemory
) -> None:
    _context.detach(publishing.attach(Span(TRACE, ROOT)))
    assert memory.elastic() == NO_TRACE
    assert memory.labels() == []


def test_the_outer_span_is_shown_again_when_the_inner_one_is_left(
    publishing: InstalledPublisher, memory: OwnMemory
) -> None:
    tokens = []
    for span_id in range(1, 6):
        tokens.append(publishing.attach(Span(TRACE, span_id)))
        assert memory.elastic() == Elastic(1, 1, 1, 1, TRACE, span_id, span_id)
    for span_id in range(4, 0, -1):
        _context.detach(tokens.pop())
        assert memory.elastic() == Elastic(1, 1, 1, 1, TRACE, span_id, span_id)
        assert memory.labels() == trace_labels(TRACE, span_id, span_id)
    _context.detach(tokens.pop())


def test_what_is_shown_is_complete_before_the_pointer_leads_to_it(
    publishing: InstalledPublisher, memory: OwnMemory
) -> None:
    tokens, addresses = [], set()
    for span_id in range(1, 9):
        span = Span(TRACE, span_id)
        _context.assign_identity(span)
        tokens.append(publishing.attach(span))
        addresses.add(memory.elastic_slot()[0])
    assert len(addresses) == 2, "two halves take turns: the one that is pointed to is never written"
    for token in reversed(tokens):
        _context.detach(token)


def test_the_same_context_again_writes_nothing(publishing: InstalledPublisher) -> None:
    token = publishing.attach(Span(TRACE, ROOT))
    before = _context.counters()
    _context.publish()
    after = _context.counters()
    assert (after["published"], after["unchanged"]) == (before["published"], before["unchanged"] + 1)
    _context.detach(token)


@pytest.mark.parametrize("span", [Span(TRACE, ROOT, is_remote=True), Span(0, 0), Span(TRACE, 0), Span(0, ROOT)])
def test_a_remote_or_invalid_span_is_no_trace_and_is_not_looked_up(
    publishing: InstalledPublisher, memory: OwnMemory, span: Span
) -> None:
    outer = publishing.attach(Span(TRACE, ROOT))
    token = publishing.attach(span)
    assert memory.elastic() == NO_TRACE
    assert memory.labels() == []
    assert span not in publishing.asked
    assert getattr(span, ATTRIBUTE) is None
    _context.detach(token)
    _context.detach(outer)


@pytest.mark.parametrize("context", [None, {}, {SPAN_KEY: None}, {"another": 1}, "text", object()])
def test_a_context_without_a_span_is_no_trace(publishing: InstalledPublisher, memory: OwnMemory, context: Any) -> None:
    outer = publishing.attach(Span(TRACE, ROOT))
    token = _context.attach(context)
    assert memory.elastic() == NO_TRACE
    _context.detach(token)
    assert memory.elastic() != NO_TRACE
    _context.detach(outer)


def test_a_thread_that_never_had_a_span_or_labels_has_no_memory(memory: OwnMemory) -> None:
    def run() -> Any:
        _context.publish()
        _context.detach(_context.attach({}))
        return memory.elastic(), memory.labels()

    assert in_thread(run) == (None, None)


def test_every_thread_shows_its_own_span(publishing: InstalledPublisher, memory: OwnMemory) -> None:
    reached, leave = threading.Barrier(9), threading.Event()
    slots = {}

    def run(span_id: int) -> None:
        publishing.attach(Span(TRACE, span_id))
        slots[span_id] = memory.elastic_slot()
        reached.wait()
        leave.wait()

    threads = [threading.Thread(target=run, args=(span_id,)) for span_id in range(1, 9)]
    for thread in threads:
        thread.start()
    reached.wait()
    shown = {span_id: memory.elastic(slot) for span_id, slot in slots.items()}
    leave.set()
    for thread in threads:
        thread.join()
    assert shown == {span_id: Elastic(1, 1, 1, 1, TRACE, span_id, span_id) for span_id in range(1, 9)}


def test_a_copied_context_shows_its_span_while_it_runs(publishing: InstalledPublisher, memory: OwnMemory) -> None:
    token = publishing.attach(Span(TRACE, ROOT))
    copied = contextvars.copy_context()
    _context.detach(token)
    assert copied.run(memory.elastic) == Elastic(1, 1, 1, 1, TRACE, ROOT, ROOT)
    assert memory.elastic() == NO_TRACE


def test_an_exception_on_its_way_out_of_a_context_passes_by(publishing: InstalledPublisher, memory: OwnMemory) -> None:
    token = publishing.attach(Span(TRACE, ROOT))

    def leave_with_an_error() -> None:
        publishing.attach(Span(TRACE, CHILD))
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        contextvars.copy_context().run(leave_with_an_error)
    assert memory.elastic() == Elastic(1, 1, 1, 1, TRACE, ROOT, ROOT)
    _context.detach(token)


def test_after_uninstalling_no_thread_shows_anything(publishing: InstalledPublisher, memory: OwnMemory) -> None:
    reached, leave = threading.Barrier(2), threading.Event()
    slots = []

    def run() -> None:
        publishing.attach(Span(TRACE, CHILD))
        slots.extend([memory.elastic_slot(), memory.labels_slot()])
        reached.wait()
        leave.wait()

    token = publishing.attach(Span(TRACE, ROOT))
    thread = threading.Thread(target=run)
    thread.start()
    reached.wait()
    publishing.uninstall()
    shown = [memory.elastic(), memory.labels(), memory.elastic(slots[0]), memory.labels(slots[1])]
    _context.detach(token)
    shown.append(memory.elastic())
    leave.set()
    thread.join()
    assert shown == [None] * 5


def test_installed_again_the_current_span_is_shown_again(publishing: InstalledPublisher, memory: OwnMemory) -> None:
    token = publishing.attach(Span(TRACE, ROOT))
    publishing.uninstall()
    publishing.uninstall()
    publishing.install()
    assert memory.elastic() == Elastic(1, 1, 1, 1, TRACE, ROOT, ROOT)
    _context.detach(token)


def test_nothing_is_shown_before_publishing_begins(publishing: InstalledPublisher, memory: OwnMemory) -> None:
    publishing.uninstall()
    publishing.install_hooks()
    token = publishing.attach(Span(TRACE, ROOT))
    contextvars.copy_context().run(publishing.publish)
    assert _context.audit() == (0, 0)
    assert memory.elastic() is None
    assert not publishing.asked
    _context.begin()
    assert memory.elastic() == Elastic(1, 1, 1, 1, TRACE, ROOT, ROOT)
    _context.detach(token)


def test_switch_that_spans_a_restart_shows_nothing_until_publishing_begins(
    publishing: InstalledPublisher, memory: OwnMemory
) -> None:
    def restart(_span: Any) -> None:
        publishing.uninstall()
        publishing.install_hooks()

    publishing.answer = restart
    token = publishing.attach(Span(TRACE, ROOT))
    shown = memory.elastic()
    publishing.answer = None
    _context.begin()
    assert (shown, memory.elastic()) == (None, Elastic(1, 1, 1, 1, TRACE, ROOT, ROOT))
    _context.detach(token)


def test_publishing_does_not_begin_without_hooks(publishing: InstalledPublisher, memory: OwnMemory) -> None:
    publishing.uninstall()
    _context.begin()
    token = publishing.attach(Span(TRACE, ROOT))
    assert memory.elastic() is None
    _context.detach(token)


def test_what_is_not_right_is_refused_at_installation() -> None:
    variable: contextvars.ContextVar[Any] = contextvars.ContextVar("v")
    wrong: Any = None
    for arguments in (
        (wrong, SPAN_KEY, variable, ATTRIBUTE, print, dict),
        (variable, b"key", variable, ATTRIBUTE, print, dict),
        (variable, SPAN_KEY, wrong, ATTRIBUTE, print, dict),
        (variable, SPAN_KEY, variable, 1, print, dict),
        (variable, SPAN_KEY, variable, ATTRIBUTE, wrong, dict),
        (variable, SPAN_KEY, variable, ATTRIBUTE, print, wrong),
    ):
        with pytest.raises(TypeError):
            _context.install(*arguments)
    assert _context.audit() == (0, 0)


def test_span_identified_in_another_context_is_shown_once_its_own_returns(
    publishing: InstalledPublisher, memory: OwnMemory
) -> None:
    _context.detach(publishing.attach(Span(TRACE, ROOT)))  # the thread has a record
    span = Span(TRACE, CHILD)
    publishing.answer = lambda _span: "nothing yet"
    token = publishing.attach(span)
    assert memory.elastic() == NO_TRACE
    identity = _context.Identity(TRACE, CHILD, ROOT, 1)
    contextvars.Context().run(setattr, span, ATTRIBUTE, identity)
    assert memory.elastic() == Elastic(1, 1, 1, 1, TRACE, CHILD, ROOT)
    _context.detach(token)


def test_publisher_installed_inside_a_context_decides_what_the_outer_shows(
    publishing: InstalledPublisher, memory: OwnMemory
) -> None:
    token = publishing.attach(Span(TRACE, ROOT))
    anew = InstalledPublisher()

    def body() -> None:
        publishing.uninstall()
        anew.install()
        anew.attach(Span(TRACE, CHILD))
        assert memory.elastic() == Elastic(1, 1, 1, 1, TRACE, CHILD, CHILD)

    contextvars.Context().run(body)
    assert memory.elastic() == NO_TRACE, "in the new variable it has no span"
    anew.uninstall()
    publishing.variable.reset(token)


def test_labels_that_come_into_being_inside_of_a_context_are_gone_with_it(
    publishing: InstalledPublisher, memory: OwnMemory
) -> None:
    token = publishing.attach(Span(TRACE, ROOT))

    def body() -> None:
        publishing.labels.set(_context.UserLabels(((b"tenant", b"one"),)))
        _context.publish()
        assert memory.labels() == [(b"tenant", b"one")]

    contextvars.Context().run(body)
    assert memory.labels() == trace_labels(TRACE, ROOT, ROOT)
    _context.detach(token)
