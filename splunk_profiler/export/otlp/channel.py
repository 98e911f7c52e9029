"""The gRPC connection of exports: the trace exporter's where it fits, else our own.

Runs on the exporting thread, `close` on any. Loads gRPC. The specification asks to reuse the
persistent connection of another signal ("Call Stack Ingest"). The trace exporter has no public name
for it; `tests/unit/export/otlp/test_otlp_channel.py` tests the private names that are read here. A
shared connection is never closed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path
from typing import Any

import grpc
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse

from splunk_profiler.config.otlp_transport import Transport
from splunk_profiler.config.parsers import Endpoint, quote_redacted, redact
from splunk_profiler.system import clocks
from splunk_profiler.system.descriptors import HIGH_NUMBER, open_witness, were_closed
from splunk_profiler.system.guard import logger

EXPORT_METHOD = "/opentelemetry.proto.collector.logs.v1.LogsService/Export"
_CREDENTIAL_PROVIDER_GROUP = "opentelemetry_otlp_credential_provider"
Pems = tuple[bytes | None, bytes | None, bytes | None]  # trusted certificates, the client's key and its chain
TRACE_EXPORTER = "opentelemetry.exporter.otlp.proto.grpc.trace_exporter"
# These versions start no thread after the main one has ended, but gRPC needs one for a shared call.
_LATE_THREADS_FAIL = (3, 12) <= sys.version_info[:3] < (3, 12, 2)
_AVOID_SHARED_NS = 60_000_000_000
_CHANNEL_OPTIONS = (
    ("grpc.primary_user_agent", "splunk-profiler"),
    # gRPC's default pause grows to two minutes; records must flow 15 s after a collector's return.
    ("grpc.initial_reconnect_backoff_ms", 500),
    ("grpc.min_reconnect_backoff_ms", 5000),
    ("grpc.max_reconnect_backoff_ms", 2000),
    # A new channel must not get the stuck connection that it replaces.
    ("grpc.use_local_subchannel_pool", 1),
    # What it writes beside requests might go into a file of the application, if that has closed its descriptors.
    ("grpc.http2.bdp_probe", 0),
)
# gRPC starts a thread for each processor, at least 4 and at most 16, two more with its first channel, and some later.
_GRPC_THREADS = 2 * min(max(os.cpu_count() or 1, 4), 16)
_GRPC_DESCRIPTORS = 8  # it needs 4 for its first channel
DESCRIPTORS_CLOSED = (
    "the application has closed the descriptors of gRPC, as daemons do; start the profiler after that, "
    "or have an exporter process export (SPLUNK_PROFILER_EXPORTER=auto)"
)


class GrpcUnusableError(Exception):
    """Error for a process that gRPC would abort, or whose log it would fill; the message says why."""


@cache
def _keep_grpc_running() -> grpc.Channel:
    """Keep an unused channel open, so that no other channel is the last to close.

    gRPC shuts down on its own thread after the last channel closes. A child forked meanwhile would
    wait for that thread for ever, holding the GIL, when it opens its first channel.

    Raises:
        GrpcUnusableError: gRPC would abort the process.
    """
    _check_grpc()
    channel = grpc.insecure_channel("ipv4:127.0.0.1:9")  # never called, so never connected
    open_witness("after gRPC's first")
    return channel


def _keep_for_ever(thing: object) -> None:
    """Keep an object beyond the end of the interpreter: gRPC aborts where it shuts down without its descriptors."""
    import ctypes  # noqa: PLC0415  # for this alone

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def _check_grpc() -> None:
    """Raise `GrpcUnusableError` if gRPC would abort the process, or keep the GIL for ten seconds before that."""
    try:
        with ExitStack() as opened:
            for _ in range(_GRPC_DESCRIPTORS):
                opened.enter_context(Path("/dev/urandom").open("rb"))
    except OSError as error:  # the device is missing in the application's root, or descriptors are
        raise GrpcUnusableError(f"gRPC would end the process: {error}") from None
    if not _has_room_for_threads(_GRPC_THREADS):
        raise GrpcUnusableError(f"there is no room for the {_GRPC_THREADS} threads that gRPC may need")


def _has_room_for_threads(count: int) -> bool:
    with suppress(ImportError):  # missing on some systems
        from splunk_profiler._walker import has_room_for_threads  # noqa: PLC0415

        return has_room_for_threads(count)
    return True


class Connection:
    """A connection to the collector, which the trace exporter owns if it is shared."""

    def __init__(self, channel: grpc.Channel, *, is_shared: bool) -> None:
        self.channel = channel
        self.is_shared = is_shared
        self.call = channel.unary_unary(EXPORT_METHOD, None, ExportLogsServiceResponse.FromString)


class ConnectionSelector:
    """The owner of our connection, which chooses the connection of each export.

    Args:
        tracer_provider: returns the application's provider or None; called with each export; None: its trace
            exporter's connection is not shared.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        transport: Transport,
        tracer_provider: Callable[[], object | None] | None,
    ) -> None:
        self._endpoint = endpoint
        self._transport = transport
        self._tracer_provider = None if _LATE_THREADS_FAIL else tracer_provider
        self._pems: Pems = (None, None, None)
        self._credentials: grpc.ChannelCredentials | None = None
        if endpoint.is_secure:
            certificates = transport.certificates
            authority, key, chain = map(_read_pem, certificates.files, certificates.settings)
            self._pems = (authority, key, chain)
            self._credentials = _credentials(transport, self._pems)
        self._own_connection: Connection | None = None
        self._shared_connection: Connection | None = None
        self._avoid_shared_until_ns: int | None = None
        self._consecutive_timeouts = 0

    def choose_connection(self, *, may_share: bool) -> Connection:
        """Return the connection for the next export: our own unless `may_share`.

        Raises:
            GrpcUnusableError: gRPC would abort the process, or has lost its descriptors.
        """
        open_witness("before gRPC's")
        if were_closed():  # gRPC does not notice: it writes 25 MB of messages a second, and records into others' files
            raise GrpcUnusableError(DESCRIPTORS_CLOSED)
        if self._avoid_shared_until_ns is not None and clocks.monotonic_ns() >= self._avoid_shared_until_ns:
            self._avoid_shared_until_ns = None
        channel = None
        if may_share:
            with suppress(Exception):  # of processors of the application
                channel = self._find_trace_channel()
        if channel is None:
            self._shared_connection = None
        elif self._shared_connection is None or self._shared_connection.channel is not channel:
            self._shared_connection = Connection(channel, is_shared=True)
            self._avoid_shared_until_ns = None  # the trace exporter has a new connection, which may work
        # A call on it starts a thread of Python. Where that fails, later calls and the channel's end wait for ever.
        shared = self._shared_connection if self._avoid_shared_until_ns is None else None
        if shared is not None and _has_room_for_threads(1):
            return shared
        own = self._own_connection
        if own is None:
            own = self._own_connection = Connection(self._open_channel(), is_shared=False)
        return own

    def record_failure(self, connection: Connection, *, timed_out: bool) -> None:
        """Avoid a shared connection for 60 s; close our own after two timeouts in a row, or with new certificates."""
        if connection.is_shared:
            self._avoid_shared_until_ns = clocks.monotonic_ns() + _AVOID_SHARED_NS
            return
        self._consecutive_timeouts = self._consecutive_timeouts + 1 if timed_out else 0
        # The host may be gone without a reset: only a new connection shows it.
        if self._consecutive_timeouts > 1 or (self._endpoint.is_secure and self._renew_credentials()):
            self.close()
            self._consecutive_timeouts = 0

    def avoid_shared(self) -> None:
        """Avoid the shared connection, whose calls do not end, until the trace exporter has another."""
        self._avoid_shared_until_ns = sys.maxsize

    def record_success(self) -> None:
        """Reset the count of timeouts; from now on it is seen if the connection's descriptor is closed."""
        open_witness("after the connection's")
        open_witness("above all", HIGH_NUMBER)
        self._consecutive_timeouts = 0

    def close(self, *, has_call: bool = False) -> None:
        """Close our own connection and end its call; without one, do not close what may be the application's by now."""
        own, self._own_connection = self._own_connection, None
        is_lost = were_closed()
        if is_lost and _keep_grpc_running.cache_info().currsize:
            _keep_for_ever(_keep_grpc_running())
        if own is not None and is_lost and not has_call:
            _keep_for_ever(own)
        elif own is not None:
            own.channel.close()

    def _renew_credentials(self) -> bool:
        """Use the certificates that have been replaced, as short-lived ones are; return True if there are any."""
        authority, key, chain = map(_replaced_pem, self._transport.certificates.files, self._pems)
        found = (authority, key, chain)
        if found == self._pems:
            return False
        self._pems, self._credentials = found, _credentials(self._transport, found)
        return True

    def _open_channel(self) -> grpc.Channel:
        _keep_grpc_running()
        # Certificates name this authority; gRPC's default is the socket's path, which some servers refuse.
        authority = (("grpc.default_authority", "localhost"),) if self._endpoint.path else ()
        options = (*_CHANNEL_OPTIONS, *authority)
        if self._credentials is None:
            return grpc.insecure_channel(self._endpoint.target, options=options)
        return grpc.secure_channel(self._endpoint.target, self._credentials, options=options)

    def _find_trace_channel(self) -> grpc.Channel | None:
        """Return the open channel of a trace exporter with our endpoint and credentials.

        Credentials have no comparison, so this compares the settings that both are made from.
        """
        module = sys.modules.get(TRACE_EXPORTER)
        if module is None or self._tracer_provider is None:
            return None
        transport, endpoint = self._transport, self._endpoint
        if endpoint.is_secure and (
            transport.certificates.files != transport.trace_certificates.files
            or transport.credential_provider != transport.trace_credential_provider
        ):
            return None
        for exporter in iter_span_exporters(self._tracer_provider()):
            if (
                isinstance(exporter, module.OTLPSpanExporter)
                and getattr(exporter, "_endpoint", None) == endpoint.target
                and uses_tls(exporter) is endpoint.is_secure
                and not getattr(exporter, "_shutdown", False)
            ):
                return getattr(exporter, "_channel", None)
        return None


def iter_span_exporters(provider: object | None) -> Iterator[object]:
    """Yield the exporters behind the span processors of an SDK `TracerProvider`."""
    pending, seen = [getattr(provider, "_active_span_processor", None)], set[int]()
    while pending:
        processor = pending.pop()
        if id(processor) in seen:
            continue
        seen.add(id(processor))
        pending.extend(getattr(processor, "_span_processors", ()))
        for owner in (processor, getattr(processor, "_batch_processor", None)):
            for name in ("span_exporter", "_exporter"):
                if (exporter := getattr(owner, name, None)) is not None:
                    yield exporter


def uses_tls(exporter: object) -> bool:
    """Return True if an exporter of the SDK encrypts; up to 1.39 only its credentials show it."""
    insecure = getattr(exporter, "_insecure", None)
    return not insecure if insecure is not None else getattr(exporter, "_credentials", None) is not None


def _credentials(transport: Transport, pems: Pems) -> grpc.ChannelCredentials:
    if transport.credential_provider:
        try:
            return _load_provider_credentials(transport.credential_provider)
        except Exception as error:
            logger.warning(
                "OTEL_PYTHON_EXPORTER_OTLP_GRPC_CREDENTIAL_PROVIDER=%s is not usable: %s; certificate files are used",
                quote_redacted(transport.credential_provider),
                redact(str(error)),
            )
    authority, key, chain = pems
    if (key is None) is not (chain is None):
        message = "%s and %s go together and only one of them can be used; no client certificate is sent"
        logger.warning(message, *transport.certificates.settings[1:])
        key = chain = None
    return grpc.ssl_channel_credentials(authority, key, chain)


def _load_provider_credentials(name: str) -> grpc.ChannelCredentials:
    from importlib.metadata import entry_points  # noqa: PLC0415  # with what it imports, 1.5 MB

    found: list[Any] = list(entry_points(group=_CREDENTIAL_PROVIDER_GROUP, name=name))
    if not found:
        raise LookupError(f"no entry point of that name in the group {_CREDENTIAL_PROVIDER_GROUP}")
    credentials = found[0].load()()
    if not isinstance(credentials, grpc.ChannelCredentials):
        raise TypeError(f"it makes {type(credentials).__name__}, not grpc.ChannelCredentials")
    return credentials


def _read_pem(path: str, setting: str) -> bytes | None:
    if not path:
        return None
    try:
        return _pem(path)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
    consequence = "no client certificate is sent" if "CLIENT" in setting else "the system's certificates are trusted"
    logger.warning("%s=%s cannot be used: %s; %s", setting, quote_redacted(path), reason, consequence)
    return None


def _replaced_pem(path: str, before: bytes | None) -> bytes | None:
    """Return what a file holds now; `before` if that is no certificate or key, as while it is written."""
    with suppress(OSError, ValueError):
        if Path(path).is_file():  # a pipe can be read once
            return _pem(path)
    return before


def _pem(path: str) -> bytes:
    content = Path(path).read_bytes()
    if b"-----BEGIN " not in content:
        raise ValueError("it holds no PEM data")
    return content
