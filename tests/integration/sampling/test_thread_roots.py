"""Threads and tasks whose first function is C code or of a decorator, as a collector receives them."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import pytest
from ledger_run import run_target
from received_profiles import ProfileSample, all_samples, read
from receiver_process import Receiver
from target_process import Target, profiling_settings

pytestmark = pytest.mark.skipif(
    find_spec("splunk_profiler._walker") is None, reason="the native walker is not built for this interpreter"
)
_FORMAT = {"SPLUNK_PROFILER_DATA_FORMAT": "pprof-gzip-base64"}


def _has_sample(function: str, labels: dict[str, str]) -> Callable[[dict[str, Any]], bool]:
    """Return the predicate of records whose profile has a sample of this function with these labels."""

    def is_wanted(sample: ProfileSample) -> bool:
        return f"__main__.{function}" in sample.functions and sample.labels.items() >= labels.items()

    return lambda record: any(map(is_wanted, read(record).samples))


def test_what_labels_decorate_is_sampled_in_threads_and_tasks() -> None:
    with Receiver() as receiver:
        env = profiling_settings(receiver.url, 10, OTEL_SERVICE_NAME="decorated", **_FORMAT)
        with Target("thread_roots.py", "decorated", env=env) as target:
            receiver.record(_has_sample("compute_nightly", {"job": "nightly", "source.event.name": "timer"}))
            receiver.record(_has_sample("wait_for_letters", {"job": "letters", "source.event.name": "task"}))
            target.close_stdin()
            assert target.finish() == 0, target.output


def test_thread_that_runs_c_code_alone_is_the_applications() -> None:
    pytest.importorskip("uvloop", reason="uvloop is not installed for this interpreter")
    run = run_target("thread_roots.py", "in_c", **_FORMAT)
    samples = all_samples([read(record) for record in run.records])
    keys_ns = sum(one.cpu_ns for one in samples if one.labels.get("thread.name") == "keys")
    assert keys_ns > 0.5 * run.ledger["keys_ns"]
    of_loop = [one for one in samples if one.labels.get("thread.name") == "loop"]
    answer_ns = sum(one.wall_ns for one in of_loop if "__main__.answer" in one.functions)
    waiting_ns = sum(one.wall_ns for one in of_loop if one.functions[0] == "threading.Thread.run")
    assert 0 < answer_ns < waiting_ns, "the callback is shorter than the wait before it"


def test_thread_of_c_code_has_the_time_of_its_python_code_only() -> None:
    run = run_target("thread_roots.py", "now_and_then", **_FORMAT, SPLUNK_PROFILER_CALL_STACK_INTERVAL="500")
    samples = all_samples([read(record) for record in run.records])
    waits = [one for one in samples if "__main__.now_and_then.<locals>.wait_in_python" in one.functions]
    assert sum(one.count for one in waits) >= 2, "each call is longer than two periods"
    assert sum(one.cpu_ns for one in waits) < 0.1 * run.ledger["cpu_ns"]
    assert sum(one.cpu_ns for one in samples) >= 0.9 * run.ledger["cpu_ns"]


def test_what_grpc_calls_on_its_own_threads_is_the_applications() -> None:
    run = run_target("thread_roots.py", "given_to_grpc", **_FORMAT)
    samples = all_samples([read(record) for record in run.records])

    def of(function: str) -> list[ProfileSample]:
        return [one for one in samples if f"__main__.{function}" in one.functions]

    assert run.ledger["bytes"] == 50 * len("part")
    assert sum(one.cpu_ns for one in of("compress_part")) == pytest.approx(1e9, rel=0.15)
    assert sum(one.wall_ns for one in of("authorize")) == pytest.approx(run.ledger["waited_ns"], rel=0.15)
