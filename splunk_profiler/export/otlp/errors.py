"""Why an export failed, in words that say what to set; and what is to become of its batch.

Runs on the exporting thread. `outcome` is pure; `probe` opens a connection or two, a few seconds at most.
"""

from __future__ import annotations

import re
import socket
import ssl
from enum import Enum

import grpc
from google.rpc.error_details_pb2 import RetryInfo

from splunk_profiler.config.otlp_transport import HEADERS, Transport
from splunk_profiler.config.parsers import Endpoint
from splunk_profiler.model import ExportResult, ExportStatus

_CODE = grpc.StatusCode
_RETRIED = {
    _CODE.ABORTED,
    _CODE.CANCELLED,
    _CODE.DATA_LOSS,
    _CODE.DEADLINE_EXCEEDED,
    _CODE.OUT_OF_RANGE,
    _CODE.PERMISSION_DENIED,  # kept for a while: a token may be corrected or renewed
    _CODE.RESOURCE_EXHAUSTED,
    _CODE.UNAUTHENTICATED,
    _CODE.UNAVAILABLE,
}
# As collectors say it, ours among them; and what gRPC says of a proxy that answers 413, as nginx does from 1 MiB on.
_TOO_LARGE = re.compile(
    r"larger than|too large|too big|max.?message.?size|smaller batch|http2 header with status: 413", re.I
)
_TOO_LARGE_CODES = (_CODE.RESOURCE_EXHAUSTED, _CODE.OUT_OF_RANGE, _CODE.INVALID_ARGUMENT, _CODE.UNKNOWN)
_CERTIFICATE = re.compile(r"CERTIFICATE_VERIFY_FAILED|Hostname Verification|peer .*name|certificate", re.I)
_RETRY_INFO_KEY = "google.rpc.retryinfo-bin"

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])  # with an empty SETTINGS frame
_PROBE_S = 1.0


class Speaks(Enum):
    """What a server understands."""

    HTTP2 = "HTTP/2 without TLS"
    TLS = "TLS"
    HTTP1 = "HTTP/1"
    UNKNOWN = "nothing known"


def worth_probing(code: grpc.StatusCode, details: str) -> bool:
    """Whether the server was reached but not understood, so that `probe` can tell more."""
    unreached = ("refused", "resol", "lookup", "unreachable", "No route", "timed out", "CERTIFICATE_VERIFY")
    return code is _CODE.UNAVAILABLE and not any(word in details for word in unreached)


def probe(endpoint: Endpoint) -> Speaks:
    """Ask the server at `endpoint` what it speaks, first without TLS. Never raises."""
    try:
        with _connected(endpoint) as connection:
            connection.sendall(_PREFACE)
            head = b""
            while len(head) < 9 and (more := connection.recv(9 - len(head))):
                head += more
    except OSError:
        head = b""
    found = _recognised(head)
    # Some TLS servers answer what they do not understand with silence: only a handshake shows them.
    return Speaks.TLS if found is Speaks.UNKNOWN and not endpoint.secure and _shakes_hands(endpoint) else found


def _connected(endpoint: Endpoint) -> socket.socket:
    if not endpoint.path:
        return socket.create_connection(endpoint.address, timeout=_PROBE_S)
    opened = socket.socket(socket.AF_UNIX)
    try:
        opened.settimeout(_PROBE_S)
        opened.connect(endpoint.path)
    except BaseException:
        opened.close()
        raise
    return opened


def _recognised(head: bytes) -> Speaks:
    if head.startswith(b"HTTP/1"):
        return Speaks.HTTP1
    if len(head) >= 3 and head[0] in (0x15, 0x16) and head[1] == 3:  # a TLS alert or handshake record
        return Speaks.TLS
    # The first frame of an HTTP/2 server is SETTINGS (type 4) on stream 0.
    return Speaks.HTTP2 if len(head) == 9 and head[3] == 4 and head[5:] == bytes(4) else Speaks.UNKNOWN


def _shakes_hands(endpoint: Endpoint) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # nothing is sent: whose certificate it is does not matter here
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        with _connected(endpoint) as connection, context.wrap_socket(connection):
            return True
    except OSError:  # SSLError among them
        return False


def outcome(error: grpc.RpcError, endpoint: Endpoint, transport: Transport, speaks: Speaks) -> ExportResult:
    """What a failed call means for its batch; `speaks` is what `probe` found, or UNKNOWN."""
    code, details = error.code(), error.details() or ""
    if code in _TOO_LARGE_CODES and _TOO_LARGE.search(details):
        remedy = "raise the limit there or of a proxy in between; SPLUNK_PROFILER_MAX_STACK_DEPTH bounds it"
        return ExportResult(
            ExportStatus.TOO_LARGE, f"a record is larger than {endpoint.url} accepts ({details}); {remedy}"
        )
    delivery = ExportStatus.RETRY if code in _RETRIED else ExportStatus.REJECTED
    text = _explain(code, details, endpoint, transport, speaks)
    return ExportResult(delivery, text, _retry_after_ns(error))


def _explain(code: grpc.StatusCode, details: str, endpoint: Endpoint, transport: Transport, speaks: Speaks) -> str:
    where = endpoint.url
    setting = "SPLUNK_PROFILER_LOGS_ENDPOINT" if endpoint.setting in ("", "default") else endpoint.setting
    if code is _CODE.UNAVAILABLE:
        if found := _wrong_protocol(endpoint, speaks, setting):
            return found
        if endpoint.secure and (found := _wrong_certificate(details, where, transport)):
            return found
        return f"no collector can be reached at {where} ({details}); start one there or set {setting}"
    hints = {
        _CODE.DEADLINE_EXCEEDED: f"no answer within {transport.timeout_s:g} s (OTEL_EXPORTER_OTLP_TIMEOUT)",
        _CODE.UNAUTHENTICATED: f"a token belongs in {_headers_of(endpoint)}",
        _CODE.PERMISSION_DENIED: f"a token belongs in {_headers_of(endpoint)}",
        _CODE.UNIMPLEMENTED: "it takes no logs over OTLP/gRPC; the collector needs a logs pipeline with an otlp"
        f" receiver (port 4317; 4318 is OTLP over HTTP), or {setting} names the wrong server",
    }
    hint = f"; {hints[code]}" if code in hints else ""
    return f"{where} answered {code.name} ({details}){hint}"


def _headers_of(endpoint: Endpoint) -> str:
    general = endpoint.setting in ("", "default", "OTEL_EXPORTER_OTLP_ENDPOINT")
    return "OTEL_EXPORTER_OTLP_HEADERS" if general else HEADERS


def _wrong_protocol(endpoint: Endpoint, speaks: Speaks, setting: str) -> str:
    where, target = endpoint.url, endpoint.authority or endpoint.target
    without, within = (
        (f"set {setting}=http://{target}", f"set {setting}=https://{target}")
        if endpoint.authority
        else ("unset OTEL_EXPORTER_OTLP_INSECURE", "set OTEL_EXPORTER_OTLP_INSECURE=false")
    )
    if speaks is Speaks.HTTP1:
        return (
            f"{where} speaks HTTP/1, not gRPC; set {setting} to the OTLP/gRPC port of the collector (4317 by default)"
        )
    if endpoint.secure and speaks is Speaks.HTTP2:
        return f"the collector at {target} speaks gRPC without TLS, but the endpoint {where} asks for TLS; {without}"
    if not endpoint.secure and speaks is Speaks.TLS:
        return (
            f"the collector at {target} expects TLS, but the endpoint {where} asks for a connection without; {within}"
        )
    return ""


def _wrong_certificate(details: str, where: str, transport: Transport) -> str:
    authority, key, chain = transport.certificates.settings
    if _CERTIFICATE.search(details):
        return f"the certificate of {where} is not trusted ({details}); set {authority} to the file of its authority"
    if "security handshaker" in details:
        return f"the certificates for {where} cannot be used ({details}); look at {authority}, {key} and {chain}"
    if "Socket closed" in details or "handshake" in details:
        return f"{where} broke off ({details}); if it wants a client certificate, set {key} and {chain}"
    return ""


def _retry_after_ns(error: grpc.RpcError) -> int | None:
    for key, value in error.trailing_metadata() or ():
        if key == _RETRY_INFO_KEY:
            try:
                delay = RetryInfo.FromString(value).retry_delay
            except ValueError:  # protobuf's DecodeError: a receiver's mistake
                return None
            return int(delay.seconds) * 1_000_000_000 + int(delay.nanos)
    return None
