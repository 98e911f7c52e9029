"""A gRPC server on threads of the test that takes OTLP logs. Imports nothing of the package."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc
from certificates import CertificateFiles
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsPartialSuccess,
    ExportLogsServiceRequest,
    ExportLogsServiceResponse,
)
from opentelemetry.proto.collector.logs.v1.logs_service_pb2_grpc import (
    LogsServiceServicer,
    add_LogsServiceServicer_to_server,
)


class Collector(LogsServiceServicer):
    """A collector that takes all records, or refuses as many as the text that it answers has characters."""

    def __init__(self, said: str = "") -> None:
        self._answer = ExportLogsServiceResponse(
            partial_success=ExportLogsPartialSuccess(rejected_log_records=len(said), error_message=said)
        )

    def Export(self, _request: ExportLogsServiceRequest, _context: object) -> ExportLogsServiceResponse:  # noqa: N802
        return self._answer


@contextmanager
def running(
    collector: Collector, address: str = "127.0.0.1:0", certificates: CertificateFiles | None = None
) -> Iterator[int]:
    """Serve on a port, over TLS with the certificate of a server."""
    server = grpc.server(ThreadPoolExecutor(1))
    add_LogsServiceServicer_to_server(collector, server)  # type: ignore[no-untyped-call]  # generated
    if certificates is None:
        port = server.add_insecure_port(address)
    else:
        pair = (certificates.key.read_bytes(), certificates.cert.read_bytes())
        port = server.add_secure_port(address, grpc.ssl_server_credentials([pair]))
    server.start()
    try:
        yield port
    finally:
        server.stop(None).wait()
