"""Tests of switches between greenlets, also beside other trace functions."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextvars import Context, copy_context
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("splunk_profiler._context", reason="the native publisher is not built for this interpreter")
pytest.importorskip("greenlet", reason="greenlet is not installed")

import greenlet  # type: ignore[import-not-found, import-untyped, unused-ignore]
from context_factory import attach, audit_passes, count_switches, hooks

from splunk_profiler import _context as native


@pytest.fixture(autouse=True)
def nothing_is_traced() -> Iterator[None]:
    assert greenlet.gettrace() is None
    yield
    assert greenlet.gettrace() is None, "a trace function was left behind"


@pytest.fixture
def published() -> Iterator[None]:
    with hooks():
        token = attach()
        yield
        native.detach(token)


def child(body: Callable[[], object]) -> Any:
    return greenlet.greenlet(body)


def _switches(times: int) -> list[bool]:
    """Return, for each switch between two greenlets with spans, True if the right span was published."""
    parent, right = greenlet.getcurrent(), []

    def body() -> None:
        right.append(audit_passes())
        attach()
        for _ in range(times):
            parent.switch()
            right.append(audit_passes())

    other = child(body)
    for _ in range(times + 1):
        other.switch()
        right.append(audit_passes())
    assert other.dead
    return right


@pytest.mark.usefixtures("published")
def test_each_greenlet_is_published_with_its_own_span() -> None:
    assert _switches(5) == [True] * 12


@pytest.mark.usefixtures("published")
def test_greenlets_of_one_context_part_when_one_of_them_enters_a_span() -> None:
    parent, right = greenlet.getcurrent(), []

    def body() -> None:
        for turn in range(12):
            if turn == 5:
                attach()
            right.append(audit_passes())
            parent.switch()

    token = attach()
    others = [child(body) for _ in range(3)]
    for other in others:
        other.gr_context = copy_context()
    native.detach(token)
    before = native.counters()["cache_hits"]
    for _ in range(12):
        for other in others:
            other.switch()
            right.append(audit_passes())
    assert native.counters()["cache_hits"] > before
    assert right == [True] * 72
    for other in others:
        other.throw()


@pytest.mark.usefixtures("published")
def test_an_exception_thrown_into_a_greenlet_is_a_switch() -> None:
    parent, right = greenlet.getcurrent(), []

    def body() -> None:
        attach()
        try:
            parent.switch()
        except LookupError:
            right.append(audit_passes())
            raise

    other = child(body)
    other.switch()
    assert audit_passes()
    with pytest.raises(LookupError):
        other.throw(LookupError)
    assert right == [True]
    assert audit_passes()


@pytest.mark.usefixtures("published")
def test_greenlets_of_every_thread_are_published() -> None:
    right: list[bool] = []

    def body() -> None:
        attach()
        right.extend(_switches(3))

    threads = [threading.Thread(target=body) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert right == [True] * 8 * 4


@pytest.mark.usefixtures("published")
def test_shared_context_may_change_while_a_greenlet_is_in_another_one() -> None:
    right: list[bool] = []

    def driver() -> None:
        here = greenlet.getcurrent()

        def body() -> None:
            Context().run(here.switch)
            right.append(audit_passes())

        other = child(body)
        other.gr_context = here.gr_context
        attach()
        other.switch()
        attach()
        other.switch()
        right.append(audit_passes())

    copy_context().run(driver)
    assert right == [True, True]


def test_existing_trace_function_sees_the_same_switches_and_is_restored() -> None:
    events: list[tuple[str, Any]] = []

    def trace(event: str, switch: Any) -> None:
        events.append((event, switch))

    def some_switches() -> list[tuple[str, Any]]:
        events.clear()
        other = child(lambda: None)
        other.switch()
        main = greenlet.getcurrent()
        assert events == [("switch", (main, other)), ("switch", (other, main))]
        return events

    greenlet.settrace(trace)
    try:
        some_switches()
        with hooks():
            attach()
            assert greenlet.gettrace() is not trace
            some_switches()
            assert _switches(2) == [True] * 6
        assert greenlet.gettrace() is trace
        some_switches()
    finally:
        greenlet.settrace(None)


def test_a_trace_function_set_later_stays() -> None:
    events: list[str] = []
    with hooks():
        attach()
        ours = greenlet.gettrace()

        def later(event: str, switch: Any) -> None:
            events.append(event)
            ours(event, switch)

        greenlet.settrace(later)
        last = greenlet.gettrace()
        assert _switches(1) == [True] * 4
    try:
        assert greenlet.gettrace() is last
        child(lambda: None).switch()
        assert len(events) == 6
    finally:
        greenlet.settrace(None)


def test_a_trace_function_that_raises_is_taken_off_and_the_hook_is_not() -> None:
    def trace(_event: str, _switch: Any) -> None:
        raise ArithmeticError

    greenlet.settrace(trace)
    with hooks():
        attach()
        with pytest.raises(ArithmeticError):
            child(lambda: None).switch()
        assert greenlet.gettrace() is None, "as it is without the hooks"
        attach()
        assert _switches(2) == [True] * 6
    assert greenlet.gettrace() is None


def test_after_uninstall_other_threads_call_only_their_own_trace_function() -> None:
    events: list[str] = []
    traced, over, ended = threading.Event(), threading.Event(), threading.Event()

    def body() -> None:
        greenlet.settrace(lambda event, _switch: events.append(event))
        attach()
        traced.set()
        over.wait()
        child(lambda: None).switch()
        ended.set()

    thread = threading.Thread(target=body)
    with hooks():
        attach()
        thread.start()
        traced.wait()
    before = count_switches()
    over.set()
    thread.join()
    assert ended.is_set()
    assert (events, count_switches()) == (["switch", "switch"], before)


def test_hooks_that_come_again_find_the_trace_function_they_left() -> None:
    def depth() -> int:
        found, function = 0, greenlet.gettrace()
        while function is not None:
            found, function = found + 1, function.__self__
        return found

    depths: list[int] = []

    def body() -> None:
        for _ in range(3):
            go.wait()
            attach()
            depths.append(depth())
            assert _switches(2) == [True] * 6
            done.wait()

    go, done = threading.Barrier(2), threading.Barrier(2)
    thread = threading.Thread(target=body)
    thread.start()
    for _ in range(3):
        with hooks():
            attach()
            go.wait()
            done.wait()
    thread.join()
    assert depths == [1, 1, 1]


def test_a_greenlet_module_that_is_half_imported_is_found_once_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    half = ModuleType("greenlet")
    half.__spec__ = ModuleSpec("greenlet", None)
    half.__spec__._initializing = True  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "greenlet", half)
    with hooks():
        attach()
        assert greenlet.gettrace() is None
        half.settrace, half.gettrace = greenlet.settrace, greenlet.gettrace  # type: ignore[attr-defined]
        attach()
        assert _switches(2) == [True] * 6


def test_a_greenlet_module_whose_attributes_raise_is_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(ModuleType):
        def __getattr__(self, name: str) -> object:
            raise ArithmeticError(name)

    reported: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", reported.append)
    monkeypatch.setitem(sys.modules, "greenlet", Broken("greenlet"))
    with hooks():
        attach()
    assert not reported


def test_asking_about_a_span_in_one_greenlet_leaves_others_to_be_asked(publishing: Any, memory: Any) -> None:
    from own_memory import Span  # noqa: PLC0415  # needs the extension

    parent, seen = greenlet.getcurrent(), []
    roots: list[int | None] = []

    def answer(span: Any) -> native.Identity:
        found = span.get_span_context()
        if found.span_id == 1:
            parent.switch()
        roots.append(native.known_local_root(found.trace_id))
        return native.Identity(found.trace_id, found.span_id, found.span_id, 1)

    def body() -> None:
        native.detach(publishing.attach(Span(7, 9)))
        publishing.attach(Span(7, 9))
        publishing.attach(Span(7, 1))  # the other greenlet runs during the lookup
        seen.append(memory.elastic().span_id)

    publishing.answer = answer
    other = child(body)
    other.switch()
    for span_id in (2, 3):
        publishing.attach(Span(8, span_id))
        seen.append(memory.elastic().span_id)
    other.switch()
    seen.append(memory.elastic().span_id)
    assert other.dead
    assert [span.get_span_context().span_id for span in publishing.asked] == [9, 9, 1, 2, 3]
    assert seen == [2, 3, 1, 3]
    assert roots == [None, 9, None, 2, 9]
