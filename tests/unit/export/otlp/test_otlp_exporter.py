"""The last export of a process to a collector that has just returned, over real connections."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import grpc
from free_ports import find_free_ports
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsPartialSuccess,
    ExportLogsServiceRequest,
    ExportLogsServiceResponse,
)
from opentelemetry.proto.collector.logs.v1.logs_service_pb2_grpc import (
    LogsServiceServicer,
    add_LogsServiceServicer_to_server,
)
from sample_factory import make_sample

from splunk_profiler.config.otlp_transport import Transport
from splunk_profiler.config.parsers import parse_endpoint
from splunk_profiler.export.otlp.exporter import OtlpSink
from splunk_profiler.samples import Batch, ExportStatus, Sample


class Collector(LogsServiceServicer):
    def __init__(self, said: str = "") -> None:
        self._answer = ExportLogsServiceResponse(
            partial_success=ExportLogsPartialSuccess(rejected_log_records=len(said), error_message=said)
        )

    def Export(self, _request: ExportLogsServiceRequest, _context: object) -> ExportLogsServiceResponse:  # noqa: N802
        return self._answer


def test_a_connection_that_pauses_is_replaced_for_the_last_export() -> None:
    address = f"127.0.0.1:{find_free_ports(1)[0]}"
    sink: OtlpSink[Sample] = OtlpSink(parse_endpoint(f"http://{address}"), lambda _: b"", Transport())
    batch = Batch((make_sample(1),))
    assert sink.export(batch).export_status is ExportStatus.RETRY
    server = grpc.server(ThreadPoolExecutor(1))
    add_LogsServiceServicer_to_server(Collector(), server)  # type: ignore[no-untyped-call]  # generated
    server.add_insecure_port(address)
    server.start()
    try:
        sink.set_shutdown_deadline(10)
        assert sink.export(batch).export_status is ExportStatus.DELIVERED
    finally:
        sink.shutdown()
        server.stop(None).wait()


def test_a_refusal_is_told_at_a_length_that_fits_a_log() -> None:
    server = grpc.server(ThreadPoolExecutor(1))
    add_LogsServiceServicer_to_server(Collector("no room; " * 100_000), server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    sink: OtlpSink[Sample] = OtlpSink(parse_endpoint(f"http://127.0.0.1:{port}"), lambda _: b"", Transport())
    try:
        result = sink.export(Batch((make_sample(1),)))
    finally:
        sink.shutdown()
        server.stop(None).wait()
    assert result.detail.startswith("no room; ")
    assert len(result.detail) < 5000
