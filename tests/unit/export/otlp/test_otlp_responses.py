"""Answers of collectors, as OpenTelemetry's and Google's messages write them."""

from __future__ import annotations

from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import RetryInfo
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsPartialSuccess,
    ExportLogsServiceResponse,
)

from splunk_profiler.export.otlp.responses import PartialSuccess, read_retry_delay_ns


def decode(rejected: int = 0, text: str = "") -> PartialSuccess:
    partial = ExportLogsPartialSuccess(rejected_log_records=rejected, error_message=text)
    return PartialSuccess.decode(ExportLogsServiceResponse(partial_success=partial).SerializeToString())


def test_an_empty_response_rejects_nothing() -> None:
    assert PartialSuccess.decode(b"") == decode() == PartialSuccess(0, "")


def test_number_and_reason_of_rejected_records_are_read() -> None:
    assert decode(7, "zu groß") == PartialSuccess(7, "zu groß")


def test_a_negative_number_of_rejected_records_counts_as_none() -> None:
    assert decode(-1, "a warning") == PartialSuccess(0, "a warning")


def test_retry_delay_is_read_in_nanoseconds() -> None:
    info = RetryInfo(retry_delay=Duration(seconds=3, nanos=250_000_000))
    assert read_retry_delay_ns(info.SerializeToString()) == 3_250_000_000
    assert read_retry_delay_ns(b"") == 0
