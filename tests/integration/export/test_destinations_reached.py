"""A service whose destination is mistyped sends nothing anywhere; agents at all kinds of addresses are reached."""

from __future__ import annotations

import socket
import ssl
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import pytest
from answering_server import AnsweringServer, http_response
from certificates import CertificateFiles
from datadog_form import read_form
from exporter_processes import find_exporters
from target_process import Target

ON = {
    "SPLUNK_PROFILER_ENABLED": "true",
    "SPLUNK_PROFILER_CALL_STACK_INTERVAL": "10",
    "SPLUNK_PROFILER_EXPORT_INTERVAL": "100",
    "SPLUNK_PROFILER_MAX_OVERHEAD": "off",
}
_SERVICE = """
import logging, threading
logging.basicConfig(level=logging.INFO)
import splunk_profiler
print("started", splunk_profiler.start(), flush=True)
print("threads", *sorted(thread.name for thread in threading.enumerate()), flush=True)
input()
splunk_profiler.stop(30)  # an exit waits for the last records for a second and a half, which a busy machine may need
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> CertificateFiles:
    return CertificateFiles(tmp_path_factory.mktemp("certificates"))


class Decoy:
    """Listens, and says in the end whether anybody came."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]

    def was_visited(self) -> bool:
        with suppress(BlockingIOError):
            self._listener.accept()[0].close()
            return True
        return False

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def decoy() -> Iterator[Decoy]:
    found = Decoy()
    yield found
    found.close()


@pytest.mark.parametrize(
    ("name", "value", "wrong"),
    [
        ("SPLUNK_PROFILER_OUTPUT", "datadog:htps://agent:8126", "does not begin with http://"),
        ("SPLUNK_PROFILER_OUTPUT", "flie:/var/profiles", "it is no destination"),
        ("SPLUNK_PROFILER_OUTPUT", "file:profiles", "not an absolute path"),
        ("SPLUNK_PROFILER_LOGS_ENDPOINT", "grpc://127.0.0.1:4317", "its scheme is not known"),
    ],
)
def test_a_service_with_a_mistyped_destination_sends_nothing_and_says_so(
    name: str, value: str, wrong: str, decoy: Decoy
) -> None:
    env = {**ON, "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{decoy.port}", name: value}
    with Target(sys.executable, "-c", _SERVICE, env=env) as target:
        threads = target.line("threads")
        exporters = find_exporters(target.pid)
        target.tell("")
        assert target.finish() == 0, target.output
        said = target.final_output()
    assert not any(word in threads for word in ("sampler", "exporter", "ticker"))
    (line,) = (line for line in said.splitlines() if "is not usable" in line)
    assert f"{name}={value!r} is not usable: {wrong}" in line or f"{name}={value!r} is not usable: the" in line
    assert "(allowed: " in line
    assert "no samples are taken" in line
    assert not exporters  # nor is there a thread that could send anything, wherever to
    assert not decoy.was_visited()


def test_service_that_only_samples_does_not_start_with_a_bad_destination() -> None:
    off = {"SPLUNK_PROFILER_CUSTOM_LABELS_ENABLED": "false"}
    off["ELASTIC_OTEL_UNIVERSAL_PROFILING_INTEGRATION_ENABLED"] = "false"
    with Target(sys.executable, "-c", _SERVICE, env={**ON, **off, "SPLUNK_PROFILER_OUTPUT": "stdout"}) as target:
        assert target.line("started") == "False"
        assert target.line("threads") == "MainThread"
        target.tell("")
        assert target.finish() == 0, target.output


def deliver(server: AnsweringServer, url: str, service: str = _SERVICE, **more: str) -> None:
    """Profile a service until two profiles have come."""
    env = {**ON, "SPLUNK_PROFILER_OUTPUT": f"datadog:{url}", "OTEL_SERVICE_NAME": "shop", **more}
    with Target(sys.executable, "-c", service, env=env) as target:
        target.line("started")
        server.wait(2)
        target.tell("")
        assert target.finish() == 0, target.output
        assert "profiling records" not in target.final_output()
    head, _, body = server.requests[0].partition(b"\r\n\r\n")
    content_type = head.decode("ascii").partition("Content-Type: ")[2].partition("\r\n")[0]
    assert read_form(content_type, body).tags["service"] == "shop"


def tls(cert: Path, key: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    return context


def test_an_agent_at_a_unix_socket_gets_profiles(tmp_path: Path) -> None:
    with AnsweringServer(http_response(200), path=tmp_path / "apm.socket") as server:
        deliver(server, f"unix://{tmp_path}/apm.socket")
    assert b"\r\nHost: localhost\r\n" in server.requests[0]


def test_an_agent_behind_tls_gets_profiles(files: CertificateFiles) -> None:
    with AnsweringServer(http_response(200), tls=tls(files.cert, files.key)) as server:
        deliver(server, f"https://localhost:{server.port}", SSL_CERT_FILE=str(files.authority))


@pytest.mark.skipif(find_spec("gevent") is None, reason="gevent is not installed")
def test_where_sockets_are_geventss_an_agent_behind_tls_gets_profiles(files: CertificateFiles) -> None:
    greenlets = f"from gevent import monkey\nmonkey.patch_all()\nimport gevent{_SERVICE}"
    with AnsweringServer(http_response(200), tls=tls(files.cert, files.key)) as server:
        deliver(server, f"https://localhost:{server.port}", greenlets, SSL_CERT_FILE=str(files.authority))
