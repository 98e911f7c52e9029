"""Tests of the lookup of a span's identity, which never does harm."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable
from typing import Any, cast

import pytest

pytest.importorskip("splunk_profiler._context", reason="the native publisher is not built for this interpreter")

from own_memory import ATTRIBUTE, Context, Elastic, InstalledPublisher, OwnMemory, Span, SpanContext

from splunk_profiler import _context

TRACE, ROOT, CHILD = 0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331, 0x00F067AA0BA902B7
NO_TRACE = Elastic(1, 1, 0, 0, 0, 0, 0)


class Opaque(Span):
    """A span whose SpanContext only Python code can read."""

    def __init__(self, trace_id: int, span_id: int) -> None:
        super().__init__(trace_id, span_id)
        self.kept = self._context
        self._context = cast(Any, None)

    def get_span_context(self) -> SpanContext:
        return self.kept


class Closed:
    """A span that takes no attributes."""

    __slots__ = ()

    def get_span_context(self) -> SpanContext:
        return SpanContext(TRACE, ROOT)


@pytest.mark.parametrize("ids", [(TRACE, CHILD, ROOT, 3), (2**128 - 1, 2**64 - 1, 2**64 - 2, 255)])
def test_an_identity_is_shown_as_it_was_made(
    publishing: InstalledPublisher, memory: OwnMemory, ids: tuple[int, int, int, int]
) -> None:
    trace_id, span_id, local_root_id, flags = ids
    publishing.answer = lambda _: _context.Identity(*ids)
    token = publishing.attach(Span(TRACE, CHILD))
    assert memory.elastic() == Elastic(1, 1, 1, flags, trace_id, span_id, local_root_id)
    _context.detach(token)


def test_an_identity_gives_back_its_local_root() -> None:
    made = _context.Identity(TRACE, CHILD, ROOT, 3)
    assert made.local_root_id == ROOT
    with pytest.raises(AttributeError):
        made.local_root_id = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    "arguments",
    [
        (0, 1, 1, 0),
        (1, 0, 1, 0),
        (1, 1, 0, 0),
        (-1, 1, 1, 0),
        (2**128, 1, 1, 0),
        (1, 2**64, 1, 0),
        (1, 1, 2**64, 0),
        (1, 1, 1, 256),
        (1, 1, 1, -1),
    ],
)
def test_an_identity_that_readers_would_drop_is_refused(arguments: tuple[int, int, int, int]) -> None:
    with pytest.raises(ValueError, match="must"):
        _context.Identity(*arguments)
    with pytest.raises(TypeError):
        _context.Identity("1", 1, 1, 1)  # type: ignore[arg-type]


def test_a_span_is_asked_about_once(publishing: InstalledPublisher, memory: OwnMemory) -> None:
    span = Span(TRACE, CHILD)
    publishing.answer = lambda _: _context.Identity(TRACE, CHILD, ROOT, 1)
    for _ in range(3):
        token = publishing.attach(span)
        assert memory.elastic() == Elastic(1, 1, 1, 1, TRACE, CHILD, ROOT)
        _context.detach(token)
    assert publishing.asked == [span]


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda span: pickle.loads(pickle.dumps(span))])
def test_a_copy_of_a_span_is_identified_anew(
    publishing: InstalledPublisher, memory: OwnMemory, duplicate: Callable[[Span], Span]
) -> None:
    span = Span(TRACE, CHILD)
    _context.detach(publishing.attach(span))
    copied = duplicate(span)
    publishing.answer = lambda _: _context.Identity(TRACE, CHILD, ROOT, 1)
    for _ in range(2):
        token = publishing.attach(copied)
        assert memory.elastic() == Elastic(1, 1, 1, 1, TRACE, CHILD, ROOT)
        _context.detach(token)
    assert publishing.asked == [span, copied]


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickled_identity_needs_nothing_of_ours_to_be_loaded(protocol: int) -> None:
    assert b"splunk_profiler" not in pickle.dumps(_context.Identity(TRACE, CHILD, ROOT, 1), protocol)


def test_that_a_span_is_not_published_is_kept_as_well(publishing: InstalledPublisher, memory: OwnMemory) -> None:
    span = Span(TRACE, CHILD)
    publishing.answer = lambda _: None
    outer = publishing.attach(Closed())
    for _ in range(3):
        token = publishing.attach(span)
        assert memory.elastic() in (None, NO_TRACE)
        _context.detach(token)
    assert publishing.asked.count(span) == 1
    _context.detach(outer)


def test_a_span_that_takes_no_attributes_is_asked_about_each_time(
    publishing: InstalledPublisher, memory: OwnMemory
) -> None:
    failed = _context.counters()["failed"]
    span = Closed()
    for _ in range(2):
        token = publishing.attach(span)
        assert memory.elastic() == Elastic(1, 1, 1, 1, TRACE, ROOT, ROOT)
        _context.detach(token)
    assert publishing.asked == [span, span]
    assert _context.counters()["failed"] == failed


def test_a_span_of_a_foreign_kind_is_published_by_its_looked_up_identity(
    publishing: InstalledPublisher, memory: OwnMemory
) -> None:
    token = publishing.attach(Opaque(TRACE, ROOT))
    assert memory.elastic() == Elastic(1, 1, 1, 1, TRACE, ROOT, ROOT)
    _context.detach(token)


@pytest.mark.parametrize("answer", ["text", 7, (TRACE, ROOT)])
def test_an_answer_that_is_no_identity_counts_as_a_failure_and_as_no_trace(
    publishing: InstalledPublisher, memory: OwnMemory, answer: Any
) -> None:
    failed = _context.counters()["failed"]
    token = publishing.attach(Span(TRACE, ROOT))
    publishing.answer = lambda _: answer
    span = Span(TRACE, CHILD)
    inner = publishing.attach(span)
    assert memory.elastic() == NO_TRACE
    assert not hasattr(span, ATTRIBUTE)
    assert _context.counters()["failed"] == failed + 1
    _context.detach(inner)
    assert memory.elastic() == Elastic(1, 1, 1, 1, TRACE, ROOT, ROOT)
    _context.detach(token)


def test_an_error_while_asking_leaves_nothing_but_a_count(publishing: InstalledPublisher, memory: OwnMemory) -> None:
    def fail(_: Any) -> Any:
        raise RecursionError("where it cannot be called")

    failed = _context.counters()["failed"]
    publishing.answer = fail
    token = publishing.attach(Span(TRACE, ROOT))
    assert memory.elastic() in (None, NO_TRACE)
    _context.detach(token)
    assert _context.counters()["failed"] == failed + 1


@pytest.mark.parametrize("error", [KeyboardInterrupt, TimeoutError])
def test_an_interrupt_while_asking_reaches_the_application(
    publishing: InstalledPublisher, error: type[BaseException]
) -> None:
    def interrupted(_: Any) -> Any:
        raise error("of the user")

    publishing.answer = interrupted

    def work() -> None:
        token = publishing.attach(Span(TRACE, ROOT))
        _context.detach(token)

    with pytest.raises(error, match="of the user"):  # noqa: PT012  # it comes as soon as Python code runs
        work()
        for _ in range(1000):
            pass


def test_an_exception_sent_to_a_thread_while_asking_reaches_it(publishing: InstalledPublisher) -> None:
    arrived = []

    def interrupted(_: Any) -> Any:
        raise SystemExit

    def run() -> None:
        try:
            _context.detach(publishing.attach(Span(TRACE, ROOT)))
            for _ in range(1000):
                pass
        except SystemExit:
            arrived.append(threading.current_thread())

    publishing.answer = interrupted
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert arrived == [thread]


def test_asking_may_itself_switch_contexts(publishing: InstalledPublisher, memory: OwnMemory) -> None:
    unknown, known = Span(TRACE, CHILD), Span(TRACE, 77)
    _context.assign_identity(known)
    seen = []

    def switching(span: Span) -> Any:
        seen.append(memory.elastic())
        token = publishing.attach(unknown)
        seen.append(memory.elastic())
        inner = publishing.attach(known)
        seen.append(memory.elastic())
        _context.detach(inner)
        _context.detach(token)
        found = span.get_span_context()
        return _context.Identity(found.trace_id, found.span_id, ROOT, 1)

    token = publishing.attach(known)
    publishing.answer = switching
    inner = publishing.attach(Span(TRACE, ROOT))
    assert memory.elastic() == Elastic(1, 1, 1, 1, TRACE, ROOT, ROOT)
    assert seen == [NO_TRACE, NO_TRACE, Elastic(1, 1, 1, 1, TRACE, 77, 77)]
    assert unknown not in publishing.asked
    _context.detach(inner)
    _context.detach(token)


def test_asking_may_end_the_publishing(publishing: InstalledPublisher, memory: OwnMemory) -> None:
    def ending(_: Any) -> Any:
        publishing.uninstall()
        return _context.Identity(TRACE, ROOT, ROOT, 1)

    publishing.answer = ending
    token = publishing.attach(Span(TRACE, ROOT))
    assert memory.elastic() is None
    _context.detach(token)


def test_looking_at_a_remote_span_may_end_the_publishing(publishing: InstalledPublisher, memory: OwnMemory) -> None:
    class Ending:
        @property
        def _context(self) -> tuple[int, int, bool, int]:
            publishing.uninstall()
            return 1, 2, True, 1

    token = publishing.attach(Ending())
    assert memory.elastic() is None
    _context.detach(token)


def test_a_span_that_looks_its_attributes_up_in_python_is_published(
    publishing: InstalledPublisher, memory: OwnMemory
) -> None:
    class Proxy:
        def __init__(self, wrapped: Span) -> None:
            self.__dict__["wrapped"] = wrapped

        def __getattr__(self, name: str) -> Any:
            return getattr(self.__dict__["wrapped"], name)

        def __setattr__(self, name: str, value: Any) -> None:
            setattr(self.__dict__["wrapped"], name, value)

    span = Span(TRACE, ROOT)
    for _ in range(2):
        token = publishing.attach(Proxy(span))
        assert memory.elastic() == Elastic(1, 1, 1, 1, TRACE, ROOT, ROOT)
        _context.detach(token)
    assert len(publishing.asked) == 1


def test_a_span_whose_attributes_fail_is_no_trace(publishing: InstalledPublisher, memory: OwnMemory) -> None:
    class Broken:
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError(name)

    publishing.answer = lambda _: None
    token = publishing.attach(Broken())
    assert memory.elastic() in (None, NO_TRACE)
    _context.detach(token)


def test_a_span_that_leaves_its_context_while_looked_at_is_asked_about(publishing: InstalledPublisher) -> None:
    class Leaving(Span):
        def __getattr__(self, name: str) -> Any:
            context.clear()  # the only reference
            raise AttributeError(name)

    context = Context({publishing.span_key: Leaving(TRACE, ROOT)})
    token = _context.attach(context)
    assert [type(span) for span in publishing.asked] == [Leaving]
    _context.detach(token)
