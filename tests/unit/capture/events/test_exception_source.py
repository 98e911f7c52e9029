"""The source of raised exceptions: its tool id, the names of types, and where it cannot be."""

from __future__ import annotations

import logging
import sys
from types import FunctionType, new_class
from typing import Any

import pytest
from recorded_exceptions import ShopError, make, monitoring, noticed, often, places, recorded, recording

from splunk_profiler.capture.events import exceptions
from splunk_profiler.capture.events.exceptions import ExceptionSource, make_exception_source, qualified_name
from splunk_profiler.capture.walker import choose_walker, make_ticker
from splunk_profiler.config import Config
from splunk_profiler.raw import RawEvent

WANTED = Config(enabled=True, data_format="pprof-gzip-base64", exceptions_enabled=True)


def outer() -> None:
    often(1)


@recorded
def test_tool_id_is_a_free_one_and_given_back() -> None:
    before = [monitoring.get_tool(tool_id) for tool_id in range(6)]
    with recording(make()) as source:
        source.start()  # again
        (tool_id,) = [tool_id for tool_id in (3, 4) if monitoring.get_tool(tool_id) == "splunk-profiler"]
    source.stop()
    assert [monitoring.get_tool(tool_id) for tool_id in range(6)] == before
    monitoring.use_tool_id(tool_id, "new")  # without our events and callback
    assert monitoring.get_events(tool_id) == 0
    assert monitoring.register_callback(tool_id, monitoring.events.RAISE, None) is None
    monitoring.free_tool_id(tool_id)


@recorded
def test_id_that_a_tool_of_an_apm_agent_insists_on_stays_free() -> None:
    needed = 4 if sys.version_info < (3, 15) else 3
    with recording(make()):
        monitoring.use_tool_id(needed, "agent")
        monitoring.free_tool_id(needed)


@recorded
def test_taken_tool_ids_are_left_alone_and_said_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    free = [tool_id for tool_id in (3, 4) if monitoring.get_tool(tool_id) is None]
    for tool_id in free:
        monitoring.use_tool_id(tool_id, f"tool {tool_id}")
    try:
        with caplog.at_level(logging.WARNING, "splunk_profiler"):
            assert noticed(outer) == []
        assert [monitoring.get_tool(tool_id) for tool_id in free] == [f"tool {tool_id}" for tool_id in free]
    finally:
        for tool_id in free:
            monitoring.free_tool_id(tool_id)
    (line,) = caplog.messages
    assert "raised exceptions are not sampled" in line


@recorded
def test_id_that_another_tool_has_taken_away_is_left_to_it() -> None:
    with recording(make()):
        (tool_id,) = [tool_id for tool_id in (3, 4) if monitoring.get_tool(tool_id) == "splunk-profiler"]
        monitoring.set_events(tool_id, 0)
        monitoring.free_tool_id(tool_id)
        monitoring.use_tool_id(tool_id, "rude")
        monitoring.set_events(tool_id, monitoring.events.PY_UNWIND)
    assert (monitoring.get_tool(tool_id), monitoring.get_events(tool_id)) == ("rude", monitoring.events.PY_UNWIND)
    monitoring.set_events(tool_id, 0)
    monitoring.free_tool_id(tool_id)


@recorded
def test_events_of_another_tool_and_ours_do_not_disturb_each_other() -> None:
    seen = []
    taken = 4 if monitoring.get_tool(4) is None else 3
    monitoring.use_tool_id(taken, "other")
    monitoring.register_callback(taken, monitoring.events.RAISE, lambda _code, _offset, error: seen.append(type(error)))
    monitoring.set_events(taken, monitoring.events.RAISE)
    try:
        ticker = make()
        with recording(ticker):
            often(2)
            monitoring.restart_events()
            often(1)
        often(1)
        assert places(ticker.drain_exceptions()) == [("ShopError", "fail")] * 3
        assert seen.count(ShopError) == 2 * 4  # in both frames of each
    finally:
        monitoring.set_events(taken, 0)
        monitoring.register_callback(taken, monitoring.events.RAISE, None)
        monitoring.free_tool_id(taken)


@recorded
def test_event_has_the_name_of_the_type_and_many_types_are_bounded() -> None:
    ticker = make()
    source = ExceptionSource(ticker)
    source.start()
    names = []
    for number in range(3000):
        often(1, type(f"Error{number}", (Exception,), {}))
        names += [dict(event.event.labels)["exception.type"] for event in drained(source)]
    source.stop()
    assert names[0] == f"{__name__}.Error0"
    assert len({*names}) == 201
    assert names[-1] == exceptions.OTHER_TYPES


def drained(source: ExceptionSource) -> list[RawEvent]:
    events = [*source.drain()]
    assert all((each.event.kind, each.event.amount) == (exceptions.EXCEPTION_KIND, 0) for each in events)
    return events


class _Text(str):
    def __eq__(self, other: object) -> bool:
        raise AssertionError("code of the class has run")

    def __str__(self) -> str:
        raise AssertionError("code of the class has run")

    __slots__ = ()
    __hash__ = str.__hash__
    __len__ = __format__ = __repr__ = __str__  # type: ignore[assignment]


class _Meta(type):
    def __getattribute__(cls, name: str) -> Any:
        raise AssertionError("code of the class has run")


def test_name_of_a_class_runs_none_of_its_code() -> None:
    def fill(namespace: dict[str, Any]) -> None:
        namespace["__module__"] = _Text("shop")
        namespace["__qualname__"] = _Text("Cart.Error")

    assert qualified_name(new_class("Error", (Exception,), {"metaclass": _Meta}, fill)) == "shop.Cart.Error"


@pytest.mark.parametrize(
    ("module", "qualname", "expected"),
    [
        ("builtins", "KeyError", "KeyError"),
        ("shop.cart", "Cart.Error", "shop.cart.Cart.Error"),
        (7, "Error", "Error"),
        ("shop", "E" * 300, "shop." + "E" * 194 + "…"),
    ],
)
def test_name_of_a_class_has_its_module_and_a_bounded_length(module: Any, qualname: str, expected: str) -> None:
    namespace = {"__module__": module, "__qualname__": qualname}
    assert qualified_name(type("Error", (Exception,), namespace)) == expected


def test_name_of_a_class_without_a_module_is_its_own_name() -> None:
    make_class = FunctionType((lambda: type("Error", (Exception,), {})).__code__, {})  # no `__name__` there
    assert qualified_name(make_class()) == "Error"


def test_source_is_only_there_where_it_can_be_and_the_log_says_why_not(caplog: pytest.LogCaptureFixture) -> None:
    ticker = make_ticker(choose_walker("portable"), None, lambda _: None, 100)
    with caplog.at_level(logging.WARNING, "splunk_profiler"):
        assert make_exception_source(Config(enabled=True), ticker, native=False) is None
        assert caplog.messages == []
        assert make_exception_source(WANTED, ticker, native=False) is None
    (line,) = caplog.messages
    reason = "CPython 3.12 or newer" if monitoring is None else "portable walker"
    assert line.startswith("raised exceptions are not sampled: ")
    assert reason in line
