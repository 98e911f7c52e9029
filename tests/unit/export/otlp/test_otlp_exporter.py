"""The last export of a process to a collector that has just returned, over real connections."""

from __future__ import annotations

from free_ports import find_free_ports
from logs_collector import Collector, running
from sample_factory import make_sample

from splunk_profiler.config.otlp_transport import Transport
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


def test_a_refusal_is_told_at_a_length_that_fits_a_log() -> None:
    with running(Collector("no room; " * 100_000)) as port:
        sink: OtlpSink[Sample] = OtlpSink(parse_endpoint(f"http://127.0.0.1:{port}"), lambda _: b"", Transport())
        result = sink.export(Batch((make_sample(1),)))
        sink.shutdown()
    assert result.detail.startswith("no room; ")
    assert len(result.detail) < 5000
