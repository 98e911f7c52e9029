"""Tests of everything that changes the record of a cached context."""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("splunk_profiler._context", reason="the native publisher is not built for this interpreter")

from own_memory import ATTRIBUTE, SPAN_KEY, Context, Elastic, InstalledPublisher, OwnMemory, Span
from unseen_changes import set_unseen

from splunk_profiler import _context

TRACE, ROOT, CHILD = 0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331, 0x00F067AA0BA902B7
NO_TRACE = Elastic(1, 1, 0, 0, 0, 0, 0)
PAIRS = ((b"tenant", b"one"),)
LABELS = _context.UserLabels(PAIRS)
ENOUGH = 4  # entries that cache a context, if it can be cached


def shown(span_id: int) -> Elastic:
    return Elastic(1, 1, 1, 1, TRACE, span_id, span_id)


def inside(publishing: InstalledPublisher, span: Any) -> contextvars.Context:
    """Return a context in which `span` is current, entered `ENOUGH` times."""
    return entered(in_context(publishing, Context({publishing.span_key: span})))


def in_context(publishing: InstalledPublisher, context: Any) -> contextvars.Context:
    outer = contextvars.copy_context()
    outer.run(set_unseen, publishing.variable, context)
    return outer


def entered(context: contextvars.Context) -> contextvars.Context:
    for _ in range(ENOUGH):
        context.run(int)
    return context


def always(context: contextvars.Context, memory: OwnMemory) -> Elastic | None:
    """Return the record of each of `ENOUGH` entries, which must be the same."""
    seen = {context.run(memory.elastic) for _ in range(ENOUGH)}
    assert len(seen) == 1
    return seen.pop()


@pytest.fixture(autouse=True)
def a_record_of_this_thread(publishing: InstalledPublisher) -> None:
    """Publish a span once, so that the thread has a record."""
    _context.detach(publishing.attach(Span(TRACE, 1)))


def test_another_span_is_attached_in_it(publishing: InstalledPublisher, memory: OwnMemory) -> None:
    context = inside(publishing, Span(TRACE, ROOT))
    token = context.run(publishing.attach, Span(TRACE, CHILD))
    assert always(context, memory) == shown(CHILD)
    context.run(_context.detach, token)
    assert always(context, memory) == shown(ROOT)


def test_the_variable_that_is_set_in_it_changes_the_record(publishing: InstalledPublisher, memory: OwnMemory) -> None:
    context = inside(publishing, Span(TRACE, ROOT))
    context.run(publishing.variable.set, Context({SPAN_KEY: Span(TRACE, CHILD)}))
    assert always(context, memory) == shown(CHILD)


def test_a_value_that_may_be_changed_in_place_is_changed_in_place(
    publishing: InstalledPublisher, memory: OwnMemory
) -> None:
    value = {SPAN_KEY: Span(TRACE, ROOT)}
    context = entered(in_context(publishing, value))
    value[SPAN_KEY] = Span(TRACE, CHILD)
    assert always(context, memory) == shown(CHILD)


def test_a_context_of_a_type_of_its_own_is_changed_in_place(publishing: InstalledPublisher, memory: OwnMemory) -> None:
    class Own(Context):
        pass

    value = Own({SPAN_KEY: Span(TRACE, ROOT)})
    context = entered(in_context(publishing, value))
    value[SPAN_KEY] = Span(TRACE, CHILD)
    assert always(context, memory) == shown(CHILD)


def test_a_span_of_which_nothing_is_known_becomes_known(publishing: InstalledPublisher, memory: OwnMemory) -> None:
    publishing.answer = lambda _: "nothing yet"
    span = Span(TRACE, ROOT)
    context = inside(publishing, span)
    assert always(context, memory) == NO_TRACE
    setattr(span, ATTRIBUTE, _context.Identity(TRACE, ROOT, ROOT, 1))
    assert always(context, memory) == shown(ROOT)


def test_a_span_that_takes_no_attributes_is_asked_about_again(
    publishing: InstalledPublisher, memory: OwnMemory
) -> None:
    class Closed(Span):
        def __setattr__(self, name: str, value: Any) -> None:
            if name == ATTRIBUTE:
                raise AttributeError(name)
            super().__setattr__(name, value)

    first, second = (_context.Identity(TRACE, span_id, span_id, 1) for span_id in (ROOT, CHILD))
    publishing.answer = lambda _: first
    context = inside(publishing, Closed(TRACE, ROOT))
    publishing.answer = lambda _: second
    assert always(context, memory) == shown(CHILD)


def test_a_span_that_stands_for_another_comes_to_stand_for_a_third(
    publishing: InstalledPublisher, memory: OwnMemory
) -> None:
    class Proxy:
        def __init__(self, wrapped: Span) -> None:
            self.wrapped = wrapped

        def __getattr__(self, name: str) -> Any:
            return getattr(self.wrapped, name)

    spans = Span(TRACE, ROOT), Span(TRACE, CHILD)
    for span in spans:
        _context.assign_identity(span)
    proxy = Proxy(spans[0])
    context = inside(publishing, proxy)
    proxy.wrapped = spans[1]
    assert always(context, memory) == shown(CHILD)


def test_its_variables_are_gone_and_others_are_in_their_place(
    publishing: InstalledPublisher, memory: OwnMemory
) -> None:
    spans = [Span(TRACE, number) for number in range(1, 9)]
    context = contextvars.copy_context()
    for _ in range(200):
        for number, span in enumerate(spans, 1):
            context.run(publishing.variable.set, Context({SPAN_KEY: span}))
            assert always(context, memory) == shown(number)


def test_labels_are_set_in_it(publishing: InstalledPublisher, memory: OwnMemory) -> None:
    context = inside(publishing, Span(TRACE, ROOT))
    before = context.copy()
    for labels, expected in ((LABELS, list(PAIRS)), (None, [])):
        context.run(_context.set_labels, publishing.labels, labels)
        for _ in range(ENOUGH):
            found = context.run(memory.labels)
            assert found is not None
            assert found[3:] == expected
            assert len(before.run(memory.labels) or ()) == 3


@pytest.mark.parametrize("default", [{}, Context()])
def test_publishing_is_installed_anew_for_another_variable(
    publishing: InstalledPublisher, memory: OwnMemory, default: Any
) -> None:
    context = inside(publishing, Span(TRACE, ROOT))
    bare = entered(contextvars.Context())
    anew = InstalledPublisher(variable=contextvars.ContextVar("another", default=default))
    anew.install()
    context.run(anew.variable.set, Context({SPAN_KEY: Span(TRACE, CHILD)}))
    assert always(context, memory) == shown(CHILD)
    with_a_span = Context({SPAN_KEY: Span(TRACE, 3)})
    another = InstalledPublisher(variable=contextvars.ContextVar("third", default=with_a_span))
    another.install()
    assert always(context, memory) == shown(3), "the default of a variable that is not set"
    assert always(bare, memory) == shown(3)
    another.uninstall()


def test_the_default_of_the_variable_is_changed_in_place(memory: OwnMemory) -> None:
    default: dict[str, Any] = {}
    anew = InstalledPublisher(variable=contextvars.ContextVar("another", default=default))
    anew.install()
    bare = entered(contextvars.Context())
    assert always(bare, memory) in (None, NO_TRACE)
    default[SPAN_KEY] = Span(TRACE, ROOT)
    assert always(bare, memory) == shown(ROOT)
    anew.uninstall()


def test_another_identity_is_put_on_its_span_and_the_audit_finds_it(
    publishing: InstalledPublisher, memory: OwnMemory
) -> None:
    span = Span(TRACE, ROOT)
    context = inside(publishing, span)
    setattr(span, ATTRIBUTE, _context.Identity(TRACE, CHILD, CHILD, 1))
    assert context.run(_context.audit) == (1, 1)
    assert always(context, memory) == shown(CHILD)
    assert context.run(_context.audit) == (1, 0)


def attribute_that_runs(body: Callable[[], None]) -> type[Span]:
    """Return a class of spans whose identity is a property that runs `body`."""
    identity = _context.Identity(TRACE, ROOT, ROOT, 1)

    def found(_: Span) -> _context.Identity:
        body()
        return identity

    return type("Running", (Span,), {ATTRIBUTE: property(found)})


def test_looking_at_its_span_sets_labels(publishing: InstalledPublisher, memory: OwnMemory) -> None:
    to_set = [LABELS] * ENOUGH

    def set_labels() -> None:
        if to_set:
            set_unseen(publishing.labels, to_set.pop())

    context = in_context(publishing, Context({SPAN_KEY: attribute_that_runs(set_labels)(TRACE, ROOT)}))
    for _ in range(ENOUGH):
        context.copy().run(int)
    assert not to_set
    found = context.run(memory.labels)
    assert found is not None
    assert found[3:] == [], "they were set in copies"


def test_looking_at_its_span_installs_publishing_anew(publishing: InstalledPublisher, memory: OwnMemory) -> None:
    anew, depth = InstalledPublisher(), []

    def install_anew() -> None:
        depth.append(1)
        if len(depth) < ENOUGH:
            context.copy().run(int)
        elif len(depth) == ENOUGH:
            publishing.uninstall()
            anew.install()

    context = in_context(publishing, Context({SPAN_KEY: attribute_that_runs(install_anew)(TRACE, ROOT)}))
    context.copy().run(int)
    assert len(depth) == ENOUGH
    assert always(context, memory) in (None, NO_TRACE), "in the new variable it has no span"
    anew.uninstall()
