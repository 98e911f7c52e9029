"""The log of the profiler: no disturbance of the application's logging reaches who writes a line."""

from __future__ import annotations

import logging
from collections.abc import Iterator
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
    assert (record.name, record.levelname, record.funcName) == ("splunk_profiler", "WARNING", "note")
    assert record.getMessage().startswith("an error in a test was caught")
    assert "ValueError: a" in caplog.text
