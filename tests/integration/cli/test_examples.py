"""Every example is run as its text says, and does what it says."""

from __future__ import annotations

import ast
import gzip
import json
import os
import pty
import re
import signal
import subprocess
import sys
import urllib.request
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from command_line import COMMAND, DEADLINE_S, ROOT, clean_environment, run_collector, splunk_profiler
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.sdk.resources import Resource
from permissions import find_open_to_others
from profile_factory import large_profile, message, small_profile

from splunk_profiler.cli.receiver import to_json
from splunk_profiler.code_origin.classifier import CodeClassifier
from splunk_profiler.export.otlp.profile_records import ProfileEncoder
from splunk_profiler.model import DataType
from splunk_profiler.samples import InstrumentationSource

EXAMPLES = ROOT / "examples"
RUN_BELOW = {"batch.py", "extract_profiles.py", "seen_from_outside.py", "shop"}
RUN_ELSEWHERE = {"leaky.py"}  # by test_memory.py, on each interpreter
PUBLISHES = find_spec("splunk_profiler._context") is not None


def report_of(directory: Path) -> dict[str, Any]:
    ended = splunk_profiler("report", directory, "--json")
    assert ended.returncode == 0, ended.stderr
    data: dict[str, Any] = json.loads(ended.stdout)
    return data


def functions(data: dict[str, Any], span: str) -> set[str]:
    whole = data["by_span"][span]
    return {entry["function"] for entry in whole["functions"] + whole["waiting_functions"]}


def imports(path: Path) -> str:
    """The import statements of a file."""
    nodes = ast.walk(ast.parse(path.read_text("utf-8")))
    return "\n".join(ast.unparse(node) for node in nodes if isinstance(node, ast.Import | ast.ImportFrom))


def test_there_is_no_example_that_is_not_run() -> None:
    shown = {path.name for path in EXAMPLES.iterdir() if not path.name.startswith(("_", "."))}
    assert shown == RUN_BELOW | RUN_ELSEWHERE


def test_demo_reports_where_spans_spend_time_in_an_unmodified_service(
    tmp_path: Path,
) -> None:
    for path in (EXAMPLES / "shop").glob("*.py"):
        assert "profiler" not in imports(path)
    ended = splunk_profiler("demo", "--seconds", "5", "--interval-ms", "10", "--output", tmp_path)
    assert ended.returncode == 0, ended.stderr + ended.stdout
    for words in (
        "samples received",
        "inside spans",
        "Hottest functions in rank products",
        "Where threads waited",
        "One record as received",
    ):
        assert words in ended.stdout
    assert find_open_to_others(tmp_path) == []
    assert (tmp_path / "profile.html").as_uri() in ended.stdout
    assert "shop.pricing.rank" in (tmp_path / "profile.html").read_text("utf-8")
    data = report_of(tmp_path)
    assert data["services"].keys() == {"shop"}
    assert data["samples_in_spans"] > 10  # a busy machine serves few requests
    assert "shop.pricing.rank" in functions(data, "rank products")
    assert "shop.database.place_order" in functions(data, "write order")
    assert "shop.database.candidates" in functions(data, "scan products")
    # The span is attached to the thread or task that works in it, and to no other.
    for span in ("rank products", "scan products"):
        whole = data["by_span"][span]
        both = whole["functions"] + whole["waiting_functions"]
        assert sum(entry["total"] for entry in both if entry["function"] == "shop.app.search") == whole["samples"]
    assert data["record"]["as_received"]["eventName"] == "otel.profiling"
    # Then the same of aggregated profiles, for each endpoint.
    profiles = data["profiles"]
    for title in ("Aggregated profile by CPU time", "Aggregated profile by wall time"):
        assert ended.stdout.index(title) > ended.stdout.index("One record as received")
    assert {"GET /search", "POST /orders", "GET /receipts/{order_id}"} <= profiles["endpoints"].keys()
    searching = {entry["function"]: entry for entry in profiles["endpoints"]["GET /search"]["functions"]}
    assert searching["shop.pricing.rank"]["kind"] == "application"
    assert {entry["distribution"].partition("==")[0] for entry in searching.values()} >= {"anyio", "fastapi", "python"}
    if PUBLISHES:
        # On a busy machine the service's socket may be full at times.
        line_end = r"samples of transactions to the service(?:; [\d,]+ were lost)?$"
        (sent,) = re.findall(rf"the stand-in sent ([\d,]+) {line_end}", ended.stdout, re.M)
        # Of what was sent for one that had ended before the service heard of a host profiler, nothing comes back.
        assert 0 < data["stack_trace_ids"] <= int(sent.replace(",", ""))
        assert 0 < data["transactions_with_stack_traces"] <= data["transactions"]
        for words in ("carry stack-trace ids from it", "of which the host profiler has said most"):
            assert words in ended.stdout


def test_demo_on_a_terminal_without_publishing_ends_with_the_page(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    command = [*COMMAND, "demo", "--seconds", "1", "--interval-ms", "10", "--output", str(tmp_path)]
    off = {"ELASTIC_OTEL_UNIVERSAL_PROFILING_INTEGRATION_ENABLED": "false"}
    env = clean_environment({"COLUMNS": "200", "TERM": "xterm", **off})
    with subprocess.Popen(command, env=env, cwd=ROOT, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        printed = b""
        while (found := re.search(rb"until Ctrl-C it is shown at (http://\S+/)\r", printed)) is None:
            printed += os.read(ours, 1 << 16)
        with urllib.request.urlopen(found[1].decode() + "api/overview") as answer:
            assert json.loads(answer.read())["samples"] > 0
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE_S) == 0
    os.close(ours)
    (line,) = [line for line in printed.decode().splitlines() if "the stand-in" in line]
    assert "the demo went on without it: no library that publishes it is loaded" in line
    assert "stack-trace ids" not in printed.decode()
    assert report_of(tmp_path)["transactions_with_stack_traces"] == 0


@pytest.mark.skipif(not PUBLISHES, reason="the extension is not built")
def test_host_profiler_example_prints_span_and_labels_of_each_thread() -> None:
    ended = subprocess.run(
        [sys.executable, EXAMPLES / "seen_from_outside.py"],
        env=clean_environment(),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    at_work = re.findall(r"^thread \d+: trace [0-9a-f]{32}, span [0-9a-f]{16}, labels (\{'.*)$", ended.stdout, re.M)
    assert len(at_work) >= 5
    for labels in at_work:
        seen = ast.literal_eval(labels)
        assert seen.keys() == {"route", "customer"}
        assert seen["route"] == "/primes"
        assert seen["customer"] in ("anna", "bo")


def test_an_interrupted_demo_leaves_no_process_behind(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*COMMAND, "demo", "--seconds", "600", "--output", str(tmp_path)],
        env={**clean_environment(), "PYTHONUNBUFFERED": "1"},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = ""
        while not line.startswith("4 "):
            line = process.stdout.readline()
            assert line, process.communicate(timeout=DEADLINE_S)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        assert len(children) == 3
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=DEADLINE_S)
    finally:
        process.terminate()
        process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 128 + signal.SIGTERM
    assert not [child for child in children if Path(f"/proc/{child}").exists()]


def test_a_demo_whose_service_fails_shows_what_the_service_printed(tmp_path: Path) -> None:
    (tmp_path / "examples" / "shop").mkdir(parents=True)
    (tmp_path / "examples" / "shop" / "app.py").write_text("raise RuntimeError('the shop is closed')", "utf-8")
    ended = splunk_profiler("demo", "--examples", tmp_path / "examples", "--output", tmp_path / "out")
    assert ended.returncode == 1
    assert "the service" in ended.stderr
    assert "RuntimeError: the shop is closed" in ended.stderr


def test_the_batch_job_is_profiled_when_it_is_switched_on_and_only_then(tmp_path: Path) -> None:
    with run_collector(tmp_path) as collector:
        endpoint = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{collector.address}"}
        for switch in ({}, {"SPLUNK_PROFILER_ENABLED": "true", "SPLUNK_PROFILER_CALL_STACK_INTERVAL": "10"}):
            ended = subprocess.run(
                [sys.executable, EXAMPLES / "batch.py", "100000", "150000"],
                env=clean_environment({**endpoint, **switch, "PYTHONPATH": os.environ.get("PYTHONPATH", "")}),
                capture_output=True,
                text=True,
                timeout=DEADLINE_S,
                check=True,
            )
            assert ended.stdout == "9592 primes below 100000\n13848 primes below 150000\n"
            if not switch:
                assert (tmp_path / "logs.jsonl").read_text() == ""
        collector.end()
    data = report_of(tmp_path)
    assert "__main__.count_primes" in functions(data, "count primes")
    assert data["services"].keys() == {"batch"}


@pytest.mark.parametrize(("name", "argument"), [("logs.jsonl", "."), ("profiles.jsonl", "profiles.jsonl")])
def test_profiles_are_taken_out_of_what_a_collector_has_saved(tmp_path: Path, name: str, argument: str) -> None:
    allocated = replace(small_profile(), data_type=DataType.ALLOCATION)
    profiles = [
        small_profile(),
        replace(small_profile(), source=InstrumentationSource.SNAPSHOT),
        large_profile(3),
        allocated,
    ]
    requests = [ProfileEncoder(lambda: Resource({})).encode([profile]) for profile in profiles]
    text = {"body": {"stringValue": "a dump"}, "attributes": [{"key": "profiling.data.format", "value": {}}]}
    lines = [json.dumps(to_json(ExportLogsServiceRequest.FromString(request))) for request in requests]
    lines += [json.dumps({"resourceLogs": [{"scopeLogs": [{"logRecords": [text]}]}]}), '{"resourceLogs": []}']
    half_written = lines[0][:1000]
    (tmp_path / name).write_text("\n".join([*lines, half_written]), "utf-8")
    ended = subprocess.run(
        [sys.executable, str(EXAMPLES / "extract_profiles.py"), str(tmp_path / argument)],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=True,
    )
    found = [Path(line) for line in ended.stdout.splitlines()]
    names = ("0001.pprof", "0002-snapshot.pprof", "0003.pprof", "0004-allocation.pprof")
    assert found == [tmp_path / name for name in names]
    whose = CodeClassifier().classify
    assert [gzip.decompress(path.read_bytes()) for path in found] == [message(each, whose) for each in profiles]
