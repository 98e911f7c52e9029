"""The doctor says what became of the records of a running service, and what blocks its event loop."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from command_line import COMMAND, ROOT, TARGETS, UNREACHABLE_URL, splunk_profiler
from received_profiles import blocks_loop
from receiver_process import Receiver
from target_process import Target, profiling_settings

pytest.importorskip("splunk_profiler._walker")
from exporter_processes import end_with_exporters
from pid_namespace import NAMESPACE, children, process_1, skip_without_namespace

_PASSWORD = "correct-horse"  # noqa: S105

_BLOCKER = "__main__.render_pdf"


@contextmanager
def _service(receiver_url: str, **settings: str) -> Iterator[Target]:
    """Run a service whose requests block its event loop."""
    env = profiling_settings(receiver_url, 10, SPLUNK_PROFILER_DATA_FORMAT="pprof-gzip-base64", **settings)
    with Target("blocking_loop.py", "GET /invoice", "invoice", env=env) as target:
        yield target
        end_with_exporters(target)


def _examine(pid: int) -> tuple[int, dict[str, Any], str]:
    """Return exit code and answer of the doctor, and a line for each finding on records."""
    ended = splunk_profiler("doctor", "--no-export", "--json", "--pid", str(pid))
    data = json.loads(ended.stdout)
    found = [each for each in data["findings"] if each["section"] == "Records"]
    return ended.returncode, data, "\n".join(f"{each['verdict']} {each['subject']}: {each['fact']}" for each in found)


def test_service_with_a_blocked_loop_shows_what_blocks_it() -> None:
    with (
        Receiver() as receiver,
        _service(receiver.url, OTEL_EXPORTER_OTLP_HEADERS=f"authorization={_PASSWORD}") as target,
    ):
        receiver.record(lambda record: blocks_loop(record, _BLOCKER))
        code, data, found = _examine(target.pid)
        shown = splunk_profiler("doctor", "--no-export", "--pid", str(target.pid)).stdout
    assert (code, data["samples_would_flow"]) == (0, True)
    status = data["records"]
    # Beside busy processes others seem to block it as well.
    blocker = next(each for each in status["loop_blockers"] if each["function"] == _BLOCKER)
    assert (blocker["task"], blocker["endpoint"]) == ("invoice", "GET /invoice")
    assert blocker["blocked_ns"] > 100_000_000 * blocker["blocks"] > 0
    assert status["counters"]["delivered"] > 0
    assert (status["failed_age_s"], status["lost_snapshots"]) == (None, 0)
    assert status["period_ms"] == status["configured_period_ms"] == 10
    assert f"ok delivery: last delivered {status['delivered_age_s']:.1f} s ago, to {receiver.url}" in found
    assert f"warning event loop: {_BLOCKER} blocked it" in found
    assert "total (task invoice, endpoint GET /invoice)" in " ".join(shown.split())
    assert _PASSWORD not in json.dumps(data) + shown


def test_dead_collector_shows_the_error_and_what_waits() -> None:
    with _service(UNREACHABLE_URL) as target:
        target.line("profiling records are not delivered:")
        code, data, found = _examine(target.pid)
    counters = data["records"]["counters"]
    assert code == 1
    assert counters["recorded"] == counters["waiting"] > 0 == counters["delivered"]
    assert f"{counters['recorded']:,} profiles made in " in found
    assert f", 0 sent, {counters['waiting']:,} waiting" in found
    assert f"failure delivery: nothing delivered yet, to {UNREACHABLE_URL} " in found
    assert "s ago: no collector can be reached at " in found


def test_receiver_that_refuses_profiles_is_said_to_be_why_they_are_lost() -> None:
    with Receiver(mode="refuse INVALID_ARGUMENT") as receiver, _service(receiver.url) as target:
        target.line("profiling records are not delivered:")
        code, data, found = _examine(target.pid)
    assert code == 1
    assert f"warning lost: {data['records']['counters']['rejected']} because the receiver refused them" in found
    assert "refused with INVALID_ARGUMENT by the test" in found


def test_threads_that_export_are_said_not_to_be_asked() -> None:
    with Receiver() as receiver, _service(receiver.url, SPLUNK_PROFILER_EXPORTER="thread") as target:
        receiver.records(1)
        _, data, found = _examine(target.pid)
    assert (data["records"], found) == (None, "")
    (finding,) = (each for each in data["findings"] if (each["section"], each["subject"]) == ("Process", "exporter"))
    assert "threads of its own make records and send them" in finding["fact"]
    assert "logger splunk_profiler" in finding["remedy"]


def test_process_of_a_container_is_known_to_the_exporter_there() -> None:
    skip_without_namespace()
    with Receiver() as receiver:
        words = [*COMMAND, "run", "--", sys.executable, str(TARGETS / "exported_service.py")]
        with Target(*NAMESPACE, *words, env=profiling_settings(receiver.url, 10), cwd=ROOT) as target:
            receiver.record()
            application, _ = children(process_1(target.pid))
            _, data, found = _examine(application)
            target.tell("stop")
            assert target.finish() == 0, target.output
    assert data["records"]["counters"]["delivered"] > 0
    assert found.startswith("ok records: ")
