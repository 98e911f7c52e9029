"""Real OTLP/gRPC servers (logs and traces) that misbehave on demand; each runs as a process of its own.

    python tests/targets/receiver.py

They are forked from one process (see `forked_processes`), so that gRPC is loaded once.

The first line of its output is ``ready PORT``; then comes one line of JSON for each export it answered, refused
or left hanging (`describe` says what is in it). A line on standard input changes its mode: ``ok``,
``hang`` (calls are left without an answer until the mode changes), ``refuse CODE [seconds]`` (a gRPC status,
with a RetryInfo where seconds are given), ``partial N [message]`` (accepted, N records rejected), ``stop``.
After each it prints ``{"mode": …}``, so that a test knows that the mode is in force; an empty line changes nothing.
Tests drive it through `receiver_process.Receiver`. Imports nothing of the package.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
from forked_processes import fork_processes
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import RetryInfo
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsPartialSuccess,
    ExportLogsServiceRequest,
    ExportLogsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

_RETRY_INFO = "google.rpc.retryinfo-bin"


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(item) for item in value.array_value.values]
    if kind == "kvlist_value":
        return _attributes(value.kvlist_value.values)
    if kind == "bytes_value":
        return value.bytes_value.hex()
    return getattr(value, kind) if kind else None


def _attributes(pairs: Iterable[KeyValue]) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def describe(request: Any) -> dict[str, Any]:
    """A request as plain values: ``signal``, ``size`` in bytes, and its ``records`` or ``spans``.

    Each record has ``resource``, ``scope`` (name, version), ``time_ns``, ``observed_ns``, ``severity``,
    ``trace_id`` and ``span_id`` (hex, empty if not set), ``flags``, ``event_name``, ``attributes`` and
    ``body``; a span has ``resource``, ``scope``, ``name``, ``trace_id``, ``span_id``, ``parent_span_id``, ``start_ns``,
    ``end_ns`` and ``attributes``.
    """
    found: dict[str, Any] = {"size": request.ByteSize()}
    if isinstance(request, ExportLogsServiceRequest):
        found["signal"] = "logs"
        found["records"] = [
            {
                "resource": _attributes(group.resource.attributes),
                "scope": [part.scope.name, part.scope.version],
                "time_ns": record.time_unix_nano,
                "observed_ns": record.observed_time_unix_nano,
                "severity": record.severity_number,
                "trace_id": record.trace_id.hex(),
                "span_id": record.span_id.hex(),
                "flags": record.flags,
                "event_name": record.event_name,
                "attributes": _attributes(record.attributes),
                "body": _value(record.body),
            }
            for group in request.resource_logs
            for part in group.scope_logs
            for record in part.log_records
        ]
    else:
        found["signal"] = "traces"
        found["spans"] = [
            {
                "resource": _attributes(group.resource.attributes),
                "scope": [part.scope.name, part.scope.version],
                "name": span.name,
                "trace_id": span.trace_id.hex(),
                "span_id": span.span_id.hex(),
                "parent_span_id": span.parent_span_id.hex(),
                "start_ns": span.start_time_unix_nano,
                "end_ns": span.end_time_unix_nano,
                "attributes": _attributes(span.attributes),
            }
            for group in request.resource_spans
            for part in group.scope_spans
            for span in part.spans
        ]
    return found


class Collector:
    """Answers exports according to its mode, and tells standard output about each."""

    def __init__(self, mode: str) -> None:
        self._print_lock = threading.Lock()
        self._changed = threading.Condition()
        self._mode = mode.split()

    def say(self, line: str) -> None:
        with self._print_lock:
            print(line, flush=True)

    def switch(self, mode: str) -> None:
        """Let `mode` be in force from now on, also for calls that hang; an empty one changes nothing."""
        if mode:
            with self._changed:
                self._mode = mode.split()
                self._changed.notify_all()
        self.say(json.dumps({"mode": mode}))

    def answer(self, request: Any, call: grpc.ServicerContext, response: type[Any]) -> Any:
        """The handler of both services; ``answer`` in the printed line is the mode the call met.

        A call that hung and is answered after all has a second line, with the mode that answered it.
        """
        with self._changed:
            mode = self._mode
        headers = {key: value for key, value in call.invocation_metadata() if isinstance(value, str)}
        line = {"answer": " ".join(mode), "peer": call.peer(), "headers": headers, **describe(request)}
        self.say(json.dumps(line))
        if mode[0] == "hang":
            call.add_callback(self._wake)
            with self._changed:
                self._changed.wait_for(lambda: self._mode[0] != "hang" or not call.is_active())
                mode = self._mode
            if not call.is_active():
                return response()
            self.say(json.dumps({**line, "answer": " ".join(mode)}))
        if mode[0] == "refuse":
            if len(mode) > 2:
                seconds, _, fraction = mode[2].partition(".")
                nanos = int(fraction.ljust(9, "0")) if fraction else 0
                info = RetryInfo(retry_delay=Duration(seconds=int(seconds), nanos=nanos))
                call.set_trailing_metadata(((_RETRY_INFO, info.SerializeToString()),))
            call.abort(grpc.StatusCode[mode[1]], f"refused with {mode[1]} by the test")
        if mode[0] == "partial":
            partial = ExportLogsPartialSuccess(rejected_log_records=int(mode[1]), error_message=" ".join(mode[2:]))
            return ExportLogsServiceResponse(partial_success=partial)
        return response()

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def handlers(self) -> list[grpc.GenericRpcHandler]:
        """The two export services."""
        services: dict[str, tuple[Any, Any]] = {
            "opentelemetry.proto.collector.logs.v1.LogsService": (ExportLogsServiceRequest, ExportLogsServiceResponse),
            "opentelemetry.proto.collector.trace.v1.TraceService": (
                ExportTraceServiceRequest,
                ExportTraceServiceResponse,
            ),
        }
        return [
            grpc.method_handlers_generic_handler(
                name,
                {
                    "Export": grpc.unary_unary_rpc_method_handler(
                        lambda request, call, response=response: self.answer(request, call, response),
                        request_deserializer=request.FromString,
                        response_serializer=response.SerializeToString,
                    )
                },
            )
            for name, (request, response) in services.items()
        ]


def _bind(server: grpc.Server, arguments: argparse.Namespace) -> int:
    address = f"unix:{arguments.unix}" if arguments.unix else f"{arguments.host}:{arguments.port}"
    if arguments.cert is None:
        return int(server.add_insecure_port(address))
    client_ca = arguments.client_ca.read_bytes() if arguments.client_ca else None
    pair = (arguments.key.read_bytes(), arguments.cert.read_bytes())
    credentials = grpc.ssl_server_credentials([pair], client_ca, require_client_auth=client_ca is not None)
    return int(server.add_secure_port(address, credentials))


def serve(options: list[str]) -> None:
    """Serve until standard input ends or says ``stop``."""
    parser = argparse.ArgumentParser(description="OTLP/gRPC server for tests")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--unix", type=Path)
    parser.add_argument("--mode", default="ok")
    parser.add_argument("--cert", type=Path)
    parser.add_argument("--key", type=Path)
    parser.add_argument("--client-ca", type=Path)
    arguments = parser.parse_args(options)
    collector = Collector(arguments.mode)
    server = grpc.server(
        ThreadPoolExecutor(max_workers=32),
        handlers=collector.handlers(),
        options=[("grpc.so_reuseport", 0)],
    )
    port = _bind(server, arguments)
    server.start()
    collector.say(f"ready {port}")
    for line in sys.stdin:
        if line.strip() == "stop":
            break
        collector.switch(line.strip())
    collector.switch("ok")
    server.stop(grace=None).wait()
    os._exit(0)  # an interpreter that ends in order takes three times as long as all of the above


if __name__ == "__main__":
    fork_processes(serve)
