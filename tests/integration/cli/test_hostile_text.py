"""Names that terminals would obey, that look like markup or like lines of ours: shown literally by each command."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from collecting_terminal import run_collector_on_terminal
from command_line import COMMAND, DEADLINE_S, ROOT, clean_environment, run_collector, run_sender
from exporting_process import ExportingProcess
from inspected_process import InspectedProcess, TargetBuilder, datagram_socket, labels, record_bytes, storage
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from received_profiles import blocks_loop
from receiver_process import Receiver
from target_process import Target, profiling_settings

NAME = "shop[/eu]\x1b]0;x\x07\x1b[2J:smile:\r\nsplunk-profiler: error: forged\x9b31m\u202e"
SHOWN = "shop[/eu]\\x1b]0;x\\x07\\x1b[2J:smile:\\r\\nsplunk-profiler: error: forged\\x9b31m\\u202e"
COMMAND_NAME = "x[a]\x1b[2J\n\u202e"  # the kernel keeps 15 bytes of it
TRACE, SPAN = bytes(range(16)), bytes(range(8))


def run(*arguments: str | Path, env: Mapping[str, str] | None = None, ends_with: int = 0) -> str:
    """Run a command and return its combined output; fail on unprintable characters other than line ends."""
    done = subprocess.run(
        [*COMMAND, *map(str, arguments)],
        env=clean_environment(env),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=DEADLINE_S,
        check=False,
    )
    text = bytes(done.stdout).decode("utf-8")
    assert done.returncode == ends_with, text
    assert safe(text)
    return text


def safe(text: str) -> bool:
    assert not {character for character in text if not character.isprintable()} - {"\n"}
    assert not [line for line in text.splitlines() if line.startswith("splunk-profiler: error: forged")]
    return True


def unfolded(text: str) -> str:
    """The text without what a layout adds to it: line ends and blanks."""
    return "".join(text.split())


def hostile_logs() -> str:
    request = ExportLogsServiceRequest()
    resource = request.resource_logs.add()
    resource.resource.attributes.add(key="service.name").value.string_value = NAME
    scope = resource.scope_logs.add()
    scope.scope.name = "otel.profiling"
    threads = NAME.replace("\n", "\\n")  # in a record the name of a thread is on one line
    for span in (SPAN, b""):
        record = scope.log_records.add(trace_id=TRACE if span else b"", span_id=span, time_unix_nano=time.time_ns())
        record.attributes.add(key=NAME).value.string_value = NAME
        record.body.string_value = (
            f'"{threads}" #1 prio=0 os_prio=0 cpu=1ms elapsed=1s tid=0x1 nid=0x2 running\x1b[2J\n'
            f"   python.Thread.State: RUNNABLE\x1b[2J\n\tat shop[/eu].\x1b[2Jf\u202e(/srv/[/x]\x1b[2J.py:3)\n"
        )
    return str(request.SerializeToString().hex())


def hostile_spans() -> str:
    request = ExportTraceServiceRequest()
    span = request.resource_spans.add().scope_spans.add().spans.add(trace_id=TRACE, span_id=SPAN, name=NAME)
    ids = span.attributes.add(key="elastic.profiler_stack_trace_ids").value.array_value.values
    ids.add().string_value = NAME
    return str(request.SerializeToString().hex())


def test_collect_on_a_terminal_shows_names_of_services_literally(tmp_path: Path) -> None:
    with run_collector_on_terminal(tmp_path) as collector:
        with run_sender(collector.address) as sender:
            assert sender.do("message", "logs", "Logs", hostile_logs()) == "OK"
        collector.read_until(f"services: {SHOWN}")
        collector.end()
    for sequence in ("\x1b]0;x", "\x1b[2J", "\x07", "\x9b", "\u202e"):
        assert sequence.encode() not in collector.output


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with hostile names, in what it holds and in its own name."""
    directory = tmp_path_factory.mktemp("saved") / "shop[/eu]\x1b[2J\n"
    with run_collector(directory) as collector, run_sender(collector.address) as sender:
        assert sender.do("message", "logs", "Logs", hostile_logs()) == "OK"
        assert sender.do("message", "trace", "Trace", hostile_spans()) == "OK"
        output, errors = collector.end()
    assert safe(output)
    assert "saved in " in output
    assert "shop[/eu]\\x1b[2J\\n" in output
    assert errors == ""
    return directory


def test_report_shows_names_of_all_kinds_literally(saved: Path) -> None:
    text = unfolded(run("report", saved))
    assert text.count(unfolded(SHOWN)) >= 4
    for name in ("shop[/eu].\\x1b[2Jf\\u202e", "[/x]\\x1b[2J.py:3", "shop[/eu]\\x1b[2J\\n"):
        assert name in text
    assert run("report", saved, "--json").isascii()


def test_report_names_a_path_that_is_not_there_on_one_line(tmp_path: Path) -> None:
    text = run("report", tmp_path / NAME, ends_with=1)
    assert SHOWN in text
    assert len(text.splitlines()) == 1


def test_wrong_usage_is_shown_literally() -> None:
    assert SHOWN in run("report", f"--{NAME}", ends_with=2)


def publish(target: InspectedProcess, workshop: TargetBuilder, path: str) -> None:
    target.line("ready")
    target.do(f"load {workshop.elastic()}", "loaded")
    target.do(f"load {workshop.labels()}", "loaded")
    target.do(storage(NAME, NAME, path))
    target.do("record " + record_bytes().hex())
    target.do(labels((NAME.encode()[:25], NAME.encode()[:53]), (b"route", b"\x1b[2J[/eu]\n")))


@pytest.mark.parametrize("verb", [("inspect",), ("host-agent", "--duration", "0.2")])
def test_what_a_process_publishes_and_is_called_is_shown_literally(
    workshop: TargetBuilder, tmp_path: Path, verb: tuple[str, ...]
) -> None:
    program = tmp_path / COMMAND_NAME
    program.symlink_to(workshop.program())
    with InspectedProcess(program) as target, datagram_socket(tmp_path) as path:
        publish(target, workshop, path)
        text = unfolded(run(verb[0], str(target.pid), *verb[1:]))
        lines = run(verb[0], str(target.pid), "--json", *verb[1:])
    assert "x[a]\\x1b[2J\\n" in text
    assert unfolded(SHOWN) in text
    assert lines.isascii()


def test_doctor_shows_the_environment_and_the_command_literally(tmp_path: Path) -> None:
    env = {
        "SPLUNK_PROFILER_ENABLED": NAME,
        "OTEL_SERVICE_NAME": NAME,
        "SPLUNK_PROFILER_LOGS_ENDPOINT": f"http://{NAME}:1",
        "ELASTIC_OTEL_UNIVERSAL_PROFILING_INTEGRATION_SOCKET_DIR": str(tmp_path / NAME),
        "SPLUNK_PROFILER_OUTPUT": f"file:{tmp_path}/{NAME}",
    }
    assert "shop[/eu]\\x1b]0;x\\x07" in unfolded(run("doctor", "--no-export", env=env, ends_with=1))
    assert run("doctor", "--no-export", "--json", env=env, ends_with=1).isascii()
    command = [sys.executable, "-c", "print('ready', flush=True); input()", NAME]
    with subprocess.Popen(command, env=clean_environment(env), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as target:
        assert target.stdout is not None
        assert target.stdout.readline() == b"ready\n"
        text = unfolded(run("doctor", "--no-export", "--pid", str(target.pid), ends_with=1))
        assert f"input(){SHOWN.partition(':')[0]}" in text
        target.communicate(b"\n", timeout=DEADLINE_S)


def test_doctor_shows_blockers_and_answers_of_receivers_literally() -> None:
    settings = {"SPLUNK_PROFILER_DATA_FORMAT": "pprof-gzip-base64"}
    answer = "[/eu]\x1b[2J\x9b31m\u202e"
    with Receiver() as receiver:
        env = profiling_settings(receiver.url, 10, **settings)
        with Target("blocking_loop.py", NAME, NAME, env=env) as target:
            receiver.record(lambda record: blocks_loop(record, "__main__.render_pdf"))
            receiver.switch(f"partial 1 {answer}")
            target.find("(the receiver refused some)")
            text = unfolded(run("doctor", "--no-export", "--pid", str(target.pid), ends_with=1))
            target.close_stdin()
            assert target.finish() == 0, target.output
    assert unfolded(f"task {SHOWN}, endpoint") in text
    assert "[/eu]\\x1b[2J\\x9b31m\\u202e" in text


def test_what_a_collector_answers_stays_one_line_of_the_services_log() -> None:
    answer = "[/eu]\x1b[2J\x9b31m\u202e"
    with Receiver(mode=f"partial 1 {answer}") as receiver:
        settings: dict[str, Any] = {"SPLUNK_PROFILER_LOGS_ENDPOINT": receiver.url}
        with ExportingProcess(**settings) as exporter:
            exporter.ask("record 2")
            line = exporter.log(lambda text: "the receiver refused some" in text)
    assert "[/eu]\\x1b[2J\\x9b31m\\u202e" in line
    assert line.isprintable()
