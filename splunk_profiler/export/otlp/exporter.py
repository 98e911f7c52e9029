"""A sink that sends batches as OTLP log records over gRPC.

`export` runs on the exporting thread, `interrupt` and `shutdown` on any. Loads gRPC and
OpenTelemetry, so `LazySink` imports it late. Sends encoded bytes through gRPC's public interface:
the SDK's exporter hides the status, sleeps between its own attempts and cannot be interrupted.
Specification: Splunk profiling conventions, "Call Stack Ingest".
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Generic

import grpc
from opentelemetry.context import _SUPPRESS_INSTRUMENTATION_KEY, attach, detach, set_value
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse

from splunk_profiler.config import environment
from splunk_profiler.config.otlp_transport import Transport, explain_proxy
from splunk_profiler.config.parsers import Endpoint
from splunk_profiler.export.otlp import errors
from splunk_profiler.export.otlp.channel import DESCRIPTORS_CLOSED, Connection, ConnectionSelector, GrpcUnusableError
from splunk_profiler.export.otlp.sample_records import SampleEncoder
from splunk_profiler.export.sink_context import SinkContext
from splunk_profiler.formats.text import BodyFormatter
from splunk_profiler.samples import Batch, ExportResult, ExportStatus, Record
from splunk_profiler.system import clocks
from splunk_profiler.system.descriptors import were_closed
from splunk_profiler.system.printable import shortened
from splunk_profiler.system.threads import OwnedLock

_MIN_TIMEOUT_S = 0.05
# gRPC starts a thread for the first of the futures in flight. Where it cannot (`RuntimeError`), the others never end.
_STUCK_CALLS = (grpc.FutureTimeoutError, RuntimeError)
_STUCK_AFTER_S = 1.0  # beyond the timeout of the call


class OtlpSink(Generic[Record]):
    """A collector that takes OTLP logs over gRPC.

    Args:
        encode: records → the bytes of a request (`sample_records`, `profile_records`).
        tracer_provider: see `ConnectionSelector`.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        encode: Callable[[Sequence[Record]], bytes],
        transport: Transport,
        tracer_provider: Callable[[], object | None] | None = None,
    ) -> None:
        self._endpoint = endpoint
        self._transport = transport
        self._proxy = explain_proxy(endpoint, environment())
        self._encode = encode
        self._connections = ConnectionSelector(endpoint, transport, tracer_provider)
        self._compression = grpc.Compression.Gzip if transport.gzip else grpc.Compression.NoCompression
        self._server_protocol = errors.ServerProtocol.UNKNOWN
        self._probed_details = ""
        self._lock = OwnedLock()  # guards what follows
        self._is_exporting = self._has_call = False
        self._is_interrupted = False
        self._is_closed = False
        self._call: Any = None
        self._shutdown_deadline_s: float | None = None

    def export(self, batch: Batch[Record]) -> ExportResult:
        """Send `batch` in one request."""
        with self._lock:
            self._is_exporting = True
        try:
            result = self._send(self._encode(batch.records))
            # The receiver counts the parts of a large profile as records.
            return result._replace(rejected=min(result.rejected, len(batch.records)))
        except GrpcUnusableError as error:
            return ExportResult(ExportStatus.RETRY, str(error))
        finally:
            with self._lock:
                self._is_exporting = self._is_interrupted = False
                self._call = None

    def set_shutdown_deadline(self, timeout_s: float) -> None:
        """Limit exports to the next `timeout_s` seconds, on a connection that starts no thread."""
        self._shutdown_deadline_s = clocks.monotonic() + timeout_s

    def interrupt(self) -> None:
        """End an export in flight."""
        with self._lock:
            self._is_interrupted = is_exporting = self._is_exporting
            call = self._call
        if call is not None:
            call.cancel()
        elif is_exporting:
            self._connections.close(has_call=self._has_call)

    def shutdown(self) -> None:
        """End an export in flight and refuse later ones."""
        with self._lock:
            self._is_closed = True
            call = self._call
        if call is not None:
            call.cancel()
        self._connections.close(has_call=self._has_call)

    def _send(self, message: bytes) -> ExportResult:
        may_reconnect = True
        while True:
            # A shared call needs a future, but its thread cannot start once the main one has ended.
            may_share = self._shutdown_deadline_s is not None or threading.main_thread().is_alive()
            connection = self._connections.choose_connection(may_share=may_share)
            if self._is_ended():  # checked after the choice, which may have opened a connection
                if self._is_closed:
                    self._connections.close()
                return self._interrupted_result()
            try:
                return self._delivered_result(self._exchange(connection, message))
            except grpc.FutureCancelledError:
                return self._interrupted_result()
            except ValueError as error:  # the channel has been closed
                self._connections.record_failure(connection, timed_out=False)
                if not connection.is_shared:
                    return ExportResult(ExportStatus.RETRY, f"gRPC does not send: {error}")
            except grpc.RpcError as error:
                if self._is_ended() or were_closed() or (_timed_out(error) and self._shutdown_deadline_s is not None):
                    return self._interrupted_result()
                if not self._should_retry(connection, error, may_reconnect=may_reconnect):
                    protocol = self._probe_protocol(error)
                    return errors.classify_error(error, self._endpoint, self._transport, protocol, self._proxy)
                may_reconnect = may_reconnect and connection.is_shared

    def _should_retry(self, connection: Connection, error: grpc.RpcError, *, may_reconnect: bool) -> bool:
        """Record a failed call; return True if another connection may work at once."""
        timed_out = _timed_out(error)
        is_unreachable = error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
        if timed_out or is_unreachable:
            self._connections.record_failure(connection, timed_out=timed_out)
        if not is_unreachable or connection.is_shared:
            return is_unreachable
        if self._shutdown_deadline_s is None or not may_reconnect:
            return False
        self._connections.close()  # a failed connection pauses; a new one connects at once
        return True

    def _is_ended(self) -> bool:
        return self._is_closed or self._is_interrupted

    def _delivered_result(self, response: ExportLogsServiceResponse) -> ExportResult:
        self._connections.record_success()
        self._probed_details = ""
        partial = response.partial_success
        rejected = max(partial.rejected_log_records, 0)
        return ExportResult(ExportStatus.DELIVERED, shortened(partial.error_message), rejected=rejected)

    def _interrupted_result(self) -> ExportResult:
        text = f"{self._endpoint.url} had not answered when the export had to be ended"
        return ExportResult(ExportStatus.RETRY, DESCRIPTORS_CLOSED if were_closed() else text)

    def _exchange(self, connection: Connection, message: bytes) -> Any:
        options: dict[str, Any] = {
            "timeout": self._transport.timeout_s,
            "metadata": self._transport.headers,
            "compression": self._compression,  # the default of a shared connection is its owner's
        }
        if self._shutdown_deadline_s is not None:
            remaining_s = max(self._shutdown_deadline_s - clocks.monotonic(), _MIN_TIMEOUT_S)
            options["timeout"] = min(remaining_s, options["timeout"])
        # gRPC instrumentation must not trace our exports.
        token = attach(set_value(_SUPPRESS_INSTRUMENTATION_KEY, True))
        try:
            if not connection.is_shared or self._shutdown_deadline_s is not None:
                self._has_call = True
                return connection.call(message, **options)
            return self._exchange_shared(connection, message, options)
        finally:
            self._has_call = False
            detach(token)

    def _exchange_shared(self, connection: Connection, message: bytes, options: dict[str, Any]) -> Any:
        try:
            call = connection.call.future(message, **options)
            with self._lock:
                self._call = call
                is_ended = self._is_ended()
            if is_ended:
                call.cancel()
            return call.result(options["timeout"] + _STUCK_AFTER_S)
        except _STUCK_CALLS as error:
            self._connections.avoid_shared()
            raise GrpcUnusableError(f"gRPC does not send: {str(error) or type(error).__name__}") from None

    def _probe_protocol(self, error: grpc.RpcError) -> errors.ServerProtocol:
        """Return the server's protocol; probe once for each new text of the error."""
        details = error.details() or ""
        # The probe goes past a proxy, and an ending process has no time for it.
        is_useful = not self._proxy and self._shutdown_deadline_s is None
        if not is_useful or not errors.should_probe(error.code(), details):
            return errors.ServerProtocol.UNKNOWN
        if details != self._probed_details:
            self._probed_details = details
            self._server_protocol = errors.probe(self._endpoint)
        return self._server_protocol


def open_sink(context: SinkContext) -> OtlpSink[Any]:
    """Make the sink for a `Collector`."""
    resolved, endpoint = context.resolved, context.resolved.endpoint
    assert endpoint is not None
    encode: Callable[[Sequence[Any]], bytes]
    if resolved.config.sends_profiles:
        from splunk_profiler.export.otlp.profile_records import ProfileEncoder  # noqa: PLC0415  # needless for text

        encode = ProfileEncoder(context.resource, context.classifier).encode
    else:
        encode = SampleEncoder(context.resource, BodyFormatter().parts).encode
    if not context.share_connection:
        return OtlpSink(endpoint, encode, resolved.transport)
    from splunk_profiler.otel.spans import tracer_provider  # noqa: PLC0415  # megabytes, and only a service has one

    return OtlpSink(endpoint, encode, resolved.transport, tracer_provider)


def _timed_out(error: grpc.RpcError) -> bool:
    return bool(error.code() is grpc.StatusCode.DEADLINE_EXCEEDED)
