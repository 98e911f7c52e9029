"""Posting to a Datadog agent: the results of its responses, deadlines and interrupts."""

from __future__ import annotations

import itertools
import os
import socket
import ssl
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from http.client import HTTPConnection
from pathlib import Path

import pytest
from answering_server import AnsweringServer, http_response
from certificates import CertificateFiles
from datadog_form import read_form
from opentelemetry.sdk.resources import Resource
from profile_factory import small_profile

from splunk_profiler.config.parsers import DatadogAgent
from splunk_profiler.export.datadog.exporter import DatadogSink
from splunk_profiler.export.datadog.multipart import Form, ProfileFormEncoder
from splunk_profiler.samples import Batch, ExportResult, ExportStatus, Profile
from splunk_profiler.system.threads import Worker

BATCH = Batch((small_profile(),))
TAKEN = http_response(200)


def sink_of(
    port: int, *, host: str = "127.0.0.1", timeout_s: float = 60, form: Callable[[Profile], Form] | None = None
) -> DatadogSink:
    forms = ProfileFormEncoder(lambda: Resource({"service.name": "shop"}))
    return DatadogSink(DatadogAgent(f"http://{host}:{port}", host, port), form or forms.form, timeout_s)


def unused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


def answered(*answers: bytes) -> ExportResult:
    with AnsweringServer(*answers) as server:
        return sink_of(server.port).export(BATCH)


class ExportingProcess:
    """An export on a `Worker`, like the batch exporter's."""

    def __init__(self, sink: DatadogSink) -> None:
        self._outcomes: list[ExportResult] = []
        self._worker = Worker("exporter", lambda: self._outcomes.append(sink.export(BATCH)))
        self._worker.start()

    def outcome(self) -> ExportResult:
        """Wait for the end of the export and return its result."""
        assert self._worker.join(60)
        return self._outcomes[0]


def test_a_profile_is_posted_whole_to_the_intake() -> None:
    with AnsweringServer(TAKEN) as server:
        sink = sink_of(server.port, host="localhost")
        assert [sink.export(BATCH) for _ in range(2)] == [ExportResult(ExportStatus.DELIVERED)] * 2
    for request in server.requests:
        head, _, body = request.partition(b"\r\n\r\n")
        first, *lines = head.decode("ascii").split("\r\n")
        fields = dict(line.split(": ", 1) for line in lines)
        assert first == "POST /profiling/v1/input HTTP/1.1"
        assert (fields["Host"], fields["Connection"]) == (f"localhost:{server.port}", "close")
        assert fields["DD-EVP-ORIGIN"] == "splunk-profiler"
        assert read_form(fields["Content-Type"], body).tags["service"] == "shop"


def test_nothing_is_printed_where_the_application_debugs_its_own_requests(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(HTTPConnection, "debuglevel", 1)
    assert answered(TAKEN).export_status is ExportStatus.DELIVERED
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("status", [200, 202, 204])
def test_every_kind_of_success_is_a_delivery(status: int) -> None:
    assert answered(http_response(status)).export_status is ExportStatus.DELIVERED


@pytest.mark.parametrize(
    ("status", "export_status", "hint"),
    [
        (400, ExportStatus.REJECTED, "answered 400 (why not)"),
        (302, ExportStatus.REJECTED, "do not follow where it leads to"),
        (404, ExportStatus.REJECTED, "it takes no profiles"),
        (405, ExportStatus.REJECTED, "it takes no profiles"),
        (413, ExportStatus.TOO_LARGE, "SPLUNK_PROFILER_MAX_STACK_DEPTH"),
        (403, ExportStatus.RETRY, "the key that the agent is configured with"),
        (429, ExportStatus.RETRY, "answered 429"),
        (500, ExportStatus.RETRY, "answered 500"),
        (503, ExportStatus.RETRY, "answered 503"),
    ],
)
def test_an_answer_says_whether_the_profile_is_worth_another_try(
    status: int, export_status: ExportStatus, hint: str
) -> None:
    outcome = answered(http_response(status, "why\nnot"))
    assert (outcome.export_status, outcome.retry_after_ns) == (export_status, None)
    assert hint in outcome.detail
    assert "\n" not in outcome.detail


def test_the_agents_own_wish_for_a_pause_is_passed_on() -> None:
    assert answered(http_response(429, "", "Retry-After: 7")).retry_after_ns == 7_000_000_000
    assert answered(http_response(429, "", "Retry-After: Sat, 21 Nov 2026 14:00:00 GMT")).retry_after_ns is None


def test_an_agent_that_is_not_there_is_named_with_the_setting() -> None:
    port = unused_port()
    outcome = sink_of(port, host="localhost").export(BATCH)
    assert outcome.export_status is ExportStatus.RETRY
    assert f"no Datadog agent can be reached at http://localhost:{port} (Connection refused)" in outcome.detail
    assert "SPLUNK_PROFILER_OUTPUT" in outcome.detail


class WatchedForm(Form):
    """A form that weak references can refer to."""


@pytest.mark.usefixtures("no_collections")
def test_form_that_no_agent_has_taken_ends_without_a_collection() -> None:
    forms: list[weakref.ref[Form]] = []

    def form(_profile: Profile) -> Form:
        made = WatchedForm((), b"")
        forms.append(weakref.ref(made))
        return made

    assert sink_of(unused_port(), form=form).export(BATCH).export_status is ExportStatus.RETRY
    assert [made() for made in forms] == [None]


def test_a_host_without_an_address_is_named() -> None:
    for host in ("agent.invalid", "a" * 70 + ".invalid"):  # the second label is too long for a look-up
        outcome = sink_of(8126, host=host).export(BATCH)
        assert outcome.export_status is ExportStatus.RETRY
        assert f"no Datadog agent can be reached at http://{host}:8126" in outcome.detail


def test_an_agent_that_comes_back_elsewhere_is_found() -> None:
    with AnsweringServer(TAKEN) as server:
        sink = sink_of(server.port)
        assert sink.export(BATCH).export_status is ExportStatus.DELIVERED
    assert sink.export(BATCH).export_status is ExportStatus.RETRY
    with socket.create_server(("127.0.0.1", server.port)) as listener:
        exporting = ExportingProcess(sink)
        connection, _ = listener.accept()
        with connection:
            connection.sendall(TAKEN)
            assert exporting.outcome().export_status is ExportStatus.DELIVERED


def test_an_answer_that_is_not_http_is_reported_as_such() -> None:
    outcome = answered(b"\x00\x00\x12\x04\x00\x00\x00\x00\x00 an HTTP/2 server's settings\r\n\r\n")
    assert outcome.export_status is ExportStatus.RETRY
    assert "does not speak HTTP" in outcome.detail


def test_an_agent_that_breaks_off_is_asked_again() -> None:
    assert answered(b"").export_status is ExportStatus.RETRY
    assert answered(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf").export_status is ExportStatus.DELIVERED


@pytest.mark.parametrize(
    "rest",
    [b"Transfer-Encoding: chunked\r\n\r\n5\r\nhal", b"Transfer-Encoding: chunked\r\n\r\nno number\r\n"],
)
def test_accepted_profile_is_not_sent_again_if_the_answer_is_broken(rest: bytes) -> None:
    assert answered(b"HTTP/1.1 202 Accepted\r\n" + rest) == ExportResult(ExportStatus.DELIVERED)


def test_nor_because_the_rest_of_the_answer_does_not_come() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        exporting = ExportingProcess(sink_of(listener.getsockname()[1], timeout_s=0.5))
        connection, _ = listener.accept()
        with connection:
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n")
            assert exporting.outcome().export_status is ExportStatus.DELIVERED


def test_the_refusal_of_an_agent_that_does_not_read_on_is_heard() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        large = Form((("Content-Type", "text/plain"),), bytes(32 << 20))
        exporting = ExportingProcess(sink_of(listener.getsockname()[1], form=lambda _: large))
        connection, _ = listener.accept()
        with connection:
            connection.sendall(http_response(413))
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(1 << 20):  # like a lingering server: the answer arrives before the reset
                pass
            assert exporting.outcome().export_status is ExportStatus.TOO_LARGE


def test_silent_agent_holds_an_export_no_longer_than_the_timeout() -> None:
    with AnsweringServer(None) as server:
        outcome = sink_of(server.port, timeout_s=0.2).export(BATCH)
    assert outcome.export_status is ExportStatus.RETRY
    assert "has not answered in time" in outcome.detail


def test_an_agent_that_says_a_little_at_a_time_does_not_either() -> None:
    over = threading.Event()

    def drip(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            for byte in itertools.chain(b"HTTP/1.1 200 OK\r\nX: ", itertools.repeat(ord("x"))):
                try:
                    connection.sendall(bytes([byte]))
                except OSError:
                    return
                if over.wait(0.02):
                    return

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=drip, args=(listener,))
        thread.start()
        outcome = sink_of(listener.getsockname()[1], timeout_s=0.3).export(BATCH)
        over.set()
        thread.join()
    assert "has not answered in time" in outcome.detail


@pytest.mark.parametrize("end", [DatadogSink.interrupt, DatadogSink.shutdown])
def test_an_export_that_waits_for_an_answer_is_ended_at_once(end: Callable[[DatadogSink], None]) -> None:
    with AnsweringServer(None) as server:
        sink = sink_of(server.port)
        exporting = ExportingProcess(sink)
        server.wait(1)
        end(sink)
        outcome = exporting.outcome()
    assert outcome.export_status is ExportStatus.RETRY
    assert "had to be ended" in outcome.detail


def is_connecting(port: int) -> bool:
    """Return True if a connection of this machine to `port` waits for its answer."""
    lines = Path("/proc/self/net/tcp").read_text("ascii").splitlines()[1:]
    return any(line.split()[2].endswith(f":{port:04X}") and line.split()[3] == "02" for line in lines)


def test_an_export_that_waits_for_a_connection_is_ended_at_once() -> None:
    with ExitStack() as opened:
        listener = opened.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        port = listener.getsockname()[1]
        opened.enter_context(socket.create_connection(("127.0.0.1", port)))  # fills the queue
        sink = sink_of(port)
        exporting = ExportingProcess(sink)
        deadline = time.monotonic() + 60
        while not is_connecting(port):
            assert time.monotonic() < deadline
            os.sched_yield()
        sink.interrupt()
        assert "had to be ended" in exporting.outcome().detail


def test_an_interrupt_while_a_profile_is_encoded_keeps_it_from_being_sent() -> None:
    sinks: list[DatadogSink] = []

    def form(_profile: Profile) -> Form:
        sinks[0].interrupt()
        return Form((), b"")

    with AnsweringServer(TAKEN) as server:
        sinks.append(sink_of(server.port, form=form))
        assert sinks[0].export(BATCH).export_status is ExportStatus.RETRY
    assert server.requests == []


def test_interrupt_ends_only_the_export_in_flight_and_shutdown_ends_all() -> None:
    with AnsweringServer(TAKEN) as server:
        sink = sink_of(server.port)
        sink.interrupt()
        assert sink.export(BATCH).export_status is ExportStatus.DELIVERED
        sink.shutdown()
        sink.shutdown()
        assert sink.export(BATCH).export_status is ExportStatus.RETRY


def test_a_process_that_ends_waits_as_long_as_it_can_spare() -> None:
    with AnsweringServer(None) as server:
        sink = sink_of(server.port)
        sink.set_shutdown_deadline(0.1)
        assert sink.export(BATCH).export_status is ExportStatus.RETRY


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> CertificateFiles:
    return CertificateFiles(tmp_path_factory.mktemp("certificates"))


def with_tls(cert: Path, key: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    return context


def secure_sink(port: int, *, timeout_s: float = 60) -> DatadogSink:
    forms = ProfileFormEncoder(lambda: Resource({"service.name": "shop"}))
    url = f"https://localhost:{port}"
    return DatadogSink(DatadogAgent(url, "localhost", port, is_secure=True), forms.form, timeout_s)


def test_an_agent_behind_tls_is_sent_nothing_before_it_is_trusted(
    files: CertificateFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    with AnsweringServer(TAKEN, tls=with_tls(files.cert, files.key)) as server:
        monkeypatch.setenv("SSL_CERT_FILE", str(files.untrusted_authority))
        outcome = secure_sink(server.port).export(BATCH)
        assert outcome.export_status is ExportStatus.RETRY
        assert (
            f"the certificate of the Datadog agent at https://localhost:{server.port} is not trusted" in outcome.detail
        )
        assert "SSL_CERT_FILE" in outcome.detail
        assert server.requests == []
        monkeypatch.setenv("SSL_CERT_FILE", str(files.authority))
        assert secure_sink(server.port).export(BATCH) == ExportResult(ExportStatus.DELIVERED)
    with AnsweringServer(TAKEN, tls=with_tls(files.wrong_host_cert, files.wrong_host_key)) as server:
        assert "is not trusted" in secure_sink(server.port).export(BATCH).detail


def test_an_agent_without_tls_is_not_taken_for_one_with_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        exporting = ExportingProcess(secure_sink(listener.getsockname()[1]))
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(http_response(400))
            assert "does not speak TLS" in exporting.outcome().detail


@pytest.mark.parametrize("end", [DatadogSink.interrupt, DatadogSink.shutdown])
def test_an_export_over_tls_that_waits_for_an_answer_is_ended_at_once(
    end: Callable[[DatadogSink], None], files: CertificateFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(files.authority))
    with AnsweringServer(None, tls=with_tls(files.cert, files.key)) as server:
        sink = secure_sink(server.port)
        exporting = ExportingProcess(sink)
        server.wait(1)
        end(sink)
        assert "had to be ended" in exporting.outcome().detail


def test_export_in_a_tls_handshake_ends_on_interrupt_or_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sink = secure_sink(listener.getsockname()[1])
        exporting = ExportingProcess(sink)
        connection, _ = listener.accept()
        with connection:
            assert connection.recv(1), "the handshake has begun"
            sink.interrupt()
            assert "had to be ended" in exporting.outcome().detail
        sink = secure_sink(listener.getsockname()[1], timeout_s=0.2)
        assert "has not answered in time" in sink.export(BATCH).detail


def test_an_agent_at_a_unix_socket_is_reached_and_named_where_it_is_not(tmp_path: Path) -> None:
    path = tmp_path / "apm.socket"
    sink = DatadogSink(DatadogAgent(f"unix://{path}", "localhost", 0, path=str(path)), lambda _: Form((), b"x"))
    outcome = sink.export(BATCH)
    assert outcome.export_status is ExportStatus.RETRY
    assert f"no Datadog agent can be reached at unix://{path} (No such file or directory)" in outcome.detail
    with AnsweringServer(TAKEN, path=path) as server:
        assert sink.export(BATCH) == ExportResult(ExportStatus.DELIVERED)
        assert server.requests[0].endswith(b"x")
