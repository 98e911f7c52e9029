"""The doctor, asked in environments that each have one thing wrong with them."""

from __future__ import annotations

import json
import os
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from answering_server import AnsweringServer, http_response
from certificates import CertificateFiles
from command_line import COMMAND, DEADLINE_S, ROOT, Collector, clean_environment, run_collector, splunk_profiler
from receiver_process import Receiver

from splunk_profiler.config.settings import SETTINGS

_NOBODY = 65534
_PUBLISHES = pytest.mark.skipif(find_spec("splunk_profiler._context") is None, reason="the extension is not built")
ON = {"SPLUNK_PROFILER_ENABLED": "true"}


@pytest.fixture
def collector(tmp_path: Path) -> Iterator[Collector]:
    with run_collector(tmp_path / "collected") as running:
        yield running


def examined(env: dict[str, str], *options: str) -> tuple[int, dict[str, Any]]:
    ended = splunk_profiler("doctor", "--json", *options, env=env)
    assert ended.stdout, ended.stderr
    return ended.returncode, json.loads(ended.stdout)


def findings(data: dict[str, Any], verdict: str) -> str:
    found = (entry for entry in data["findings"] if entry["verdict"] == verdict)
    return "\n".join(f"{entry['subject']}: {entry['fact']} → {entry['remedy']}" for entry in found)


def test_where_all_is_well_a_real_record_arrives(collector: Collector) -> None:
    code, data = examined({**ON, "SPLUNK_PROFILER_LOGS_ENDPOINT": f"http://{collector.address}"})
    assert (code, data["samples_would_flow"], findings(data, "failure")) == (0, True, "")
    assert "records delivered" in findings(data, "ok")
    collector.end()
    (request,) = collector.lines("logs.jsonl")
    scope = request["resourceLogs"][0]["scopeLogs"][0]
    assert scope["scope"]["name"] == "otel.profiling"
    assert '"MainThread" #' in scope["logRecords"][0]["body"]["stringValue"]


def test_asked_through_the_launcher_it_sees_what_the_service_would_get(collector: Collector) -> None:
    options = ("--endpoint", f"http://{collector.address}", "--interval-ms", "20", "--service-name", "shop")
    env = {"PYTHONSAFEPATH": "", "SPLUNK_PROFILER_MAX_STACK_DEPTH": "abc"}
    ended = splunk_profiler("run", *options, "--", *COMMAND, "doctor", env=env)
    assert ended.returncode == 0, ended.stdout
    assert "Samples would flow" in ended.stdout
    assert not ended.stderr  # a start in the doctor itself would log the wrong setting
    assert "splunk-profiler run (PYTHONPATH leads to its sitecustomize)" in ended.stdout
    collector.end()
    assert len(collector.lines("logs.jsonl")) == 1  # the test export; the doctor itself is not profiled


def test_last_line_points_at_warnings(collector: Collector) -> None:
    env = {**ON, "SPLUNK_PROFILER_LOGS_ENDPOINT": f"http://{collector.address}"}
    ended = splunk_profiler("doctor", "--no-export", env={**env, "SPLUNK_PROFILER_CALL_STACK_INTERVAL": "abc"})
    assert ended.returncode == 0, ended.stdout
    assert "Samples would flow; see what is marked with ! above." in ended.stdout


def test_a_profiler_that_is_not_switched_on_is_the_reason() -> None:
    code, data = examined({}, "--no-export")
    assert code == 1
    assert "SPLUNK_PROFILER_ENABLED is not set" in findings(data, "failure")
    _, data = examined({**ON, "OTEL_SDK_DISABLED": "true"}, "--no-export")
    assert "OTEL_SDK_DISABLED=true switches the profiler off" in findings(data, "failure")


def test_an_interpreter_without_its_gil_is_the_reason(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys._is_gil_enabled = lambda: False", "utf-8")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    code, data = examined({**ON, "SPLUNK_PROFILER_OUTPUT": f"file:{tmp_path}", "PYTHONPATH": path})
    failures = findings(data, "failure")
    assert code == 1
    assert "walker: none: the GIL is off" in failures
    assert "test sample: the threads of this process cannot be read" in failures


def test_a_port_without_a_listener_is_the_reason() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # taken, and not listened on
        port = bound.getsockname()[1]
        code, data = examined({**ON, "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}"})
    failures = findings(data, "failure")
    assert code == 1
    assert f"port {port} is not open" in failures
    assert "test export: not delivered" in failures


def test_a_directory_for_files_is_tried_and_gets_a_real_profile(tmp_path: Path) -> None:
    directory = tmp_path / "profiles"
    code, data = examined({**ON, "SPLUNK_PROFILER_OUTPUT": f"file:{directory}", "OTEL_SERVICE_NAME": "shop"})
    assert (code, findings(data, "failure")) == (0, "")
    said = findings(data, "ok")
    assert f"output: files in {directory}, from SPLUNK_PROFILER_OUTPUT" in said
    assert f"directory: will be made in {tmp_path}, which can be written to by this user" in said
    assert "test export: a profile delivered" in said
    (path,) = directory.iterdir()
    assert path.name.startswith("shop-")


def test_a_directory_for_streams_is_tried_and_gets_nothing(tmp_path: Path) -> None:
    code, data = examined({**ON, "SPLUNK_PROFILER_OUTPUT": f"stream:{tmp_path}"})
    assert (code, findings(data, "failure")) == (0, "")
    assert f"output: streams in {tmp_path}" in findings(data, "ok")
    assert not [*tmp_path.iterdir()]


def test_a_directory_that_cannot_be_written_to_is_the_reason(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    code, data = examined({**ON, "SPLUNK_PROFILER_OUTPUT": f"file:{tmp_path}/file/x"})
    assert code == 1
    failures = findings(data, "failure")
    assert f"directory: {tmp_path}/file cannot be written to: Not a directory" in failures
    assert f"profiles cannot be written to {tmp_path}/file/x" in failures


def test_a_directory_that_no_file_system_can_hold_is_the_reason(tmp_path: Path) -> None:
    code, data = examined({**ON, "SPLUNK_PROFILER_OUTPUT": f"file:{tmp_path}/{'a' * 300}"})
    assert code == 1
    assert "(File name too long)" in findings(data, "failure")


def test_a_datadog_agent_is_asked_who_it_is_and_gets_a_real_profile() -> None:
    information = '{"version": "7.60.0", "endpoints": ["/profiling/v1/input"]}'
    with AnsweringServer(http_response(200, information), http_response(200)) as server:
        code, data = examined({**ON, "SPLUNK_PROFILER_OUTPUT": f"datadog:http://127.0.0.1:{server.port}"})
    assert (code, findings(data, "failure")) == (0, "")
    said = findings(data, "ok")
    assert f"output: the Datadog agent at http://127.0.0.1:{server.port}, from SPLUNK_PROFILER_OUTPUT" in said
    assert "agent: a Datadog agent, version 7.60.0 " in said
    assert "test export: a profile delivered" in said
    assert server.requests[1].startswith(b"POST /profiling/v1/input HTTP/1.1\r\n")


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "[]",
        '{"version": "7.60.0", "endpoints": null}',
        '{"version": ' + "1" * 5_000 + ', "endpoints": []}',
        '{"version": "7.60.0", "endpoints": ' + "[" * 100_000 + "]" * 100_000 + "}",
        " " * (1 << 20) + '{"version": "7.60.0", "endpoints": []}',
    ],
    ids=["empty", "list", "null", "number", "nested", "long"],
)
def test_what_answers_otherwise_than_a_datadog_agent_is_pointed_out(answer: str) -> None:
    with AnsweringServer(http_response(200, answer)) as server:
        env = {**ON, "SPLUNK_PROFILER_OUTPUT": f"datadog:http://127.0.0.1:{server.port}"}
        _, data = examined(env, "--no-export")
    assert "agent: what listens there does not say that it is a Datadog agent" in findings(data, "warning")


def test_a_datadog_agent_that_is_not_there_is_the_reason() -> None:
    code, data = examined({**ON, "SPLUNK_PROFILER_OUTPUT": "datadog:http://127.0.0.1:9"}, "--no-export")
    assert code == 1
    assert "connection: port 9 is not open" in findings(data, "failure")
    assert "start the agent, with APM enabled" in findings(data, "failure")


def test_a_datadog_agent_at_a_unix_socket_is_asked_and_gets_a_real_profile(tmp_path: Path) -> None:
    path = tmp_path / "apm.socket"
    env = {**ON, "SPLUNK_PROFILER_OUTPUT": f"datadog:unix://{path}"}
    with AnsweringServer(http_response(200, '{"version": "7.60.0", "endpoints": ["/profiling/v1/input"]}'), path=path):
        code, data = examined(env)
    assert (code, findings(data, "failure")) == (0, "")
    assert f"connection: the socket {path} accepts connections" in findings(data, "ok")
    assert "agent: a Datadog agent, version 7.60.0 " in findings(data, "ok")
    path.unlink()
    code, data = examined(env, "--no-export")
    assert code == 1
    assert f"the socket {path} accepts none: No such file or directory" in findings(data, "failure")


def test_a_datadog_agent_behind_tls_is_asked_and_gets_a_real_profile(tmp_path: Path) -> None:
    files, information = CertificateFiles(tmp_path), '{"version": "7.60.0", "endpoints": ["/profiling/v1/input"]}'
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.cert, files.key)
    with AnsweringServer(http_response(200, information), tls=context) as server:
        env = {**ON, "SPLUNK_PROFILER_OUTPUT": f"datadog:https://localhost:{server.port}"}
        code, data = examined({**env, "SSL_CERT_FILE": str(files.authority)})
        assert (code, findings(data, "failure")) == (0, "")
        assert "agent: a Datadog agent, version 7.60.0 " in findings(data, "ok")
        code, data = examined(env)
        assert code == 1
        assert "is not trusted" in findings(data, "failure")


def test_a_collector_at_a_unix_socket_gets_real_records(tmp_path: Path) -> None:
    with Receiver(path=tmp_path / "c.sock") as receiver:
        code, data = examined({**ON, "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url})
        assert (code, findings(data, "failure")) == (0, "")
        assert receiver.records(1)


@pytest.mark.parametrize(
    ("name", "value"),
    [("SPLUNK_PROFILER_OUTPUT", "datadog:htps://agent"), ("SPLUNK_PROFILER_LOGS_ENDPOINT", "grpc://127.0.0.1:4317")],
)
def test_a_mistyped_destination_is_the_reason_and_nothing_is_sent(name: str, value: str, collector: Collector) -> None:
    code, data = examined({**ON, "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{collector.address}", name: value})
    assert code == 1
    (reason,) = findings(data, "failure").splitlines()
    assert f"{name}={value!r} is not usable" in reason
    assert "(allowed: " in reason
    assert name not in findings(data, "warning")
    assert not [entry for entry in data["findings"] if entry["section"] == "Test"]
    collector.end()
    assert collector.lines("logs.jsonl") == []


def test_a_host_without_an_address_is_the_reason() -> None:
    _, data = examined({**ON, "OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector.invalid:4317"}, "--no-export")
    assert "collector.invalid has no address" in findings(data, "failure")


def test_a_collector_without_tls_behind_an_https_endpoint_is_the_reason(collector: Collector) -> None:
    code, data = examined({**ON, "OTEL_EXPORTER_OTLP_ENDPOINT": f"https://{collector.address}"})
    assert code == 1
    assert f"OTEL_EXPORTER_OTLP_ENDPOINT=http://{collector.address}" in findings(data, "failure")


def test_settings_are_listed_and_those_that_lead_elsewhere_pointed_out() -> None:
    env = {
        **ON,
        "SPLUNK_PROFILER_CALL_STACK_INTERVAL": "250",
        "SPLUNK_PROFILER_EXPORT_INTERVAL": "abc",
        "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT": "http://logs:4317",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        "SPLUNK_PROFILER_TRACING_STACKS_ONLY": "true",
        "https_proxy": "http://proxy:3128",
    }
    _, data = examined(env, "--no-export")
    rows = {entry["name"]: (entry["value"], entry["origin"]) for entry in data["settings"]}
    assert rows.keys() == {setting.name for setting in SETTINGS}
    assert rows["SPLUNK_PROFILER_CALL_STACK_INTERVAL"] == ("250", "environment")
    assert rows["SPLUNK_PROFILER_MAX_STACK_DEPTH"] == ("1024", "default")
    said = findings(data, "note") + findings(data, "warning")
    for words in ("profiles do not follow it", "always travel over gRPC", "samples outside of spans", "https_proxy is"):
        assert words in said
    assert "SPLUNK_PROFILER_EXPORT_INTERVAL='abc'" in findings(data, "warning")


def test_a_running_process_is_examined_with_its_own_environment(collector: Collector, tmp_path: Path) -> None:
    program = tmp_path / "service.py"
    program.write_text("print('ready', flush=True); input()", "utf-8")
    options = ["--endpoint", f"http://{collector.address}", "--interval-ms", "5", "--export-interval-ms", "20"]
    process = subprocess.Popen(
        [*COMMAND, "run", *options, "--", sys.executable, str(program)],
        env=clean_environment(),
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        code, data = examined({}, "--pid", str(process.pid))
    finally:
        process.communicate("\n", timeout=DEADLINE_S)
    assert code == 0, data
    rows = {entry["name"]: entry["value"] for entry in data["settings"]}
    assert rows["SPLUNK_PROFILER_CALL_STACK_INTERVAL"] == "5"
    assert data["endpoint"]["target"] == collector.address
    assert str(program) in findings(data, "note")


def test_nothing_is_made_in_the_directory_of_another_users_process(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    env = clean_environment({**ON, "SPLUNK_PROFILER_OUTPUT": f"file:{tmp_path}/profiles"})
    with subprocess.Popen(["cat"], env=env, stdin=subprocess.PIPE, user=_NOBODY) as process:
        _, data = examined({}, "--pid", str(process.pid))
    (finding,) = (entry for entry in data["findings"] if entry["section"] == "Test")
    assert (finding["verdict"], finding["subject"]) == ("note", "test export")
    assert f"user {_NOBODY}" in finding["remedy"]
    assert "directory: not tried" in findings(data, "warning")
    assert "can be written to" not in findings(data, "ok")
    assert not [*tmp_path.iterdir()]


def test_root_that_may_not_read_a_process_is_told_what_that_takes() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, user=_NOBODY) as process:
        command = (
            "setpriv",
            "--bounding-set=-sys_ptrace,-perfmon,-sys_admin",
            *COMMAND,
            "doctor",
            "--pid",
            str(process.pid),
        )
        ended = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=DEADLINE_S, check=False)
        process.communicate()
    assert (ended.returncode, "CAP_SYS_PTRACE" in ended.stderr) == (1, True), ended.stderr


@_PUBLISHES
def test_socket_of_a_process_is_tried_where_its_temporary_files_are() -> None:
    with (
        TemporaryDirectory(prefix="t") as directory,
        subprocess.Popen(["cat"], env=clean_environment({**ON, "TMPDIR": directory}), stdin=subprocess.PIPE) as process,
    ):
        _, data = examined({}, "--no-export", "--pid", str(process.pid))
        assert f"it can be made in {directory}" in findings(data, "ok")


def test_a_collector_at_a_relative_path_is_where_the_process_would_find_it(tmp_path: Path) -> None:
    env = clean_environment({**ON, "OTEL_EXPORTER_OTLP_ENDPOINT": "unix:c.sock"})
    with (
        Receiver(path=tmp_path / "c.sock") as receiver,
        subprocess.Popen(["cat"], env=env, cwd=tmp_path, stdin=subprocess.PIPE) as process,
    ):
        _, data = examined({}, "--pid", str(process.pid))
        assert "accepts connections" in findings(data, "ok")
        assert receiver.records(1)


@_PUBLISHES
def test_no_directory_is_made_where_sockets_are_to_be(tmp_path_factory: pytest.TempPathFactory) -> None:
    place = tmp_path_factory.mktemp("s")  # paths of sockets are short
    named = {"ELASTIC_OTEL_UNIVERSAL_PROFILING_INTEGRATION_SOCKET_DIR": f"{place}/run/s"}
    _, data = examined({**ON, **named}, "--no-export")
    assert f"socket: {place}/run/s is missing" in findings(data, "note")
    if os.geteuid() == 0:  # only root can become another user
        env = clean_environment({**ON, **named})
        with subprocess.Popen(["cat"], env=env, stdin=subprocess.PIPE, user=_NOBODY) as process:
            _, data = examined({}, "--pid", str(process.pid), "--no-export")
        assert "socket: not tried" in findings(data, "note")
    assert not [*place.iterdir()]


def test_a_process_that_is_not_there_or_is_not_python_is_an_error() -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        _, data = examined({}, "--pid", str(process.pid), "--no-export")
        assert "no Python in it" in findings(data, "failure")
    ended = splunk_profiler("doctor", "--pid", str(process.pid))
    assert (ended.returncode, ended.stderr) == (
        1,
        f"splunk-profiler: error: there is no process {process.pid}\n",
    )


@_PUBLISHES
def test_it_says_whether_host_profilers_could_read_the_context(tmp_path: Path) -> None:
    _, data = examined({**ON, "OTEL_SERVICE_NAME": "shop"}, "--no-export")
    good = findings(data, "ok")
    assert "correlation: on (ELASTIC_OTEL_UNIVERSAL_PROFILING_INTEGRATION_ENABLED is auto, as sampling is)" in good
    assert good.count("thread-local storage: static") == 2
    assert "service: 'shop'" in good
    directory = {"ELASTIC_OTEL_UNIVERSAL_PROFILING_INTEGRATION_SOCKET_DIR": str(tmp_path / ("x" * 90))}
    code, data = examined({**ON, **directory, "SPLUNK_PROFILER_CUSTOM_LABELS_ENABLED": "false"}, "--no-export")
    assert "ELASTIC_OTEL_UNIVERSAL_PROFILING_INTEGRATION_SOCKET_DIR" in findings(data, "warning")
    assert "custom labels: off (SPLUNK_PROFILER_CUSTOM_LABELS_ENABLED is false)" in findings(data, "note")
    assert code == 1  # for the collector, which is not there
