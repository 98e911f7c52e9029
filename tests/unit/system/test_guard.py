"""The log of the profiler: no disturbance of the application's logging reaches who writes a line."""

from __future__ import annotations

import gc
import logging
import signal
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from splunk_profiler.system.guard import Guard


@pytest.fixture
def failing_factory() -> Iterator[None]:
    """Records cannot be made, as with a factory that reads a variable which this thread does not have."""

    def fail(*_args: Any, **_more: Any) -> logging.LogRecord:
        raise LookupError("request_id")

    original = logging.getLogRecordFactory()
    logging.setLogRecordFactory(fail)
    yield
    logging.setLogRecordFactory(original)


@pytest.mark.usefixtures("failing_factory")
def test_guarded_error_is_logged_where_the_record_factory_fails(caplog: pytest.LogCaptureFixture) -> None:
    with Guard("a test").catching():
        raise ValueError("a\nb")
    (record,) = caplog.records
    assert (record.name, record.levelname, record.funcName) == ("splunk_profiler", "WARNING", "count")
    assert record.getMessage().startswith("an error in a test was caught")
    assert "ValueError: a" in caplog.text


class SoftTimeLimitError(Exception):
    """An exception that a signal handler raises, as Celery's does."""


class _Raiser:
    """Handlers of all kinds."""

    def __call__(self, *_: object) -> None:
        self.method()

    def method(self, *_: object) -> None:
        raise SoftTimeLimitError


def _function(*_: object) -> None:
    raise SoftTimeLimitError


def _two_arguments(_job: str, *_: object) -> None:
    raise SoftTimeLimitError


@pytest.fixture
def set_handler() -> Iterator[Callable[[Any], Any]]:
    """Return a function that sets the handler of SIGALRM."""
    before = signal.getsignal(signal.SIGALRM)
    yield partial(signal.signal, signal.SIGALRM)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize(
    "handler",
    [
        _function,
        _Raiser().method,
        _Raiser(),
        partial(_two_arguments, "job"),
        partial(_Raiser()),
        lambda *_: _function(),
    ],
)
def test_exception_of_a_signal_handler_is_not_swallowed(handler: Any, set_handler: Callable[[Any], Any]) -> None:
    set_handler(handler)
    guard = Guard("a test")
    with pytest.raises(SoftTimeLimitError), guard.catching():
        signal.raise_signal(signal.SIGALRM)
    assert not guard.failures


def test_error_of_our_code_within_a_signal_handler_is_swallowed(set_handler: Callable[[Any], Any]) -> None:
    guard = Guard("a test")

    def handle(*_: object) -> None:
        with guard.catching():
            raise SoftTimeLimitError

    set_handler(handle)
    with guard.catching():
        signal.raise_signal(signal.SIGALRM)
    assert guard.failures == {"SoftTimeLimitError": 1}


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_what_ends_a_thread_or_the_process_passes(error: type[BaseException]) -> None:
    guard = Guard("a test")
    with pytest.raises(error), guard.catching():
        raise error
    with pytest.raises(error):
        _interrupt_noted(guard, error)
    assert not guard.failures


def _interrupt_block(guard: Guard, error: type[BaseException]) -> None:
    with guard.catching():
        raise error


def _interrupt_noted(guard: Guard, error: type[BaseException]) -> None:
    try:
        raise error
    except BaseException as raised:
        guard.note(raised)


class _Connection:
    """An object in a variable of a job that is interrupted."""


@pytest.mark.parametrize("interrupt", [_interrupt_block, _interrupt_noted])
def test_job_that_is_interrupted_is_freed_at_once(interrupt: Callable[[Guard, type[BaseException]], None]) -> None:
    connections: list[weakref.ref[_Connection]] = []

    def work() -> None:
        connection = _Connection()
        connections.append(weakref.ref(connection))
        interrupt(Guard("a test"), KeyboardInterrupt)

    gc.disable()
    try:
        with suppress(KeyboardInterrupt):
            work()
        assert connections[0]() is None
    finally:
        gc.enable()
