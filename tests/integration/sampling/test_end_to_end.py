"""One whole run, as a user does it: an unchanged program under ``splunk-profiler run``, and what its collector gets.

Needs only the package's own dependencies and the exporter of spans: it is run on every interpreter.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from receiver_process import Receiver
from target_process import TESTS, Target

Record = dict[str, Any]
HEADER = re.compile(
    r'"(?P<name>[^"]*)" #\d+ prio=0 os_prio=-?\d+ cpu=\d+\.\d\dms elapsed=\d+\.\d\ds'
    r" tid=0x[0-9a-f]+ nid=0x[0-9a-f]+ \S.*"
)
FRAME = re.compile(r"\tat \S.*\.[^.]+\(.+?(:\d+)?\)")


def _mentions(function: str, record: Record) -> bool:
    return function in record["body"]


@pytest.fixture(scope="module", params=["auto", "portable"])
def run(request: pytest.FixtureRequest) -> Iterator[tuple[list[Record], dict[str, tuple[str, str]], list[Record]]]:
    """The records from when it was ready on, each span's (trace id, span id) by its name, and the exported spans."""
    options = ["--interval-ms", "10", "--export-interval-ms", "50", "--walker", request.param]
    command = [sys.executable, "-m", "splunk_profiler", "run", *options, "--", sys.executable]
    with Receiver() as receiver:
        settings = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url, "SPLUNK_PROFILER_MAX_OVERHEAD": "off"}
        with Target(*command, str(TESTS / "targets" / "end_to_end.py"), env=settings) as target:
            ready_ns = int(target.line("ready"))
            ids = {name: (trace_id, span_id) for name, trace_id, span_id in map(str.split, target.lines(2, "span "))}
            for function in ("work_in_a_thread", "work_in_a_task", "wait_outside"):
                receiver.records(20, partial(_mentions, function))
            target.close_stdin()
            assert target.finish() == 0, target.output
        # Earlier samples belong to the start, when the program has not set its provider yet.
        yield receiver.records(0, lambda record: record["time_ns"] >= ready_ns), ids, receiver.spans(2)


def test_each_sample_is_in_the_span_whose_function_is_on_its_stack(run: Any) -> None:
    records, ids, _ = run
    for function, span in (("work_in_a_thread", "thread"), ("work_in_a_task", "task")):
        # Before the loop begins and after it ends the function is there, but its span is not.
        seen = [record for record in records if f"{function}(" in record["body"] and "compute(" in record["body"]]
        assert len(seen) > 5
        assert {(record["trace_id"], record["span_id"]) for record in seen} == {ids[span]}


def test_a_sample_outside_of_spans_has_no_ids(run: Any) -> None:
    records, _, _ = run
    seen = [record for record in records if "wait_outside" in record["body"]]
    assert {(record["trace_id"], record["span_id"]) for record in seen} == {("", "")}


def test_the_ids_are_those_of_the_spans_that_were_exported(run: Any) -> None:
    _, ids, spans = run
    assert {(span["trace_id"], span["span_id"]) for span in spans} == set(ids.values())


def test_every_record_is_what_the_conventions_say(run: Any) -> None:
    records, _, _ = run
    for record in records:
        assert record["scope"] == ["otel.profiling", "0.1.0"]
        assert record["event_name"] == "otel.profiling"
        assert record["attributes"]["com.splunk.sourcetype"] == "otel.profiling"
        assert record["attributes"]["source.event.period"] == 10
        assert record["resource"]["service.name"] == "end to end"
        assert record["resource"]["set.in.code"] is True
        header, state, *frames, end = record["body"].split("\n")
        assert HEADER.fullmatch(header), header
        assert state.startswith("   python.Thread.State: ")
        assert frames
        assert end == ""
        assert not [frame for frame in frames if not FRAME.fullmatch(frame)]


def test_no_thread_of_the_profiler_or_of_an_exporter_is_among_the_samples(run: Any) -> None:
    records, _, _ = run
    stacks = {HEADER.match(record["body"])["name"]: record["body"] for record in records}  # type: ignore[index]
    assert stacks.keys() == {"MainThread", "worker", "loop"}, [*stacks.values()]
