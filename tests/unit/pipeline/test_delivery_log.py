"""Content and frequency of log lines about undelivered records."""

from __future__ import annotations

import logging
import os

import pytest

from splunk_profiler.pipeline.delivery_log import DeliveryLog, LastResults, WarningLimit
from splunk_profiler.samples import ExportResult, ExportStatus

MINUTE_NS = 60_000_000_000
DEAD = ExportResult(ExportStatus.RETRY, "no collector can be reached")
DELIVERED = ExportResult(ExportStatus.DELIVERED)


class Clock:
    now_ns = 0

    def __call__(self) -> int:
        return self.now_ns


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_the_first_failure_is_logged_at_once_with_its_reason(caplog: pytest.LogCaptureFixture, clock: Clock) -> None:
    DeliveryLog(clock).log_result(DEAD, 0, waiting=4, dropped=0)
    assert caplog.messages == [
        "profiling records are not delivered: no collector can be reached"
        " (4 wait, 0 were dropped since the last such line)"
    ]


def test_later_failures_are_logged_once_a_minute_with_the_dropped_count(
    caplog: pytest.LogCaptureFixture, clock: Clock
) -> None:
    report = DeliveryLog(clock)
    for second in range(181):
        clock.now_ns = second * 1_000_000_000
        report.log_result(DEAD, 0, waiting=8192, dropped=second * 10)
    assert [message.partition("(")[2] for message in caplog.messages] == [
        f"8192 wait, {dropped} were dropped since the last such line)" for dropped in (0, 600, 600, 600)
    ]


def test_delivery_that_works_again_is_logged_once(caplog: pytest.LogCaptureFixture, clock: Clock) -> None:
    caplog.set_level(logging.INFO, "splunk_profiler")
    report = DeliveryLog(clock)
    report.log_result(DEAD, 0, waiting=4, dropped=0)
    report.log_result(DELIVERED, 1, waiting=0, dropped=3)
    report.log_result(DELIVERED, 1, waiting=0, dropped=3)
    assert caplog.messages[1:] == ["profiling records are delivered again; 3 were dropped meanwhile"]


def test_a_receiver_that_flaps_is_not_logged_more_often(caplog: pytest.LogCaptureFixture, clock: Clock) -> None:
    report = DeliveryLog(clock)
    for second in range(59):
        clock.now_ns = second * 1_000_000_000
        report.log_result(DEAD if second % 2 else DELIVERED, 1 - second % 2, waiting=0, dropped=0)
    assert len([record for record in caplog.records if record.levelno == logging.WARNING]) == 1


def test_records_dropped_during_delivery_are_logged_with_the_reason(
    caplog: pytest.LogCaptureFixture, clock: Clock
) -> None:
    report = DeliveryLog(clock)
    report.log_result(ExportResult(ExportStatus.DELIVERED, "too old", rejected=2), 1, waiting=0, dropped=2)
    clock.now_ns = MINUTE_NS
    report.log_result(DELIVERED, 1, waiting=0, dropped=7)
    assert caplog.messages == [
        "2 profiling records were dropped: the receiver refused some: too old",
        "5 profiling records were dropped: the queue was full",
    ]


def test_an_end_without_loss_is_silent(caplog: pytest.LogCaptureFixture, clock: Clock) -> None:
    DeliveryLog(clock).log_exit(0)
    assert not caplog.messages


def test_processes_that_share_a_limit_log_one_warning_a_minute(caplog: pytest.LogCaptureFixture, clock: Clock) -> None:
    limit = WarningLimit()
    for second in range(121):
        clock.now_ns = second * 1_000_000_000
        ending = DeliveryLog(clock, limit)
        ending.log_result(DEAD, 0, waiting=4, dropped=0)
        ending.log_exit(4)
    failed = (
        "profiling records are not delivered: no collector can be reached"
        " (4 wait, 0 were dropped since the last such line)"
    )
    assert caplog.messages == [failed, "4 profiling records were not delivered before the process ended"] * 3


def test_processes_that_end_before_any_export_share_the_limit(caplog: pytest.LogCaptureFixture, clock: Clock) -> None:
    limit = WarningLimit()
    for second in range(121):
        clock.now_ns = second * 1_000_000_000
        DeliveryLog(clock, limit).log_exit(4)
    assert caplog.messages == ["4 profiling records were not delivered before the process ended"] * 3


def test_warning_of_a_forked_child_counts_for_its_parent(caplog: pytest.LogCaptureFixture, clock: Clock) -> None:
    limit = WarningLimit()
    child = os.fork()
    if child == 0:
        DeliveryLog(clock, limit).log_exit(4)
        os._exit(0)
    os.waitpid(child, 0)
    DeliveryLog(clock, limit).log_exit(4)
    assert not caplog.messages


def test_last_results_are_kept_for_who_asks(clock: Clock) -> None:
    log = DeliveryLog(clock)
    assert log.last_results == LastResults()
    clock.now_ns = 5
    log.log_result(DEAD, 0, waiting=4, dropped=0)
    assert log.last_results == LastResults(None, 5, "no collector can be reached")
    clock.now_ns = 6
    log.log_result(DELIVERED, 1, waiting=0, dropped=0)
    assert log.last_results == LastResults(6, 5, "no collector can be reached")
    clock.now_ns = 7
    log.log_result(ExportResult(ExportStatus.DELIVERED, "too old", rejected=2), 1, waiting=0, dropped=2)
    assert log.last_results == LastResults(7, 7, "too old")
