"""Classification of failed exports: the status of the batch, and a message that names the remedy.

Runs on the exporting thread. `classify_error` is pure; `probe` opens up to two connections, for seconds at most.
"""

from __future__ import annotations

import re
import socket
import ssl
from enum import Enum

import grpc
from google.rpc.error_details_pb2 import RetryInfo

from splunk_profiler.config.otlp_transport import LOGS_HEADERS_SETTING, Transport
from splunk_profiler.config.parsers import Endpoint
from splunk_profiler.export.deadline_stream import DeadlineStream
from splunk_profiler.samples import ExportResult, ExportStatus
from splunk_profiler.system import clocks

_CODE = grpc.StatusCode
_RETRIED_CODES = {
    _CODE.ABORTED,
    _CODE.CANCELLED,
    _CODE.DATA_LOSS,
    _CODE.DEADLINE_EXCEEDED,
    _CODE.OUT_OF_RANGE,
    _CODE.PERMISSION_DENIED,  # a token may be corrected or renewed
    _CODE.RESOURCE_EXHAUSTED,
    _CODE.UNAUTHENTICATED,
    _CODE.UNAVAILABLE,
}
# Messages of collectors, and gRPC's for a proxy that answers 413, as nginx does above 1 MiB.
_TOO_LARGE_PATTERN = re.compile(
    r"larger than|too large|too big|message exceeds (the )?max|max.?message.?size|smaller batch"
    r"|http2 header with status: 413",
    re.I,
)
_TOO_LARGE_ANSWER = "CLIENT: Received message larger"  # gRPC's error for an answer: the records may have been taken
_TOO_LARGE_CODES = (_CODE.RESOURCE_EXHAUSTED, _CODE.OUT_OF_RANGE, _CODE.INVALID_ARGUMENT, _CODE.UNKNOWN)
_CERTIFICATE_FAULTS = {  # patterns of gRPC's messages, the first that fits
    "ALERT_.*(CERTIFICATE|UNKNOWN_CA)": "{url} does not take the client certificate ({details}); look at {key} and"
    " {chain}",
    "has expired": "a certificate of {url} has expired ({details}); renew it there, or that in the file of {authority}",
    "not yet valid": "a certificate of {url} is not valid yet ({details}); compare the clocks of both machines",
    "Hostname Verification|peer .*name": "the certificate of {url} is for another name ({details}); set {setting} to a"
    " name that it has",
    "certificate": "the certificate of {url} is not trusted ({details}); set {authority} to the file of its authority",
    "security handshaker": "the certificates for {url} cannot be used ({details}); look at {authority}, {key} and"
    " {chain}",
    "Socket closed|handshake": "{url} broke off ({details}); if it wants a client certificate, set {key} and {chain} to"
    " one that it trusts and that has not expired",
}
# gRPC's own messages; any other one is the answer of a server.
_LOST_PATTERN = re.compile(
    "failed to connect|errors resolving|DNS resolution|Socket closed|reset by peer|Broken pipe|GOAWAY|RST_STREAM"
    "|Connection timed out|ping timeout|keepalive watchdog",
    re.I,
)
_RETRY_INFO_KEY = "google.rpc.retryinfo-bin"

_HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"  # with an empty SETTINGS frame
_PROBE_TIMEOUT_S = 1.0  # of each connection


class ServerProtocol(Enum):
    """A protocol that a server speaks."""

    HTTP2 = "HTTP/2 without TLS"
    TLS = "TLS"
    HTTP1 = "HTTP/1"
    UNKNOWN = "nothing known"


def should_probe(code: grpc.StatusCode, details: str) -> bool:
    """Return True if the server was reached but not understood, so that `probe` helps."""
    unreachable_words = ("Connection refused", "resol", "unreachable", "No route", "timed out", "CERTIFICATE_VERIFY")
    is_lost = code is _CODE.UNAVAILABLE and _LOST_PATTERN.search(details) is not None
    return is_lost and not any(word in details for word in unreachable_words)


def probe(endpoint: Endpoint) -> ServerProtocol:
    """Detect the protocol of the server at `endpoint`, first without TLS. Never raises."""
    try:
        with _connect(endpoint) as connection:
            stream = DeadlineStream(connection, clocks.monotonic() + _PROBE_TIMEOUT_S)
            stream.sendall(_HTTP2_PREFACE)
            head = stream.makefile("rb").read(9)
    except OSError:
        head = b""
    found = _detect_protocol(head)
    # Some TLS servers do not answer plaintext at all: only a handshake shows them.
    if found is ServerProtocol.UNKNOWN and not endpoint.is_secure and _accepts_tls(endpoint):
        return ServerProtocol.TLS
    return found


def _connect(endpoint: Endpoint) -> socket.socket:
    if not endpoint.path:
        return socket.create_connection(endpoint.address, timeout=_PROBE_TIMEOUT_S)
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.settimeout(_PROBE_TIMEOUT_S)
        sock.connect(endpoint.path)
    except BaseException:
        sock.close()
        raise
    return sock


def _detect_protocol(head: bytes) -> ServerProtocol:
    if head.startswith((b"HTTP/1", b"<")):  # some answer with a page alone
        return ServerProtocol.HTTP1
    if len(head) >= 3 and head[0] in (0x15, 0x16) and head[1] == 3:  # a TLS alert or handshake record
        return ServerProtocol.TLS
    # The first frame of an HTTP/2 server is SETTINGS (type 4) on stream 0.
    return ServerProtocol.HTTP2 if len(head) == 9 and head[3] == 4 and head[5:] == bytes(4) else ServerProtocol.UNKNOWN


def _accepts_tls(endpoint: Endpoint) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # the probe sends no data, so it trusts any certificate
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        with _connect(endpoint) as connection, context.wrap_socket(connection):
            return True
    except OSError:  # SSLError among them
        return False


def classify_error(
    error: grpc.RpcError, endpoint: Endpoint, transport: Transport, protocol: ServerProtocol, proxy: str = ""
) -> ExportResult:
    """Return the result of a failed call.

    `protocol` is that of `probe`, or UNKNOWN; `proxy` says that one is in between, if so.
    """
    code, details = error.code(), error.details() or ""
    is_answered = _TOO_LARGE_ANSWER in details
    if not is_answered and code in _TOO_LARGE_CODES and _TOO_LARGE_PATTERN.search(details):
        remedy = "raise the limit there or of a proxy in between; SPLUNK_PROFILER_MAX_STACK_DEPTH bounds it"
        text = f"a record is larger than {endpoint.url} accepts ({details}); {remedy}"
        return ExportResult(ExportStatus.TOO_LARGE, text)
    export_status = ExportStatus.RETRY if code in _RETRIED_CODES and not is_answered else ExportStatus.REJECTED
    text = _explain(code, details, endpoint, transport, protocol)
    if proxy and code is _CODE.UNAVAILABLE:
        text += f"; {proxy}"
    return ExportResult(export_status, text, _retry_after_ns(error))


def _explain(
    code: grpc.StatusCode, details: str, endpoint: Endpoint, transport: Transport, protocol: ServerProtocol
) -> str:
    url = endpoint.url
    setting = "SPLUNK_PROFILER_LOGS_ENDPOINT" if endpoint.setting in ("", "default") else endpoint.setting
    if code is _CODE.UNAVAILABLE:
        if not _LOST_PATTERN.search(details):
            return f"{url} answers, but takes no records now ({details})"
        if found := _explain_protocol(endpoint, protocol, setting):
            return found
        if endpoint.is_secure and (found := _explain_certificate(details, endpoint, transport, setting)):
            return found
        return f"no collector can be reached at {url} ({details}); start one there or set {setting}"
    hints = {
        _CODE.DEADLINE_EXCEEDED: f"no answer within {transport.timeout_s:g} s (OTEL_EXPORTER_OTLP_TIMEOUT)",
        _CODE.UNAUTHENTICATED: f"a token belongs in {_headers_variable(endpoint)}",
        _CODE.PERMISSION_DENIED: f"a token belongs in {_headers_variable(endpoint)}",
        _CODE.UNIMPLEMENTED: "it takes no logs over OTLP/gRPC; the collector needs a logs pipeline with an otlp"
        f" receiver (port 4317; 4318 is OTLP over HTTP), or {setting} names the wrong server",
    }
    hint = f"; {hints[code]}" if code in hints else ""
    return f"{url} answered {code.name} ({details}){hint}"


def _headers_variable(endpoint: Endpoint) -> str:
    general = endpoint.setting in ("", "default", "OTEL_EXPORTER_OTLP_ENDPOINT")
    return "OTEL_EXPORTER_OTLP_HEADERS" if general else LOGS_HEADERS_SETTING


def _explain_protocol(endpoint: Endpoint, protocol: ServerProtocol, setting: str) -> str:
    url, target = endpoint.url, endpoint.authority or endpoint.target
    if protocol is ServerProtocol.HTTP1:
        # The general setting may be right for the application's own signals, over HTTP.
        remedy = "set SPLUNK_PROFILER_LOGS_ENDPOINT to the OTLP/gRPC port of the collector (4317 by default)"
        return f"{url} speaks HTTP/1, not gRPC; {remedy}"
    if endpoint.is_secure and protocol is ServerProtocol.HTTP2:
        remedy = f"set {setting}=http://{target}" if endpoint.authority else "unset OTEL_EXPORTER_OTLP_INSECURE"
        return f"the collector at {target} speaks gRPC without TLS, but the endpoint {url} asks for TLS; {remedy}"
    if not endpoint.is_secure and protocol is ServerProtocol.TLS:
        remedy = f"set {setting}=https://{target}" if endpoint.authority else "set OTEL_EXPORTER_OTLP_INSECURE=false"
        return f"the collector at {target} expects TLS, but the endpoint {url} asks for a connection without; {remedy}"
    return ""


def _explain_certificate(details: str, endpoint: Endpoint, transport: Transport, setting: str) -> str:
    authority, key, chain = transport.certificates.settings
    names = {"url": endpoint.url, "setting": setting, "authority": authority, "key": key, "chain": chain}
    texts = (text for words, text in _CERTIFICATE_FAULTS.items() if re.search(words, details, re.I))
    return next(texts, "").format(details=details, **names)


def _retry_after_ns(error: grpc.RpcError) -> int | None:
    for key, value in error.trailing_metadata() or ():
        if key == _RETRY_INFO_KEY:
            try:
                delay = RetryInfo.FromString(value).retry_delay
            except ValueError:  # DecodeError: the receiver sent a malformed value
                return None
            return int(delay.seconds) * 1_000_000_000 + int(delay.nanos)
    return None
