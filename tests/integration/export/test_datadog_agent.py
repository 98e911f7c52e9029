"""A profiled service whose profiles go to a Datadog agent: Datadog's test agent, one that is gone, one that refuses."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from answering_server import AnsweringServer, http_response
from datadog_agent import DatadogAgent, NotInstallableError, install_agent
from datadog_form import ReadForm, read_form, sample_labels, sums_of_values
from target_process import Target, profiling_settings
from walker_marks import NATIVE

UNREACHABLE_URL = "http://127.0.0.1:9"


def sent_to(url: str, interval_ms: int = 200) -> dict[str, str]:
    """The settings with which a target is profiled into an agent. The collector's endpoint must not matter."""
    return {
        **profiling_settings(UNREACHABLE_URL, 10),
        "SPLUNK_PROFILER_OUTPUT": f"datadog:{url}",
        "SPLUNK_PROFILER_EXPORT_INTERVAL": str(interval_ms),
        "OTEL_SERVICE_NAME": "shop",
        "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=prod,service.version=1.2,team=shop%2Cfront",
        "DD_TAGS": "region:eu, zone:a",
    }


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[DatadogAgent]:
    try:
        program = install_agent()
    except NotInstallableError as error:
        pytest.skip(str(error))
    with DatadogAgent(program, tmp_path) as running:
        yield running


@NATIVE
def test_datadog_agent_takes_profiles_with_its_own_names_for_spans(agent: DatadogAgent) -> None:
    with Target("accounted_work.py", "tasks", "2", env=sent_to(agent.url, 500)) as target:
        roots = target.json("ledger")["roots"]
        assert target.finish() == 0, target.output
        pid = target.pid
    forms = agent.forms(3)
    for form in forms:
        assert (form.event["family"], form.event["version"]) == ("python", "4")
        wanted = {"service": "shop", "env": "prod", "version": "1.2", "language": "python", "process_id": str(pid)}
        wanted |= {"team": "shop_front", "region": "eu", "zone": "a"}
        assert {name: form.tags.get(name) for name in wanted} == wanted
        assert form.tags["runtime-id"]
        assert form.event["start"] < form.event["end"]
    assert len({form.event["start"] for form in forms}) == len(forms), "each period once"
    in_spans = [labels for form in forms for labels in sample_labels(form.profile) if "span id" in labels]
    as_numbers = {int(span, 16): int(root, 16) for span, root in roots.items()}
    found = {int(labels["span id"]) % 2**64: int(labels["local root span id"]) % 2**64 for labels in in_spans}
    assert as_numbers.items() <= found.items()
    assert {f"GET /items/{number}" for number in range(10)} <= {labels["trace endpoint"] for labels in in_spans}


@NATIVE
def test_datadog_agent_takes_memory_with_the_names_that_it_has_for_it(agent: DatadogAgent) -> None:
    memory = {"SPLUNK_PROFILER_MEMORY_ENABLED": "true", "SPLUNK_PROFILER_MEMORY_SAMPLE_BYTES": "50000"}
    with Target("allocating_work.py", "once", env=sent_to(agent.url, 60_000) | memory) as target:
        ledger = target.json("ledger")
        assert target.finish() == 0, target.output
    sums = [sums_of_values(form.profile) for form in agent.forms(2)]
    (found,) = [each for each in sums if "alloc-space" in each]
    assert found.keys() == {"alloc-samples", "alloc-space", "heap-live-samples", "heap-space"}
    assert found["alloc-space"] >= 0.85 * ledger["bytes"]
    assert found["heap-space"] >= 0.8 * ledger["kept"]
    assert found["alloc-samples"] > found["heap-live-samples"] > 0


def test_a_service_whose_agent_is_gone_works_and_says_so_once() -> None:
    with Target("accounted_work.py", "busy", "1", env=sent_to(UNREACHABLE_URL)) as target:
        assert target.json("ledger")
        assert target.finish() == 0, target.output
        said = target.final_output()
    assert said.count("profiling records are not delivered") == 1
    assert f"no Datadog agent can be reached at {UNREACHABLE_URL} (Connection refused)" in said


def test_a_service_whose_agent_refuses_works_and_says_so_once() -> None:
    with AnsweringServer(http_response(404, "profiling is switched off")) as server:
        url = f"http://127.0.0.1:{server.port}"
        with Target("accounted_work.py", "busy", "1", env=sent_to(url)) as target:
            assert target.json("ledger")
            assert target.finish() == 0, target.output
            said = target.final_output()
        server.wait(3)
    assert said.count("profiling records are not delivered") == 1
    assert f"{url} answered 404 (profiling is switched off); it takes no profiles" in said


@pytest.mark.parametrize("exporter", ["auto", "thread"])
def test_a_profile_that_an_agent_finds_too_large_arrives_in_parts(exporter: str) -> None:
    with AnsweringServer(http_response(413), http_response(200)) as server:
        env = sent_to(f"http://127.0.0.1:{server.port}", interval_ms=60_000)
        env["SPLUNK_PROFILER_EXPORTER"] = exporter
        with Target("accounted_work.py", "tasks", "1", env=env) as target:
            assert target.json("ledger")
            assert target.finish() == 0, target.output
            assert "profiling records" not in target.final_output()
        forms = [form_in(request) for request in server.requests]
    refused, *parts = [len(form.profile.sample) for form in forms]
    assert len(parts) > 1
    assert sum(parts) == refused
    owners = json.loads(gzip.decompress(forms[0].files["code-provenance.json"]))["v1"]
    names = {owner["name"] for owner in owners}
    assert "stdlib" in names
    assert names & {"opentelemetry-api", "unknown"}  # what a busy machine does not find in 0.3 s is unknown for now


def form_in(request: bytes) -> ReadForm:
    """Return the form in a request."""
    head, _, body = request.partition(b"\r\n\r\n")
    content_type = head.decode("ascii").partition("Content-Type: ")[2].partition("\r\n")[0]
    return read_form(content_type, body)


_FORKING = """
import os, splunk_profiler
assert splunk_profiler.start()
input()
child = os.fork()
if child == 0:
    os._exit(0)
print("child", os.waitpid(child, 0)[1], flush=True)
input()
"""


@pytest.mark.parametrize("exporter", ["auto", "thread"])
def test_agent_that_never_answers_delays_neither_fork_nor_exit(exporter: str) -> None:
    with AnsweringServer(None) as server:
        env = {**sent_to(f"http://127.0.0.1:{server.port}"), "SPLUNK_PROFILER_EXPORTER": exporter}
        with Target(sys.executable, "-c", _FORKING, env=env) as target:
            server.wait(1)
            target.tell("")
            assert target.line("child") == "0"
            server.wait(2 if exporter == "thread" else 1)  # what was interrupted for the fork is sent again
            target.tell("")
            assert target.finish() == 0, target.output
            assert "had to be ended" in target.final_output()
