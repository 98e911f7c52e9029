"""The local collector, as a process, with the exporters that applications use."""

from __future__ import annotations

import resource
import signal
import subprocess
from pathlib import Path

from collecting_terminal import run_collector_on_terminal
from command_line import (
    COMMAND,
    DEADLINE_S,
    ROOT,
    Collector,
    clean_environment,
    run_collector,
    run_sender,
    splunk_profiler,
)
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from permissions import find_open_to_others, umask_cleared

from splunk_profiler.cli.receiver import MAX_ITEMS, MAX_SERVICES
from splunk_profiler.system.threads import wait_until

FILLED = 4096


def field(number: int, content: bytes) -> bytes:
    """A field that holds bytes, as protobuf writes it."""
    size, length = len(content), b""
    while size >= 0x80:
        size, length = size >> 7, length + bytes([size & 0x7F | 0x80])
    return bytes([number << 3 | 2]) + length + bytes([size]) + content


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


def test_collect_saves_logs_and_spans_as_otlp_json_and_accepts_metrics(tmp_path: Path) -> None:
    with run_collector(tmp_path) as collector:
        with run_sender(collector.address) as sender:
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


def test_malformed_and_too_large_requests_are_refused_and_counted(tmp_path: Path) -> None:
    with run_collector(tmp_path, "--max-request-mib", "1") as collector:
        with run_sender(collector.address) as sender:
            assert sender.do("raw", "logs", "Logs", 100) == "INVALID_ARGUMENT"
            assert sender.do("raw", "trace", "Trace", 100) == "INVALID_ARGUMENT"
            assert sender.do("numbered", 1, 3 << 19) == "RESOURCE_EXHAUSTED"
            assert sender.do("numbered", 2, 1000) == "OK"
        output, _ = collector.end()
    assert numbers(collector) == [2]
    assert "2 malformed" in output
    assert "1 too large" in output


def empty_records(count: int) -> str:
    """A request with so many records of two bytes, in hex."""
    request = ExportLogsServiceRequest()
    records = request.resource_logs.add().scope_logs.add().log_records
    records.extend([LogRecord()] * count)
    return str(request.SerializeToString().hex())


def most_memory_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text("ascii")
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def test_a_request_that_holds_too_much_is_refused_before_it_takes_memory(tmp_path: Path) -> None:
    with run_collector(tmp_path) as collector:
        with run_sender(collector.address) as sender:
            assert sender.do("numbered", 1, 10) == "OK"
            before = most_memory_mib(collector.process.pid)
            assert sender.do("message", "logs", "Logs", empty_records(3 << 19)) == "RESOURCE_EXHAUSTED"
            assert most_memory_mib(collector.process.pid) - before < 50
            assert sender.do("message", "logs", "Logs", empty_records(MAX_ITEMS - 2)) == "OK"
            assert most_memory_mib(collector.process.pid) - before < 150
        output, _ = collector.end()
    assert "1 too large" in output


def test_values_in_values_to_any_depth_do_not_end_the_collector(tmp_path: Path) -> None:
    answers = []
    with run_collector(tmp_path) as collector, run_sender(collector.address) as sender:
        for depth in (5, 40, 45, 60, 5000):
            value = b"\x0a\x00"  # a text
            for _ in range(depth):
                value = field(5, field(1, value))  # an array with one value
            message = field(1, field(2, field(2, field(5, value))))
            answers.append(sender.do("message", "logs", "Logs", message.hex()))
        assert sender.do("numbered", 1, 10) == "OK"
    assert set(answers) == {"OK", "INVALID_ARGUMENT"}


def test_of_requests_at_once_those_beyond_a_bound_are_refused(tmp_path: Path) -> None:
    with run_collector(tmp_path) as collector, run_sender(collector.address) as sender:
        assert sender.do("begun", 128) == "RESOURCE_EXHAUSTED"
        while sender.do("numbered", 1, 10) != "OK":
            pass  # until the collector has heard that the others are given up


def test_services_beyond_a_bound_are_not_kept_and_long_names_are_cut(tmp_path: Path) -> None:
    request = ExportLogsServiceRequest()
    for number in range(300):
        resource = request.resource_logs.add()
        resource.resource.attributes.add(key="service.name").value.string_value = f"{number:03}" + "x" * 1000
        resource.scope_logs.add().log_records.add()
    with run_collector_on_terminal(tmp_path) as collector:
        with run_sender(collector.address) as sender:
            assert sender.do("message", "logs", "Logs", request.SerializeToString().hex()) == "OK"
        collector.read_until("services: 000" + "x" * 97 + ",")
        collector.read_until("and others")
        collector.end()
    assert str(MAX_SERVICES).encode() in collector.output
    assert b"x" * 98 not in collector.output


def test_what_is_saved_is_its_owners_alone_also_what_was_not_before(tmp_path: Path) -> None:
    directory = tmp_path / "made" / "here"
    with umask_cleared(), run_collector(directory) as collector, run_sender(collector.address) as sender:
        assert sender.do("numbered", 1, 10) == "OK"
    assert find_open_to_others(tmp_path / "made") == []
    directory.chmod(0o755)
    for path in directory.iterdir():
        path.chmod(0o644)
    with run_collector(directory) as collector:
        assert find_open_to_others(tmp_path / "made") == [directory]


def test_collect_on_a_full_disk_loses_no_acknowledged_record_and_recovers(
    tmp_path: Path,
) -> None:
    with run_collector(tmp_path) as collector:
        with run_sender(collector.address) as sender:
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


def test_a_full_disk_refuses_requests_also_when_nobody_reads_the_errors(tmp_path: Path) -> None:
    with run_collector(tmp_path) as collector:
        assert collector.process.stderr is not None
        collector.process.stderr.close()
        with run_sender(collector.address) as sender:
            _, hard = resource.prlimit(collector.process.pid, resource.RLIMIT_FSIZE)
            resource.prlimit(collector.process.pid, resource.RLIMIT_FSIZE, (100, hard))
            assert sender.do("numbered", 1, FILLED) == "UNAVAILABLE"
            resource.prlimit(collector.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, hard))
            assert sender.do("numbered", 2, FILLED) == "OK"
        output, _ = collector.end()
    assert numbers(collector) == [2]
    assert "1 not saved" in output


def test_a_full_disk_that_the_output_is_on_does_not_end_the_collector(tmp_path: Path) -> None:
    def write_up_to(size: int) -> None:
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    output = tmp_path / "output"
    command = [*COMMAND, "collect", "--port", "0", "--output", str(tmp_path / "profiles")]
    env = clean_environment()
    with output.open("w") as file:
        process = subprocess.Popen(command, env=env, cwd=ROOT, stdout=file, stderr=subprocess.DEVNULL)
    try:
        assert wait_until(lambda: output.read_text("utf-8").endswith("\n"), DEADLINE_S)
        with run_sender(output.read_text("utf-8").split()[-1]) as sender:
            size = output.stat().st_size
            write_up_to(size + 5)
            assert sender.do("numbered", 1, 100) == "UNAVAILABLE"
            assert wait_until(lambda: output.stat().st_size > size, DEADLINE_S)  # a piece of a summary
            write_up_to(resource.RLIM_INFINITY)
            assert sender.do("numbered", 2, 100) == "OK"
        process.terminate()
        assert process.wait(DEADLINE_S) == 0
    finally:
        process.kill()
        process.wait(DEADLINE_S)
    assert "1 not saved" in output.read_text("utf-8")


def test_acknowledged_records_survive_sigkill_and_the_next_run_appends(
    tmp_path: Path,
) -> None:
    with run_collector(tmp_path) as collector, run_sender(collector.address) as sender:
        assert [sender.do("numbered", number, 100) for number in range(20)] == ["OK"] * 20
        collector.process.send_signal(signal.SIGKILL)
        collector.process.wait(DEADLINE_S)
    with (tmp_path / "logs.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"resourceLogs":[{"a piece of a li')
    with run_collector(tmp_path, "--sync") as collector, run_sender(collector.address) as sender:
        assert sender.do("numbered", 20, 100) == "OK"
    assert numbers(collector) == list(range(21))


def test_ctrl_c_ends_it_well(tmp_path: Path) -> None:
    with run_collector(tmp_path) as collector:
        collector.process.send_signal(signal.SIGINT)
        output, errors = collector.process.communicate(timeout=DEADLINE_S)
    assert (collector.process.returncode, errors) == (0, "")
    assert f"splunk-profiler report {tmp_path}" in output


def test_it_ends_by_itself_after_the_number_of_samples_asked_for(tmp_path: Path) -> None:
    with run_collector(tmp_path, "--max-records", "2") as collector:
        with run_sender(collector.address) as sender:
            sender.do("everything")
        assert collector.process.wait(DEADLINE_S) == 0


def test_it_ends_by_itself_after_the_time_asked_for(tmp_path: Path) -> None:
    with run_collector(tmp_path, "--duration", "0.2") as collector:
        assert collector.process.wait(DEADLINE_S) == 0


def test_a_port_or_files_of_another_collector_are_an_error_of_one_line(tmp_path: Path) -> None:
    with run_collector(tmp_path / "one") as collector:
        port = collector.address.rpartition(":")[2]
        same_port = splunk_profiler("collect", "--port", port, "--output", tmp_path / "two")
        same_files = splunk_profiler("collect", "--port", "0", "--output", tmp_path / "one")
    for second, reason in (
        (same_port, f"nothing can listen on 127.0.0.1:{port}: Address already in use"),
        (same_files, "another collector"),
    ):
        assert (second.returncode, second.stdout) == (1, "")
        (line,) = second.stderr.splitlines()
        assert reason in line


def test_collect_fails_before_serving_if_the_directory_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    refused = splunk_profiler("collect", "--port", "0", "--output", tmp_path / "file" / "below")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "cannot be made: Not a directory" in refused.stderr
