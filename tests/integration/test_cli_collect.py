"""The local collector, as a process, with the exporters that applications use."""

from __future__ import annotations

import resource
import signal
from pathlib import Path

import pytest
from command_line import DEADLINE_S, Collector, collecting, sending, splunk_profiler

FILLED = 4096


def bodies(collector: Collector) -> list[str]:
    return [
        record["body"]["stringValue"]
        for request in collector.lines("logs.jsonl")
        for resource_logs in request["resourceLogs"]
        for scope in resource_logs["scopeLogs"]
        for record in scope["logRecords"]
    ]


def numbers(collector: Collector) -> list[int]:
    return [int(body.split()[0]) for body in bodies(collector)]


def test_logs_and_spans_are_saved_as_otlp_json_with_hex_ids_and_metrics_are_taken(tmp_path: Path) -> None:
    with collecting(tmp_path) as collector:
        with sending(collector.address) as sender:
            sent = sender.do("everything")
        output, errors = collector.end()
    logs, traces = collector.lines("logs.jsonl"), collector.lines("traces.jsonl")
    first = logs[0]["resourceLogs"][0]["scopeLogs"][0]
    assert first["scope"] == {"name": "otel.profiling", "version": "0.1.0"}
    record = first["logRecords"][0]
    assert (record["traceId"], record["spanId"]) == (sent["trace"], sent["span"])
    assert record["timeUnixNano"].isdigit()
    spans = [line["resourceSpans"][0]["scopeSpans"][0]["spans"][0] for line in traces]
    linked = next(span for span in spans if span["name"] == "GET /")
    assert linked["spanId"] == sent["span"]
    assert linked["kind"] == 1
    other = next(span for span in spans if span["name"] == "other")
    assert linked["links"][0]["spanId"] == other["spanId"]
    assert sent["metrics"] is True
    assert "2 samples (100% inside spans) · 2 spans · 1 other log records" in output
    assert errors == ""


def test_a_malformed_request_is_refused_and_counted_and_the_next_one_is_taken(tmp_path: Path) -> None:
    with collecting(tmp_path) as collector:
        with sending(collector.address) as sender:
            assert sender.do("raw", "logs", "Logs", 100) == "INVALID_ARGUMENT"
            assert sender.do("raw", "trace", "Trace", 100) == "INVALID_ARGUMENT"
            assert sender.do("numbered", 1, 10) == "OK"
        output, _ = collector.end()
    assert numbers(collector) == [1]
    assert "2 malformed" in output


def test_a_request_that_is_too_large_is_refused_and_counted(tmp_path: Path) -> None:
    with collecting(tmp_path, "--max-request-mib", "1") as collector:
        with sending(collector.address) as sender:
            assert sender.do("numbered", 1, 2 << 20) == "RESOURCE_EXHAUSTED"
            assert sender.do("numbered", 2, 1000) == "OK"
        output, _ = collector.end()
    assert numbers(collector) == [2]
    assert "1 too large" in output


def test_a_full_disk_refuses_requests_loses_nothing_acknowledged_and_goes_on_when_there_is_space(
    tmp_path: Path,
) -> None:
    with collecting(tmp_path) as collector:
        with sending(collector.address) as sender:
            assert sender.do("numbered", 1, FILLED) == "OK"
            _, hard = resource.prlimit(collector.process.pid, resource.RLIMIT_FSIZE)
            resource.prlimit(collector.process.pid, resource.RLIMIT_FSIZE, (2 * FILLED, hard))
            # Half of this one fits: a piece is written before the file system refuses.
            assert sender.do("numbered", 2, FILLED) == "UNAVAILABLE"
            assert numbers(collector) == [1]
            assert sender.do("numbered", 3, 100) == "OK"
            assert sender.do("numbered", 4, FILLED) == "UNAVAILABLE"
            resource.prlimit(collector.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, hard))
            assert sender.do("numbered", 5, FILLED) == "OK"
        output, errors = collector.end()
    assert numbers(collector) == [1, 3, 5]
    assert "2 not saved" in output
    assert "logs.jsonl cannot be written: File too large" in errors
    assert "requests are being saved again" in errors


def test_what_was_acknowledged_survives_the_collectors_sudden_death_and_the_next_one_continues_it(
    tmp_path: Path,
) -> None:
    with collecting(tmp_path) as collector, sending(collector.address) as sender:
        assert [sender.do("numbered", number, 100) for number in range(20)] == ["OK"] * 20
        collector.process.send_signal(signal.SIGKILL)
        collector.process.wait(DEADLINE_S)
    with (tmp_path / "logs.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"resourceLogs":[{"a piece of a li')
    with collecting(tmp_path, "--sync") as collector, sending(collector.address) as sender:
        assert sender.do("numbered", 20, 100) == "OK"
    assert numbers(collector) == list(range(21))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_well(tmp_path: Path, number: signal.Signals) -> None:
    with collecting(tmp_path) as collector:
        collector.process.send_signal(number)
        output, errors = collector.process.communicate(timeout=DEADLINE_S)
    assert (collector.process.returncode, errors) == (0, "")
    assert f"splunk-profiler report {tmp_path}" in output


def test_it_ends_by_itself_after_the_number_of_samples_asked_for(tmp_path: Path) -> None:
    with collecting(tmp_path, "--max-records", "2") as collector:
        with sending(collector.address) as sender:
            sender.do("everything")
        assert collector.process.wait(DEADLINE_S) == 0


def test_it_ends_by_itself_after_the_time_asked_for(tmp_path: Path) -> None:
    with collecting(tmp_path, "--duration", "0.2") as collector:
        assert collector.process.wait(DEADLINE_S) == 0


def test_a_port_in_use_is_an_error_of_one_line(tmp_path: Path) -> None:
    with collecting(tmp_path / "one") as collector:
        port = collector.address.rpartition(":")[2]
        second = splunk_profiler("collect", "--port", port, "--output", tmp_path / "two")
    assert second.returncode == 1
    assert second.stdout == ""
    (line,) = second.stderr.splitlines()
    assert f"nothing can listen on 127.0.0.1:{port}: Address already in use" in line


def test_two_collectors_never_write_to_the_same_files(tmp_path: Path) -> None:
    with collecting(tmp_path):
        second = splunk_profiler("collect", "--port", "0", "--output", tmp_path)
    assert second.returncode == 1
    assert "another collector" in second.stderr


def test_a_directory_that_cannot_be_made_is_an_error_before_anything_is_served(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    refused = splunk_profiler("collect", "--port", "0", "--output", tmp_path / "file" / "below")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "cannot be made: Not a directory" in refused.stderr
