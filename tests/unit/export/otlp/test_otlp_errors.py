"""Detection of a server's protocol by its first bytes, and results of failed calls."""

from __future__ import annotations

import contextlib
import socket
import threading

import grpc
import pytest

from splunk_profiler.config.otlp_transport import Transport, explain_proxy
from splunk_profiler.config.parsers import Endpoint
from splunk_profiler.export.otlp.errors import ServerProtocol, classify_error, probe
from splunk_profiler.samples import ExportStatus


class Server:
    """A server that sends `answer` on each connection, one after the other."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            with connection:
                if connection.recv(1) == b"!":
                    return
                with contextlib.suppress(OSError):  # the client may close early
                    connection.sendall(self._answer)
                    connection.shutdown(socket.SHUT_WR)
                    while connection.recv(65536):
                        pass

    def stop(self) -> None:
        with socket.create_connection(("127.0.0.1", self.port)) as connection:
            connection.sendall(b"!")
        self._thread.join()
        self._listener.close()


SETTINGS = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])


@pytest.mark.parametrize(
    ("answer", "speaks"),
    [
        (SETTINGS, ServerProtocol.HTTP2),
        (bytes([0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 100]), ServerProtocol.HTTP2),
        (b"\x15\x03\x03\x00\x02\x02\x46", ServerProtocol.TLS),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", ServerProtocol.HTTP1),
        (b"<!DOCTYPE HTML>\n<html>", ServerProtocol.HTTP1),
        (b"SSH-2.0-OpenSSH_9.9\r\n", ServerProtocol.UNKNOWN),
        (SETTINGS[:5], ServerProtocol.UNKNOWN),
        (b"", ServerProtocol.UNKNOWN),
    ],
)
@pytest.mark.parametrize("secure", [True, False])
def test_a_server_is_known_by_its_first_bytes(answer: bytes, speaks: ServerProtocol, secure: bool) -> None:
    server = Server(answer)
    found = probe(Endpoint("", f"127.0.0.1:{server.port}", secure, ""))
    server.stop()
    assert found is speaks


class Refusal(grpc.RpcError):  # type: ignore[misc]  # gRPC has no types
    """An error of gRPC."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__()
        self._code, self._details = code, details

    def code(self) -> grpc.StatusCode:
        """Return the status."""
        return self._code

    def details(self) -> str:
        """Return the text of the receiver or of gRPC."""
        return self._details

    def trailing_metadata(self) -> None:
        """Return None."""


@pytest.mark.parametrize(
    ("code", "details"),
    [
        ("RESOURCE_EXHAUSTED", "grpc: received message larger than max (5242880 vs. 4194304)"),
        ("RESOURCE_EXHAUSTED", "SERVER: Received message larger than max (5242880 vs. 4194304)"),
        ("RESOURCE_EXHAUSTED", "CLIENT: Sent message larger than max (5242880 vs. 4194304)"),
        ("RESOURCE_EXHAUSTED", "the request has 2097152 bytes, 1048576 are allowed; send smaller batches"),
        ("RESOURCE_EXHAUSTED", "gRPC message exceeds maximum size 4194304: 5242880"),  # grpc-java
        ("RESOURCE_EXHAUSTED", "Received message exceeds the maximum configured message size."),  # grpc-dotnet
        ("OUT_OF_RANGE", "Error, decoded message length too large: found 5242880 bytes, the limit is: 4194304 bytes"),
        ("UNKNOWN", "Received http2 header with status: 413"),
    ],
)
def test_too_large_request_is_worth_a_try_in_smaller_parts(code: str, details: str) -> None:
    endpoint = Endpoint("http://h:1", "h:1", False, "")
    found = classify_error(Refusal(grpc.StatusCode[code], details), endpoint, Transport(), ServerProtocol.UNKNOWN)
    assert found.export_status is ExportStatus.TOO_LARGE
    assert details in found.detail


def test_request_with_a_too_large_answer_is_sent_no_more() -> None:
    endpoint = Endpoint("http://h:1", "h:1", False, "")
    answered = "Stream removed (CLIENT: Received message larger than max (5242880 vs. 4194304))"  # gRPC's own error
    refused = Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, answered)
    found = classify_error(refused, endpoint, Transport(), ServerProtocol.UNKNOWN)
    assert found.export_status is ExportStatus.REJECTED
    assert answered in found.detail


@pytest.mark.parametrize("details", ["memory usage is above the limit", "too many requests"])
def test_receiver_without_room_is_retried_and_not_sent_smaller_parts(details: str) -> None:
    endpoint = Endpoint("http://h:1", "h:1", False, "")
    refused = Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, details)
    assert classify_error(refused, endpoint, Transport(), ServerProtocol.UNKNOWN).export_status is ExportStatus.RETRY


def test_http_server_of_the_application_is_left_to_its_own_setting() -> None:
    endpoint = Endpoint("http://h:4318", "h:4318", False, "OTEL_EXPORTER_OTLP_ENDPOINT")
    unavailable = Refusal(grpc.StatusCode.UNAVAILABLE, "Socket closed")
    found = classify_error(unavailable, endpoint, Transport(), ServerProtocol.HTTP1)
    assert "set SPLUNK_PROFILER_LOGS_ENDPOINT to the OTLP/gRPC port" in found.detail
    assert "OTEL_EXPORTER_OTLP_ENDPOINT" not in found.detail


@pytest.mark.parametrize(
    ("variables", "found"),
    [
        ({"http_proxy": "http://p:1"}, "http_proxy"),
        ({"http_proxy": "http://p:1", "grpc_proxy": "http://q:1"}, "grpc_proxy"),
        ({"http_proxy": "http://p:1", "no_proxy": "other, collector.Example"}, ""),
        ({"http_proxy": "http://p:1", "no_proxy": "other,"}, "http_proxy"),
        ({"http_proxy": " "}, ""),
        ({"http_proxy": "http://p:1", "grpc_proxy": ""}, ""),
        ({"http_proxy": "http://p:1", "no_proxy": "10.0.0.0/8"}, "http_proxy"),
        ({}, ""),
    ],
)
def test_proxy_between_is_named_where_no_collector_is_reached(variables: dict[str, str], found: str) -> None:
    endpoint = Endpoint("http://collector.example:4317", "collector.example:4317", False, "")
    proxy = explain_proxy(endpoint, variables)
    assert proxy.partition(" ")[0] == found
    refused = "failed to connect to all addresses; last error: UNKNOWN: h:1: HTTP proxy returned response code 403"
    unavailable = Refusal(grpc.StatusCode.UNAVAILABLE, refused)
    detail = classify_error(unavailable, endpoint, Transport(), ServerProtocol.UNKNOWN, proxy).detail
    assert detail.endswith("so gRPC goes through that proxy unless no_proxy names the collector") is bool(found)
    node = Endpoint("http://10.1.2.3:4317", "10.1.2.3:4317", False, "")
    assert not explain_proxy(node, {**variables, "no_proxy": "10.0.0.0/8"})
    assert not explain_proxy(Endpoint("unix:/s", "unix:/s", False, ""), variables)


@pytest.mark.parametrize(
    ("found", "advice"),
    [
        ("CERTIFICATE_VERIFY_FAILED: certificate has expired: OK", "renew it there"),
        ("CERTIFICATE_VERIFY_FAILED: certificate is not yet valid: OK", "compare the clocks"),
        ("UNAUTHENTICATED: Hostname Verification Check failed.", "set SPLUNK_PROFILER_LOGS_ENDPOINT to a name"),
        ("Peer name h is not in peer certificate", "set SPLUNK_PROFILER_LOGS_ENDPOINT to a name"),  # of gRPC 1.63
        ("CERTIFICATE_VERIFY_FAILED: self signed certificate: OK", "set OTEL_EXPORTER_OTLP_CERTIFICATE to the file"),
        (
            "SSL_ERROR_SSL: error:1: OPENSSL_internal:SSLV3_ALERT_CERTIFICATE_EXPIRED",
            "look at OTEL_EXPORTER_OTLP_CLIENT_KEY",
        ),
        ("SSL_ERROR_SSL: error:1: OPENSSL_internal:TLSV1_ALERT_UNKNOWN_CA", "look at OTEL_EXPORTER_OTLP_CLIENT_KEY"),
        ("Socket closed", "set OTEL_EXPORTER_OTLP_CLIENT_KEY and OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE to one"),
    ],
)
def test_advice_about_a_certificate_fits_what_is_wrong_with_it(found: str, advice: str) -> None:
    endpoint = Endpoint("https://h:4317", "h:4317", True, "")
    details = f"failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:4317: {found}"
    unavailable = Refusal(grpc.StatusCode.UNAVAILABLE, details)
    assert advice in classify_error(unavailable, endpoint, Transport(), ServerProtocol.TLS).detail


def test_server_that_drops_each_request_is_perhaps_no_collector() -> None:
    endpoint = Endpoint("http://h:4317", "h:4317", False, "")
    dropped = Refusal(grpc.StatusCode.UNAVAILABLE, "Stream removed (Socket closed)")
    assert "start one there or set" in classify_error(dropped, endpoint, Transport(), ServerProtocol.HTTP2).detail


def test_a_port_without_a_server_speaks_nothing_known() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        assert probe(Endpoint("", f"127.0.0.1:{unused.getsockname()[1]}", False, "")) is ServerProtocol.UNKNOWN
