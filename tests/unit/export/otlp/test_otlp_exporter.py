"""The last export of a process to a collector that has just returned, over real connections."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import pytest
from certificates import CertificateFiles
from free_ports import find_free_ports
from logs_collector import Collector, running
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from sample_factory import make_sample

from splunk_profiler.config.otlp_transport import Certificates, Transport
from splunk_profiler.config.parsers import parse_endpoint
from splunk_profiler.export.otlp.exporter import OtlpSink
from splunk_profiler.samples import Batch, ExportStatus, Sample


def test_a_connection_that_pauses_is_replaced_for_the_last_export() -> None:
    address = f"127.0.0.1:{find_free_ports(1)[0]}"
    sink: OtlpSink[Sample] = OtlpSink(parse_endpoint(f"http://{address}"), lambda _: b"", Transport())
    batch = Batch((make_sample(1),))
    assert sink.export(batch).export_status is ExportStatus.RETRY
    with running(Collector(), address):
        sink.set_shutdown_deadline(10)
        assert sink.export(batch).export_status is ExportStatus.DELIVERED
        sink.shutdown()


class BusyCollector(Collector):
    """A collector above its limit of memory."""

    def Export(self, _request: ExportLogsServiceRequest, context: Any) -> Any:  # noqa: N802
        context.abort(grpc.StatusCode.UNAVAILABLE, "data refused due to high memory usage")


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_collector_that_takes_nothing_now_is_not_said_to_be_out_of_reach(scheme: str, tmp_path: Path) -> None:
    certificates = CertificateFiles(tmp_path)
    transport = Transport(certificates=Certificates(files=(str(certificates.authority), "", "")))
    with running(BusyCollector(), certificates=certificates if scheme == "https" else None) as port:
        url = f"{scheme}://localhost:{port}"
        sink: OtlpSink[Sample] = OtlpSink(parse_endpoint(url), lambda _: b"", transport)
        result = sink.export(Batch((make_sample(1),)))
        sink.shutdown()
    detail = f"{url} answers, but takes no records now (data refused due to high memory usage)"
    assert (result.export_status, result.detail) == (ExportStatus.RETRY, detail)


def test_certificates_that_are_replaced_are_read_again(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "new").mkdir()
    old, new = CertificateFiles(tmp_path / "old"), CertificateFiles(tmp_path / "new")
    address, trusted = f"127.0.0.1:{find_free_ports(1)[0]}", tmp_path / "trusted.pem"
    trusted.write_bytes(old.authority.read_bytes())
    missing = str(tmp_path / "missing")  # a client's, without which the collector takes records
    transport = Transport(certificates=Certificates(files=(str(trusted), missing, missing)))
    endpoint = parse_endpoint(f"https://localhost:{address.rpartition(':')[2]}")
    sink: OtlpSink[Sample] = OtlpSink(endpoint, lambda _: b"", transport)
    batch = Batch((make_sample(1),))
    with running(Collector(), address, old):
        assert sink.export(batch).export_status is ExportStatus.DELIVERED
    with running(Collector(), address, new):
        assert "is not trusted" in sink.export(batch).detail
        trusted.write_bytes(b"")  # being written: until it is there, only the old one counts
        assert "is not trusted" in sink.export(batch).detail
        trusted.write_bytes(new.authority.read_bytes())
        assert sink.export(batch).export_status is ExportStatus.RETRY  # its failure shows that they have changed
        assert sink.export(batch).export_status is ExportStatus.DELIVERED
    sink.shutdown()


def test_a_refusal_is_told_at_a_length_that_fits_a_log() -> None:
    with running(Collector("no room; " * 100_000)) as port:
        sink: OtlpSink[Sample] = OtlpSink(parse_endpoint(f"http://127.0.0.1:{port}"), lambda _: b"", Transport())
        result = sink.export(Batch((make_sample(1),)))
        sink.shutdown()
    assert result.detail.startswith("no room; ")
    assert len(result.detail) < 5000
