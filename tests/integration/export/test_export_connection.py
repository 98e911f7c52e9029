"""TLS, client certificates, headers, compression, wrong values, and whose connection records travel on."""

from __future__ import annotations

from pathlib import Path

import pytest
from certificates import CertificateFiles
from counting_relay import CountingRelay
from exporting_process import ExportingProcess
from free_ports import find_free_ports
from receiver_process import Receiver

UNDELIVERED = "are not delivered"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> CertificateFiles:
    return CertificateFiles(tmp_path_factory.mktemp("certificates"))


def test_records_travel_over_tls_with_a_private_authority(files: CertificateFiles) -> None:
    with Receiver(cert=files.cert, key=files.key) as receiver:
        settings = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url, "OTEL_EXPORTER_OTLP_CERTIFICATE": str(files.authority)}
        with ExportingProcess(settings) as exporter:
            exporter.ask("record 2")
            assert len(receiver.records(2)) == 2
            assert exporter.profiler_log() == []


def test_a_client_certificate_is_sent_to_a_collector_that_wants_one(files: CertificateFiles) -> None:
    with Receiver(cert=files.cert, key=files.key, client_ca=files.authority) as receiver:
        settings = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url, "OTEL_EXPORTER_OTLP_CERTIFICATE": str(files.authority)}
        with ExportingProcess(settings) as exporter:
            exporter.ask("record 1")
            line = exporter.log(lambda text: UNDELIVERED in text)
            assert "OTEL_EXPORTER_OTLP_CLIENT_KEY" in line
            assert "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE" in line
        settings["OTEL_EXPORTER_OTLP_CLIENT_KEY"] = str(files.client_key)
        settings["OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE"] = str(files.client_cert)
        with ExportingProcess(settings) as exporter:
            exporter.ask("record 2")
            assert len(receiver.records(2)) == 2


def test_the_certificate_for_logs_goes_before_the_general_one(files: CertificateFiles) -> None:
    with Receiver(cert=files.cert, key=files.key) as receiver:
        settings = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url,
            "OTEL_EXPORTER_OTLP_CERTIFICATE": str(files.untrusted_authority),
            "OTEL_EXPORTER_OTLP_LOGS_CERTIFICATE": str(files.authority),
        }
        with ExportingProcess(settings) as exporter:
            exporter.ask("record 2")
            assert len(receiver.records(2)) == 2


def test_certificate_of_another_authority_is_refused_and_the_setting_named(files: CertificateFiles) -> None:
    with Receiver(cert=files.cert, key=files.key) as receiver:
        settings = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url,
            "OTEL_EXPORTER_OTLP_CERTIFICATE": str(files.untrusted_authority),
        }
        with ExportingProcess(settings) as exporter:
            exporter.ask("record 1")
            line = exporter.log(lambda text: UNDELIVERED in text)
            assert "is not trusted" in line
            assert "set OTEL_EXPORTER_OTLP_CERTIFICATE" in line
        assert receiver.exports() == []


def test_a_certificate_for_another_host_is_refused(files: CertificateFiles) -> None:
    with Receiver(cert=files.wrong_host_cert, key=files.wrong_host_key) as receiver:
        settings = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url, "OTEL_EXPORTER_OTLP_CERTIFICATE": str(files.authority)}
        with ExportingProcess(settings) as exporter:
            exporter.ask("record 1")
            assert "certificate" in exporter.log(lambda text: UNDELIVERED in text)
        assert receiver.exports() == []


@pytest.mark.parametrize("content", [None, "no PEM", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"])
def test_an_unusable_certificate_file_is_logged_and_does_no_harm(
    content: str | None, files: CertificateFiles, tmp_path: Path
) -> None:
    path = tmp_path / "authority.pem"
    if content is not None:
        path.write_text(content)
    with Receiver(cert=files.cert, key=files.key) as receiver:
        settings = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url, "OTEL_EXPORTER_OTLP_CERTIFICATE": str(path)}
        with ExportingProcess(settings) as exporter:
            exporter.ask("record 1")
            exporter.log(lambda text: UNDELIVERED in text)
            assert any("OTEL_EXPORTER_OTLP_CERTIFICATE" in line for line in exporter.profiler_log())
        assert receiver.exports() == []


def test_a_plaintext_collector_behind_an_https_endpoint_is_recognised() -> None:
    with Receiver() as receiver:
        wrong = f"https://{receiver.address}"
        with ExportingProcess(OTEL_EXPORTER_OTLP_ENDPOINT=wrong) as exporter:
            exporter.ask("record 1")
            line = exporter.log(lambda text: UNDELIVERED in text)
            assert "speaks gRPC without TLS" in line
            assert f"set OTEL_EXPORTER_OTLP_ENDPOINT=http://{receiver.address}" in line


def test_a_tls_collector_behind_an_http_endpoint_is_recognised(files: CertificateFiles) -> None:
    with Receiver(cert=files.cert, key=files.key) as receiver:
        wrong = f"http://localhost:{receiver.port}"
        with ExportingProcess(SPLUNK_PROFILER_LOGS_ENDPOINT=wrong) as exporter:
            exporter.ask("record 1")
            line = exporter.log(lambda text: UNDELIVERED in text)
            assert "expects TLS" in line
            assert f"set SPLUNK_PROFILER_LOGS_ENDPOINT=https://localhost:{receiver.port}" in line


def test_headers_and_timeout_are_those_of_the_standard_settings() -> None:
    with Receiver() as receiver:
        settings = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url,
            "OTEL_EXPORTER_OTLP_HEADERS": "X-SF-Token=se%20cret,tenant=a",
            "OTEL_EXPORTER_OTLP_LOGS_TIMEOUT": "7.5",
        }
        with ExportingProcess(settings) as exporter:
            exporter.ask("record 2")
            receiver.records(2)
        headers = receiver.exports(1)[0]["headers"]
        assert headers["x-sf-token"] == "se cret"
        assert headers["tenant"] == "a"


@pytest.mark.parametrize("compression", ["gzip", "none"])
def test_requests_are_compressed_if_the_standard_setting_says_so(compression: str) -> None:
    with Receiver() as receiver:
        relay = CountingRelay(receiver)
        settings = {"SPLUNK_PROFILER_LOGS_ENDPOINT": relay.url, "OTEL_EXPORTER_OTLP_COMPRESSION": compression}
        with ExportingProcess(settings) as exporter:
            exporter.ask("record 200 40")
            receiver.records(200)
            exporter.ask("stop 10")
    size = sum(export["size"] for export in receiver.exports())
    assert (relay.bytes_sent() < size / 4) is (compression == "gzip")


def test_wrong_values_give_one_line_each_and_records_are_sent() -> None:
    with Receiver() as receiver:
        settings = {
            "SPLUNK_PROFILER_LOGS_ENDPOINT": receiver.url,
            "SPLUNK_PROFILER_ENABLED": "true",
            "OTEL_EXPORTER_OTLP_TIMEOUT": "soon",
            "OTEL_EXPORTER_OTLP_LOGS_TIMEOUT": "later",
            "OTEL_EXPORTER_OTLP_COMPRESSION": "zip",
            "OTEL_EXPORTER_OTLP_HEADERS": "secret",
        }
        with ExportingProcess(settings) as exporter:
            exporter.ask("record 2")
            assert len(receiver.records(2)) == 2
            lines = exporter.profiler_log()
        assert len(lines) == 3
        assert any("OTEL_EXPORTER_OTLP_LOGS_TIMEOUT='later'" in line for line in lines)
        assert any("OTEL_EXPORTER_OTLP_COMPRESSION='zip'" in line for line in lines)
        assert not any("secret" in line for line in lines)


def peers(receiver: Receiver, signal: str) -> set[str]:
    return {export["peer"] for export in receiver.exports(signal=signal)}


@pytest.mark.parametrize("tls", [False, True], ids=["plaintext", "tls"])
def test_spans_and_profiles_travel_on_one_tcp_connection(tls: bool, files: CertificateFiles) -> None:
    with Receiver(cert=files.cert if tls else None, key=files.key if tls else None) as receiver:
        settings = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url}
        if tls:
            settings["OTEL_EXPORTER_OTLP_CERTIFICATE"] = str(files.authority)
        with ExportingProcess(settings) as exporter:
            assert exporter.ask("trace checkout")
            exporter.ask("record 2")
            receiver.records(2)
            assert exporter.ask("flush 10")
            exporter.ask("trace again")
            exporter.ask("record 2")
            receiver.records(4)
        assert len(peers(receiver, "logs") | peers(receiver, "traces")) == 1


def test_the_trace_exporters_connection_is_left_alone_by_our_end() -> None:
    with Receiver() as receiver, ExportingProcess(OTEL_EXPORTER_OTLP_ENDPOINT=receiver.url) as exporter:
        exporter.ask("trace before")
        exporter.ask("record 1")
        receiver.records(1)
        exporter.ask("stop 10")
        assert exporter.ask("trace after")
        receiver.spans(1, lambda span: span["name"] == "after")
        assert len(peers(receiver, "traces")) == 1


def test_records_go_on_when_the_trace_exporter_is_shut_down() -> None:
    with Receiver() as receiver, ExportingProcess(OTEL_EXPORTER_OTLP_ENDPOINT=receiver.url) as exporter:
        exporter.ask("trace checkout")
        exporter.ask("record 1")
        receiver.records(1)
        assert exporter.ask("flush 10")  # a record whose answer is lost with the connection would be sent twice
        exporter.ask("untrace")
        exporter.ask("record 2")
        assert len(receiver.records(3)) == 3
        assert len(peers(receiver, "logs")) == 2


def test_shared_connection_delivers_again_after_the_collector_restarts() -> None:
    with (
        Receiver(port=find_free_ports(1)[0]) as first,
        ExportingProcess(OTEL_EXPORTER_OTLP_ENDPOINT=first.url, OTEL_EXPORTER_OTLP_TIMEOUT="2") as exporter,
    ):
        exporter.ask("trace checkout")
        exporter.ask("record 1")
        first.records(1)
        assert exporter.ask("flush 10")
        first.kill()
        exporter.ask("record 2")
        exporter.log(lambda text: UNDELIVERED in text)
        with Receiver(port=first.port) as second:
            assert len(second.records(2)) == 2


def test_a_connection_with_other_certificates_is_not_shared(files: CertificateFiles) -> None:
    with Receiver(cert=files.cert, key=files.key) as receiver:
        settings = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url,
            "OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE": str(files.authority),
            "OTEL_EXPORTER_OTLP_CERTIFICATE": str(files.untrusted_authority),
        }
        with ExportingProcess(settings) as exporter:
            assert exporter.ask("trace checkout")
            receiver.spans(1)
            exporter.ask("record 1")
            assert "is not trusted" in exporter.log(lambda text: UNDELIVERED in text)
        assert receiver.exports() == []


def headers_of(receiver: Receiver, signal: str) -> dict[str, str]:
    headers: dict[str, str] = receiver.exports(1, signal=signal)[0]["headers"]
    return headers


def test_token_for_another_host_is_not_sent_on_a_shared_connection() -> None:
    with Receiver() as receiver:
        settings = {
            "SPLUNK_PROFILER_ENABLED": "true",
            "SPLUNK_PROFILER_LOGS_ENDPOINT": receiver.url,
            "OTEL_EXPORTER_OTLP_ENDPOINT": "https://vendor.invalid:4317",
            "OTEL_EXPORTER_OTLP_HEADERS": "x-token=sesame",
        }
        with ExportingProcess(settings) as exporter:
            assert exporter.ask("trace checkout")
            exporter.ask("record 2")
            receiver.records(2)
            (line,) = exporter.profiler_log()
        assert "OTEL_EXPORTER_OTLP_HEADERS" in line
        assert "sesame" not in line
        assert headers_of(receiver, "traces")["x-token"] == "sesame", "the SDK's own exporter sends it"
        assert "x-token" not in headers_of(receiver, "logs")
        assert len(peers(receiver, "logs") | peers(receiver, "traces")) == 1
        with ExportingProcess({**settings, "SPLUNK_PROFILER_LOGS_HEADERS": "x-token=ours"}) as exporter:
            exporter.ask("record 1")
            receiver.records(3)
            assert exporter.profiler_log() == []
        assert receiver.exports()[-1]["headers"]["x-token"] == "ours"


@pytest.mark.parametrize("form", ["dns:{}", "dns:///{}", "{}"])
def test_a_target_of_grpcs_own_form_is_reached_without_tls_if_asked_for(form: str) -> None:
    with Receiver() as receiver:
        settings = {
            "SPLUNK_PROFILER_LOGS_ENDPOINT": form.format(receiver.address),
            "OTEL_EXPORTER_OTLP_INSECURE": "true",
        }
        with ExportingProcess(settings) as exporter:
            exporter.ask("record 2")
            assert len(receiver.records(2)) == 2


def test_a_target_of_grpcs_own_form_has_tls_otherwise(files: CertificateFiles) -> None:
    with Receiver(cert=files.cert, key=files.key) as receiver:
        settings = {
            "SPLUNK_PROFILER_LOGS_ENDPOINT": f"dns:///localhost:{receiver.port}",
            "OTEL_EXPORTER_OTLP_CERTIFICATE": str(files.authority),
        }
        with ExportingProcess(settings) as exporter:
            exporter.ask("record 2")
            assert len(receiver.records(2)) == 2
    with Receiver() as receiver:
        target = f"dns:{receiver.address}"
        with ExportingProcess(SPLUNK_PROFILER_LOGS_ENDPOINT=target) as exporter:
            exporter.ask("record 1")
            line = exporter.log(lambda text: UNDELIVERED in text)
            assert f"set SPLUNK_PROFILER_LOGS_ENDPOINT=http://{receiver.address}" in line


@pytest.mark.parametrize("name", ["c.sock", "a collector%20.sock"])
def test_a_collector_at_a_unix_socket_is_reached(name: str, tmp_path: Path) -> None:
    with Receiver(path=tmp_path / name.replace("%", "")) as receiver:
        with ExportingProcess(SPLUNK_PROFILER_LOGS_ENDPOINT=receiver.url) as exporter:
            exporter.ask("record 2")
            assert len(receiver.records(2)) == 2
        assert exporter.profiler_log() == []


def test_a_collector_at_a_unix_socket_has_tls_if_asked_for(files: CertificateFiles, tmp_path: Path) -> None:
    with Receiver(path=tmp_path / "c.sock", cert=files.cert, key=files.key) as receiver:
        settings = {
            "SPLUNK_PROFILER_LOGS_ENDPOINT": receiver.url,
            "OTEL_EXPORTER_OTLP_CERTIFICATE": str(files.authority),
        }
        with ExportingProcess(settings) as exporter:
            exporter.ask("record 1")
            assert "set OTEL_EXPORTER_OTLP_INSECURE=false" in exporter.log(lambda text: UNDELIVERED in text)
        with ExportingProcess({**settings, "OTEL_EXPORTER_OTLP_INSECURE": "false"}) as exporter:
            exporter.ask("record 2")
            assert len(receiver.records(2)) == 2


def test_a_unix_socket_that_is_not_there_is_named(tmp_path: Path) -> None:
    with ExportingProcess(SPLUNK_PROFILER_LOGS_ENDPOINT=f"unix:{tmp_path}/c.sock") as exporter:
        exporter.ask("record 1")
        line = exporter.log(lambda text: UNDELIVERED in text)
    assert f"no collector can be reached at unix:{tmp_path}/c.sock" in line
