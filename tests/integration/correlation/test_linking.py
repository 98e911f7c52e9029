"""From a trace to its profile: spans as a real exporter sends them and profiles have what it takes to be joined."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from received_profiles import read
from receiver_process import Receiver
from target_process import Target, profiling_settings

_PROCESSES = 2


def _links_of(spans: list[dict[str, Any]]) -> set[tuple[str, str, str]]:
    """(runtime id, local root, span) of each span."""
    parents = {span["span_id"]: span["parent_span_id"] for span in spans}

    def root(span_id: str) -> str:
        while parents.get(span_id):
            span_id = parents[span_id]
        return span_id

    return {(span["resource"]["runtime-id"], root(span["span_id"]), span["span_id"]) for span in spans}


def _links_in(records: list[dict[str, Any]], data_format: str) -> Counter[tuple[str, str, str]]:
    """The same of each sample of the work that is done inside spans; text has no local root."""
    found: Counter[tuple[str, str, str]] = Counter()
    for record in records:
        runtime_id = record["resource"]["runtime-id"]
        if data_format == "text":
            if ".price_items(" in record["body"]:
                found[runtime_id, "", record["span_id"]] += 1
            continue
        for sample in read(record).samples:
            if "__main__.price_items" in sample.functions:
                labels = sample.labels
                found[runtime_id, str(labels["local_root_span_id"]), str(labels["span_id"])] += sample.count
    return found


def _is_of(pid: int, record: dict[str, Any]) -> bool:
    return bool(record["resource"]["process.pid"] == pid)


def _run(
    data_format: str, provider: str, on_spans: str, exporter: str = "auto"
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], set[int]]:
    """The records and spans of a service and its forked child, and their process ids."""
    with Receiver() as receiver:
        env = profiling_settings(
            receiver.url,
            5,
            SPLUNK_PROFILER_DATA_FORMAT=data_format,
            SPLUNK_PROFILER_EXPORT_INTERVAL="200",
            SPLUNK_PROFILER_SPAN_RUNTIME_ID_ENABLED=on_spans,
            SPLUNK_PROFILER_EXPORTER=exporter,
            OTEL_SERVICE_NAME="linked",
        )
        with Target("linked_service.py", provider, env=env) as target:
            if provider == "late":
                target.line("started")
                receiver.records(1)  # one that was sent before there was a provider
                target.tell("go on")
            pids = {int(pid) for pid in target.lines(_PROCESSES, "ready")}
            for pid in pids:
                receiver.records(3, partial(_is_of, pid))
            target.tell("stop")
            assert target.line("done") == "0"
            assert target.finish() == 0, target.output
        return receiver.records(1), receiver.spans(1), pids


def _instances(of: list[dict[str, Any]], key: str) -> dict[Any, set[str]]:
    """Return the set of ``service.instance.id`` for each value of `key` in the resource."""
    found: dict[Any, set[str]] = {}
    for one in of:
        found.setdefault(one["resource"].get(key), set()).add(one["resource"].get("service.instance.id", ""))
    return {value: ids - {""} for value, ids in found.items()}


@pytest.mark.parametrize(
    ("data_format", "provider", "exporter"), [("pprof-gzip-base64", "early", "thread"), ("text", "late", "auto")]
)
def test_samples_and_spans_of_parent_and_forked_child_are_joined_by_ids(
    data_format: str, provider: str, exporter: str
) -> None:
    records, spans, pids = _run(data_format, provider, "true", exporter)
    of_spans = _links_of(spans)
    found = _links_in(records, data_format)
    assert sum(found.values()) > 10
    if data_format == "text":
        assert {(runtime_id, span_id) for runtime_id, _, span_id in found} <= {
            (runtime_id, span_id) for runtime_id, _, span_id in of_spans
        }
    else:
        assert found.keys() <= of_spans
    runtime_ids = {record["resource"]["process.pid"]: record["resource"]["runtime-id"] for record in records}
    assert runtime_ids.keys() == pids
    assert len(set(runtime_ids.values())) == _PROCESSES
    assert {runtime_id for runtime_id, _, _ in found} == {runtime_id for runtime_id, _, _ in of_spans}
    assert all(len(ids) == 1 for ids in _instances([*records, *spans], "runtime-id").values())
    for record in [*records, *spans]:
        assert UUID(record["resource"]["runtime-id"]).version == 4
        assert record["resource"]["service.name"] == "linked"


@pytest.mark.parametrize("provider", ["early", "late"])
def test_spans_are_the_applications_own_unless_asked_and_no_process_is_two(provider: str) -> None:
    records, spans, pids = _run("text", provider, "auto")
    assert not [span for span in spans if "runtime-id" in span["resource"]]
    assert {record["span_id"] for record in records if ".price_items(" in record["body"]} <= {
        span["span_id"] for span in spans
    }
    by_pid = _instances(records, "process.pid")
    assert by_pid.keys() == pids
    assert all(len(ids) <= 1 for ids in by_pid.values())
    assert {record["resource"]["service.name"] for record in [*records, *spans]} == {"linked"}
