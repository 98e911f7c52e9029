"""The server of the local collector: saves OTLP/gRPC requests in the store and counts their contents.

Requests run on the server's threads. A request succeeds only when the store has it. Imports gRPC and the
protocol's messages, so only `collect` imports this module.

Specification: OTLP 1.x, "OTLP/gRPC", "Failures"; JSON as in "JSON Protobuf Encoding".
"""

from __future__ import annotations

import base64
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, NoReturn, TypeVar

import grpc
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import DecodeError, Message
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from splunk_profiler.cli.errors import CommandError
from splunk_profiler.cli.store import Saved, StoreError
from splunk_profiler.viewer.message_size import count_items, fields_of
from splunk_profiler.viewer.otlp_files import PROFILE_SCOPE

_Handler = Callable[[bytes, grpc.ServicerContext], bytes]
_Append = Callable[[Any], None]
_ACCEPTED = b""  # a response without fields, which means that nothing was rejected
_ID_FIELDS = ("traceId", "spanId", "parentSpanId")
MAX_ITEMS = 250_000
MAX_SERVICES = 100
MAX_NAME_LENGTH = 100

_MAX_REQUESTS = 128
_WORKER_COUNT = 4
_STOP_GRACE_S = 5.0
# gRPC itself refuses larger requests, so they are not in `Refusals.oversize`.
_TRANSPORT_FACTOR = 2


@dataclass(frozen=True, slots=True)
class Refusals:
    """Counts of refused requests since the start.

    Attributes:
        malformed: requests that could not be parsed.
        oversize: requests with too many bytes or items.
        not_saved: requests that could not be saved; the answer asks the sender to try again, unless it has given up.
        problem: why requests are being refused; empty while they are saved.
    """

    malformed: int = 0
    oversize: int = 0
    not_saved: int = 0
    problem: str = ""


@dataclass(frozen=True, slots=True)
class ReceivedCounts:
    """Counts of what has been received since the start.

    Attributes:
        samples: log records of the profiling scope that are one sample.
        samples_in_spans: samples with a span id.
        profiles: log records of the profiling scope that are an aggregated profile.
        logs: log records of any other scope.
        services: the first `MAX_SERVICES` names of services, cut to `MAX_NAME_LENGTH` characters.
        unnamed_services: how often a service was received that is not in `services`.
    """

    samples: int = 0
    samples_in_spans: int = 0
    profiles: int = 0
    logs: int = 0
    spans: int = 0
    services: tuple[str, ...] = ()
    unnamed_services: int = 0
    refusals: Refusals = Refusals()


_Counts = TypeVar("_Counts", ReceivedCounts, Refusals)


class Receiver:
    """An OTLP/gRPC server that saves logs and traces in `store`.

    Its memory is bounded. `_WORKER_COUNT` requests are read at once; one at a time is parsed and saved. Up to
    `_MAX_REQUESTS` wait; gRPC refuses more (RESOURCE_EXHAUSTED). A request holds at most `MAX_ITEMS` records, spans,
    attributes and values.

    Port 0 takes a free one. `on_problem` is called with one sentence when refusals begin and when they end; it must not
    raise.

    Raises:
        CommandError: nothing can listen on that address.
    """

    def __init__(
        self, store: Saved, host: str, port: int, max_request_bytes: int, on_problem: Callable[[str], None]
    ) -> None:
        self._max_request_bytes = max_request_bytes
        self._on_problem = on_problem
        self._counts_lock = threading.Lock()
        self._request_lock = threading.Lock()
        self._counts = ReceivedCounts()
        _check_address_free(host, port)
        self._server = grpc.server(
            ThreadPoolExecutor(_WORKER_COUNT, thread_name_prefix="collect"),
            maximum_concurrent_rpcs=_MAX_REQUESTS,
            options=[
                ("grpc.so_reuseport", 0),
                ("grpc.max_receive_message_length", max_request_bytes * _TRANSPORT_FACTOR),
            ],
        )
        save_logs, save_spans = (partial(store.append, is_traces=is_traces) for is_traces in (False, True))
        services = (
            _make_service("Logs", self._make_handler(ExportLogsServiceRequest, save_logs, _count_logs)),
            _make_service("Trace", self._make_handler(ExportTraceServiceRequest, save_spans, _count_spans)),
            _make_service("Metrics", lambda _body, _context: _ACCEPTED),  # dropped: nothing here shows metrics
        )
        self._server.add_generic_rpc_handlers(services)
        address = _format_address(host, port)
        try:
            self.address = _format_address(host, self._server.add_insecure_port(address))
        except RuntimeError:
            raise CommandError(f"nothing can listen on {address}; choose another with --port") from None
        self._server.start()

    def counts(self) -> ReceivedCounts:
        """Return the counts so far."""
        with self._counts_lock:
            return self._counts

    def stop(self) -> None:
        """Refuse new requests, finish running ones (5 seconds at most), and end."""
        self._server.stop(_STOP_GRACE_S).wait()

    def _make_handler(self, kind: Any, append: _Append, count: Callable[[Any], ReceivedCounts]) -> _Handler:
        def handle(body: bytes, context: grpc.ServicerContext) -> bytes:
            with self._request_lock:
                if not context.is_active():  # its sender has given up waiting, and sends it again
                    self._add(ReceivedCounts(refusals=Refusals(not_saved=1)))
                    return _ACCEPTED  # the client has gone
                request = self._parse(kind, body, context)
                counts = count(request)
                if counts.samples or counts.profiles or counts.logs or counts.spans:
                    self._save(append, request, context)
                self._add(counts)
            return _ACCEPTED

        return handle

    def _parse(self, kind: Any, body: bytes, context: grpc.ServicerContext) -> Any:
        problem = ""
        if len(body) > self._max_request_bytes:
            problem = f"has {len(body)} bytes, {self._max_request_bytes} are allowed"
        elif count_items(body, fields_of(kind.DESCRIPTOR), MAX_ITEMS) > MAX_ITEMS:
            problem = f"holds more than {MAX_ITEMS} records, spans, attributes and values"
        if problem:
            self._add(ReceivedCounts(refusals=Refusals(oversize=1)))
            _refuse(context, grpc.StatusCode.RESOURCE_EXHAUSTED, f"the request {problem}; send smaller batches")
        try:
            return kind.FromString(body)
        except DecodeError:
            self._add(ReceivedCounts(refusals=Refusals(malformed=1)))
            _refuse(context, grpc.StatusCode.INVALID_ARGUMENT, f"the request is not an {kind.DESCRIPTOR.full_name}")

    def _save(self, append: _Append, request: Message, context: grpc.ServicerContext) -> None:
        try:
            append(to_json(request))
        except StoreError as error:
            self._add(ReceivedCounts(refusals=Refusals(not_saved=1)))
            self._set_problem(str(error))
            _refuse(context, grpc.StatusCode.UNAVAILABLE, f"not saved, try again later: {error}")
        self._set_problem("")

    def _add(self, more: ReceivedCounts) -> None:
        with self._counts_lock:
            old = self._counts
            new = [name for name in more.services if name not in old.services]
            listed = new[: MAX_SERVICES - len(old.services)]
            self._counts = replace(
                _sum(old, more),
                services=(*old.services, *listed),
                unnamed_services=old.unnamed_services + len(new) - len(listed),
                refusals=_sum(old.refusals, more.refusals),
            )

    def _set_problem(self, problem: str) -> None:
        with self._counts_lock:
            changed = problem != self._counts.refusals.problem
            refusals = replace(self._counts.refusals, problem=problem)
            self._counts = replace(self._counts, refusals=refusals)
        if changed:
            self._on_problem(
                f"{problem}; requests are refused and their senders try again"
                if problem
                else f"requests are being saved again; {refusals.not_saved} were refused meanwhile"
            )


def _sum(old: _Counts, more: _Counts) -> _Counts:
    """Return `old` with the numbers of `more` added."""
    numbers = [name for name, value in asdict(more).items() if isinstance(value, int)]
    return replace(old, **{name: getattr(old, name) + getattr(more, name) for name in numbers})


def _count_logs(request: ExportLogsServiceRequest) -> ReceivedCounts:
    scopes = [scope for resource in request.resource_logs for scope in resource.scope_logs]
    profiling = [record for scope in scopes if scope.scope.name == PROFILE_SCOPE for record in scope.log_records]
    samples = [record for record in profiling if not _is_profile(record)]
    return ReceivedCounts(
        samples=len(samples),
        samples_in_spans=sum(1 for record in samples if record.span_id),
        profiles=len(profiling) - len(samples),
        logs=sum(len(scope.log_records) for scope in scopes) - len(profiling),
        services=_service_names(request.resource_logs),
    )


def _count_spans(request: ExportTraceServiceRequest) -> ReceivedCounts:
    spans = sum(len(scope.spans) for resource in request.resource_spans for scope in resource.scope_spans)
    return ReceivedCounts(spans=spans, services=_service_names(request.resource_spans))


def to_json(request: Message) -> dict[str, Any]:
    """Return `request` as OTLP/JSON: enumerations are numbers, trace and span ids are hex."""
    value: dict[str, Any] = MessageToDict(request, use_integers_for_enums=True)
    for resource in [*value.get("resourceLogs", ()), *value.get("resourceSpans", ())]:
        for scope in [*resource.get("scopeLogs", ()), *resource.get("scopeSpans", ())]:
            for entry in [*scope.get("logRecords", ()), *scope.get("spans", ())]:
                _ids_to_hex(entry)
                for link in entry.get("links", ()):
                    _ids_to_hex(link)
    return value


def _is_profile(record: Any) -> bool:
    values = (pair.value.string_value for pair in record.attributes if pair.key == "profiling.data.format")
    return next(values, "text") != "text"


def _ids_to_hex(holder: dict[str, Any]) -> None:
    for name in _ID_FIELDS:
        if name in holder:
            holder[name] = base64.b64decode(holder[name]).hex()


def _service_names(resources: Any) -> tuple[str, ...]:
    names = (
        attribute.value.string_value
        for entry in resources
        for attribute in entry.resource.attributes
        if attribute.key == "service.name"
    )
    return tuple(dict.fromkeys(name[:MAX_NAME_LENGTH] for name in names if name))


def _make_service(name: str, export: _Handler) -> grpc.GenericRpcHandler:
    # Without a deserializer the handler gets bytes, and can count and answer malformed requests itself.
    handler = grpc.unary_unary_rpc_method_handler(export)
    return grpc.method_handlers_generic_handler(
        f"opentelemetry.proto.collector.{name.lower()}.v1.{name}Service", {"Export": handler}
    )


def _check_address_free(host: str, port: int) -> None:
    """Raise an error with the system's reason if nothing can listen there; gRPC gives no reason."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen()
    except (OSError, UnicodeError) as error:  # the latter of names that cannot be any
        raise CommandError(
            f"nothing can listen on {_format_address(host, port)}: {getattr(error, 'strerror', error)}; "
            "choose another with --host or --port (port 0 takes a free one)"
        ) from None


def _format_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _refuse(context: grpc.ServicerContext, code: grpc.StatusCode, detail: str) -> NoReturn:
    context.abort(code, detail)
    raise AssertionError("abort() raises")
