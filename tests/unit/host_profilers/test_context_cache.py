"""Tests of the context cache: contexts that are entered again and stay the same are not looked up."""

from __future__ import annotations

import contextvars
import gc
import os
import weakref
from typing import Any

import pytest

pytest.importorskip("splunk_profiler._context", reason="the native publisher is not built for this interpreter")

from own_memory import SPAN_KEY, Context, Elastic, InstalledPublisher, OwnMemory, Span

from splunk_profiler import _context

TRACE, ROOT, CHILD = 0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331, 0x00F067AA0BA902B7
NO_TRACE = Elastic(1, 1, 0, 0, 0, 0, 0)
MAX_CONTEXTS = 1024
FOUND_A_PLACE = 100 if os.environ.get("PYTHONMALLOC") == "malloc" else 200  # of 300: others' addresses are less even


def shown(span_id: int) -> Elastic:
    return Elastic(1, 1, 1, 1, TRACE, span_id, span_id)


def inside(publishing: InstalledPublisher, span: Any) -> contextvars.Context:
    """Return a context in which `span` is current."""
    token = publishing.attach(span)
    copied = contextvars.copy_context()
    _context.detach(token)
    return copied


def is_known(context: contextvars.Context) -> bool:
    """Return True if its entry is a cache hit."""
    before = _context.counters()["cache_hits"]
    return bool(context.run(lambda: _context.counters()["cache_hits"]) - before)


def make_known(context: contextvars.Context) -> contextvars.Context:
    """Enter `context` twice, which caches it."""
    for _ in range(2):
        context.run(int)
    assert is_known(context)
    return context


def references() -> int:
    gc.collect()
    return sum(type(found) is weakref.ref for found in gc.get_objects())


def test_a_context_is_known_once_it_has_been_entered_twice(publishing: InstalledPublisher, memory: OwnMemory) -> None:
    context = inside(publishing, Span(TRACE, ROOT))
    assert [is_known(context) for _ in range(5)] == [False, False, True, True, True]
    assert context.run(memory.elastic) == shown(ROOT)
    assert memory.elastic() == NO_TRACE


def test_what_a_context_shows_is_known_of_its_copies_too(publishing: InstalledPublisher, memory: OwnMemory) -> None:
    context = make_known(inside(publishing, Span(TRACE, ROOT)))
    copied = context.copy()
    assert is_known(copied)
    assert copied.run(memory.elastic) == shown(ROOT)


@pytest.mark.usefixtures("publishing")
def test_a_context_without_variables_is_known_at_once(memory: OwnMemory) -> None:
    contextvars.Context().run(int)
    assert is_known(contextvars.Context())
    assert contextvars.Context().run(memory.elastic) in (None, NO_TRACE)


def test_that_a_context_has_no_span_is_known_too(publishing: InstalledPublisher, memory: OwnMemory) -> None:
    outer = publishing.attach(Span(TRACE, ROOT))
    for context in (inside(publishing, None), inside(publishing, Span(TRACE, CHILD, is_remote=True))):
        make_known(context)
        assert context.run(memory.elastic) == NO_TRACE
        assert memory.elastic() == shown(ROOT)
    _context.detach(outer)


def test_labels_are_known_with_their_context(publishing: InstalledPublisher, memory: OwnMemory) -> None:
    context = inside(publishing, Span(TRACE, ROOT))
    context.run(publishing.labels.set, _context.UserLabels(((b"route", b"/checkout"),)))
    make_known(context)
    found = context.run(memory.labels)
    assert found is not None
    assert found[3:] == [(b"route", b"/checkout")]


def test_an_exception_on_its_way_out_of_a_known_context_passes_by(
    publishing: InstalledPublisher, memory: OwnMemory
) -> None:
    context = make_known(inside(publishing, Span(TRACE, ROOT)))

    def fail() -> None:
        raise LookupError("mine")

    for _ in range(3):
        with pytest.raises(LookupError, match="mine"):
            context.run(fail)
        assert memory.elastic() == NO_TRACE


def test_a_known_context_and_what_is_in_it_end_as_if_it_were_not(publishing: InstalledPublisher) -> None:
    kept: contextvars.ContextVar[Any] = contextvars.ContextVar("kept")
    span = Span(TRACE, ROOT)
    _context.assign_identity(span)
    context = inside(publishing, span)
    value = Span(TRACE, CHILD)
    context.run(kept.set, value)
    make_known(context)
    watched: list[weakref.ref[Any]] = [weakref.ref(span), weakref.ref(value), weakref.ref(context)]
    del span, value, context
    assert [reference() for reference in watched] == [None] * 3


def test_however_many_contexts_come_and_go_each_shows_its_own_span(
    publishing: InstalledPublisher, memory: OwnMemory
) -> None:
    span = Span(TRACE, ROOT)
    for number in range(1, 3000):
        other = Span(TRACE, number)
        context = inside(publishing, other if number % 3 else span)
        seen = {context.run(memory.elastic) for _ in range(4)}
        assert seen == {shown(number if number % 3 else ROOT)}


def test_more_contexts_in_turn_than_can_be_known_show_their_own_spans(
    publishing: InstalledPublisher, memory: OwnMemory
) -> None:
    without = references()
    contexts = [inside(publishing, Span(TRACE, number)) for number in range(1, 3001)]
    for _ in range(4):
        assert [context.run(memory.elastic) for context in contexts] == [shown(n) for n in range(1, 3001)]
    assert 100 < references() - without <= MAX_CONTEXTS
    known = [is_known(context) for context in contexts]
    still = [before and is_known(context) for before, context in zip(known, contexts, strict=True)]
    assert sum(still) > 0.7 * sum(known) > 100, "those that are known are not driven out by those that are not"
    publishing.uninstall()
    assert references() <= without


def test_known_contexts_that_are_over_make_room_for_others(publishing: InstalledPublisher) -> None:
    for _ in range(8):  # more than twice as many in all as can be known
        contexts = [inside(publishing, Span(TRACE, number)) for number in range(1, 301)]
        known = [[is_known(context) for context in contexts] for _ in range(3)]
        assert sum(known[2]) > FOUND_A_PLACE
        contexts.clear()


def test_attach_and_detach_make_nothing_known(publishing: InstalledPublisher) -> None:
    context, before = Context({SPAN_KEY: Span(TRACE, ROOT)}), references()
    for _ in range(1000):
        _context.detach(_context.attach(context))
    assert references() <= before
    assert publishing.asked == [context[SPAN_KEY]]


def test_nothing_is_known_after_publishing_has_stopped(publishing: InstalledPublisher, memory: OwnMemory) -> None:
    context, bare = make_known(inside(publishing, Span(TRACE, ROOT))), contextvars.Context()
    bare.run(int)
    assert is_known(bare)
    publishing.uninstall()
    publishing.install()
    assert not is_known(bare)
    assert not is_known(context)
    assert context.run(memory.elastic) == shown(ROOT)


def test_nothing_is_known_in_a_child_of_a_fork(publishing: InstalledPublisher, memory: OwnMemory) -> None:
    context = make_known(inside(publishing, Span(TRACE, ROOT)))
    _context.reset_after_fork()
    assert not is_known(context)
    assert context.run(memory.elastic) == shown(ROOT)
