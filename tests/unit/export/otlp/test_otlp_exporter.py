"""The last export of a process to a collector that has just returned, over real connections."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

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


@contextmanager
def running(collector: Collector, address: str = "127.0.0.1:0") -> Iterator[int]:
    """Serve on a port."""
    server = grpc.server(ThreadPoolExecutor(1))
    add_LogsServiceServicer_to_server(collector, server)  # type: ignore[no-untyped-call]  # generated
    port = server.add_insecure_port(address)
    server.start()
    try:
        yield port
    finally:
        server.stop(None).wait()


def test_a_connection_that_pauses_is_replaced_for_the_last_export() -> None:
    address = f"127.0.0.1:{find_free_ports(1)[0]}"
    sink: OtlpSink[Sample] = OtlpSink(parse_endpoint(f"http://{address}"), lambda _: b"", Transport())
    batch = Batch((make_sample(1),))
    assert sink.export(batch).export_status is ExportStatus.RETRY
    with running(Collector(), address):
        sink.set_shutdown_deadline(10)
        assert sink.export(batch).export_status is ExportStatus.DELIVERED
        sink.shutdown()


def test_a_refusal_is_told_at_a_length_that_fits_a_log() -> None:
    with running(Collector("no room; " * 100_000)) as port:
        sink: OtlpSink[Sample] = OtlpSink(parse_endpoint(f"http://127.0.0.1:{port}"), lambda _: b"", Transport())
        result = sink.export(Batch((make_sample(1),)))
        sink.shutdown()
    assert result.detail.startswith("no room; ")
    assert len(result.detail) < 5000
