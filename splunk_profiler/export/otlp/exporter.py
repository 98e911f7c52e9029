"""Exports batches as OTLP log records over gRPC.

`export` runs on the exporting thread, `interrupt` and `shutdown` on any. Loads gRPC and OpenTelemetry when it
is imported, so it is imported when the first batch is there. Sends ready bytes through gRPC's public
interface: the exporter of the SDK keeps the status to itself, sleeps between attempts of its own and cannot
be interrupted. Specification: Splunk profiling conventions, "Call Stack Ingest".
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Generic

import grpc
from opentelemetry import context as otel_context
from opentelemetry.context import _SUPPRESS_INSTRUMENTATION_KEY

from splunk_profiler.config.otlp_transport import Transport
from splunk_profiler.config.parsers import Endpoint
from splunk_profiler.export.otlp import errors
from splunk_profiler.export.otlp.channel import Connection, ConnectionSelector
from splunk_profiler.export.otlp.profile_records import ProfileEncoder
from splunk_profiler.export.otlp.sample_records import SampleEncoder
from splunk_profiler.export.sink_context import SinkContext
from splunk_profiler.formats.text import body
from splunk_profiler.model import Batch, ExportResult, ExportStatus, Record
from splunk_profiler.otel.spans import tracer_provider
from splunk_profiler.system.threads import real_lock

_MIN_TIMEOUT_S = 0.05


class OtlpSink(Generic[Record]):
    """A collector that takes OTLP logs over gRPC.

    Args:
        endpoint: where it is.
        encode: records → the bytes of a request (`sample_records`, `profile_records`).
        transport: headers, timeout, compression and certificates.
        tracer_provider: the application's provider, whose exporter's connection is shared where it fits.
        share_connection: False in a forked child, where that connection is the parent's.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        encode: Callable[[Sequence[Record]], bytes],
        transport: Transport,
        tracer_provider: Callable[[], object | None] = lambda: None,
        *,
        share_connection: bool = True,
    ) -> None:
        self._endpoint = endpoint
        self._transport = transport
        self._encode = encode
        self._connections = ConnectionSelector(endpoint, transport, tracer_provider, share_connection=share_connection)
        self._compression = grpc.Compression.Gzip if transport.gzip else grpc.Compression.NoCompression
        self._server_protocol = errors.ServerProtocol.UNKNOWN
        self._probed_details = ""
        self._lock = real_lock()  # guards what follows
        self._is_exporting = False
        self._is_interrupted = False
        self._is_closed = False
        self._call: Any = None
        self._shutdown_deadline_s: float | None = None

    def export(self, batch: Batch[Record]) -> ExportResult:
        """See `Sink.export`."""
        with self._lock:
            self._is_exporting = True
        try:
            result = self._send(self._encode(batch.records))
            # A large profile is several records to a receiver.
            return replace(result, rejected=min(result.rejected, len(batch.records)))
        except Exception as error:
            return ExportResult(
                ExportStatus.REJECTED, f"the records cannot be encoded or sent: {type(error).__name__}: {error}"
            )
        finally:
            with self._lock:
                self._is_exporting = self._is_interrupted = False
                self._call = None

    def set_shutdown_deadline(self, timeout_s: float) -> None:
        """See `Sink.set_shutdown_deadline`."""
        self._shutdown_deadline_s = time.monotonic() + timeout_s

    def interrupt(self) -> None:
        """See `Sink.interrupt`."""
        with self._lock:
            self._is_interrupted = is_exporting = self._is_exporting
            call = self._call
        if call is not None:
            call.cancel()
        elif is_exporting:
            self._connections.close()

    def shutdown(self) -> None:
        """See `Sink.shutdown`."""
        with self._lock:
            self._is_closed = True
            call = self._call
        if call is not None:
            call.cancel()
        self._connections.close()

    def _send(self, message: bytes) -> ExportResult:
        has_reconnected = False
        while True:
            # To end a call on a shared connection takes a future, whose thread cannot start once the main one ended.
            may_share = self._shutdown_deadline_s is not None or threading.main_thread().is_alive()
            connection = self._connections.choose_connection(may_share=may_share)
            if self._is_closed or self._is_interrupted:  # asked with the connection open: who ends us now will find it
                if self._is_closed:
                    self._connections.close()
                return self._interrupted_result()
            try:
                response = self._exchange(connection, message)
            except grpc.FutureCancelledError:
                return self._interrupted_result()
            except ValueError as error:  # gRPC's word for a channel that somebody has closed
                self._connections.record_failure(connection, timed_out=False)
                if connection.is_shared:
                    continue
                return ExportResult(ExportStatus.RETRY, f"gRPC does not send: {error}")
            except grpc.RpcError as error:
                timed_out = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
                if self._is_closed or self._is_interrupted or (timed_out and self._shutdown_deadline_s is not None):
                    return self._interrupted_result()
                is_unreachable = error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
                if timed_out or is_unreachable:
                    self._connections.record_failure(connection, timed_out=timed_out)
                if is_unreachable and connection.is_shared:
                    continue  # the trace exporter's connection is not the only way to the collector
                if is_unreachable and self._shutdown_deadline_s is not None and not has_reconnected:
                    has_reconnected = (
                        True  # the last chance: a connection that did not work pauses, a new one tries at once
                    )
                    self._connections.close()
                    continue
                return errors.classify_error(error, self._endpoint, self._transport, self._probe_protocol(error))
            self._connections.record_success()
            self._probed_details = ""
            partial = response.partial_success
            return ExportResult(
                ExportStatus.DELIVERED, partial.error_message, rejected=max(partial.rejected_log_records, 0)
            )

    def _interrupted_result(self) -> ExportResult:
        return ExportResult(
            ExportStatus.RETRY, f"{self._endpoint.url} had not answered when the export had to be ended"
        )

    def _exchange(self, connection: Connection, message: bytes) -> Any:
        options: dict[str, Any] = {
            "timeout": self._transport.timeout_s,
            "metadata": self._transport.headers,
            "compression": self._compression,  # of this call: a shared connection has its owner's
        }
        if self._shutdown_deadline_s is not None:
            options["timeout"] = min(
                max(self._shutdown_deadline_s - time.monotonic(), _MIN_TIMEOUT_S), options["timeout"]
            )
        with _suppress_instrumentation():
            if not connection.is_shared or self._shutdown_deadline_s is not None:
                return connection.call(message, **options)
            call = connection.call.future(message, **options)
            with self._lock:
                self._call = call
                is_cancelled = self._is_interrupted or self._is_closed
            if is_cancelled:
                call.cancel()
            return call.result()

    def _probe_protocol(self, error: grpc.RpcError) -> errors.ServerProtocol:
        """What the server answers without TLS; asked once for each way in which it does not work."""
        details = error.details() or ""
        if not errors.should_probe(error.code(), details):
            return errors.ServerProtocol.UNKNOWN
        if details != self._probed_details:
            self._probed_details = details
            self._server_protocol = errors.probe(self._endpoint)
        return self._server_protocol


def open_sink(context: SinkContext) -> OtlpSink[Any]:
    """The sink for a `Collector`."""
    resolved, endpoint = context.resolved, context.resolved.endpoint
    assert endpoint is not None
    encode: Callable[[Sequence[Any]], bytes]
    if resolved.config.sends_profiles:
        encode = ProfileEncoder(context.resource, context.classifier).encode
    else:
        encode = SampleEncoder(context.resource, body).encode
    return OtlpSink(endpoint, encode, resolved.transport, tracer_provider, share_connection=context.share_connection)


@contextmanager
def _suppress_instrumentation() -> Iterator[None]:
    """Keep gRPC instrumentation from tracing our own exports."""
    token = otel_context.attach(otel_context.set_value(_SUPPRESS_INSTRUMENTATION_KEY, True))
    try:
        yield
    finally:
        otel_context.detach(token)
