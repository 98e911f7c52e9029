"""However a process ends or is interrupted: as it would without the profiler, in time, and with its last samples."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
from receiver_process import Receiver
from target_process import Target, profiling_settings

pytestmark = pytest.mark.usefixtures("shared_exporter")
_LATER = {"SPLUNK_PROFILER_EXPORT_INTERVAL": "1000"}  # than the end is: what was sampled last is sent by it
_BOUND_S = 20  # for a process on a busy machine to end; a hang is far longer
_HAS_INTERPRETERS = any(find_spec(name) is not None for name in ("_interpreters", "_xxsubinterpreters"))

_WAYS = [
    ("exit_code", 3),
    ("uncaught", 1),
    ("handlers_that_raise alarms thread_outlives_main", 0),
    ("late_finaliser", 0),
    pytest.param(
        "subinterpreters",
        0,
        marks=pytest.mark.skipif(not _HAS_INTERPRETERS, reason="this interpreter has no module for subinterpreters"),
    ),
]
_walkers = pytest.mark.parametrize("walker", ["auto", "portable"])


@_walkers
@pytest.mark.parametrize(("way", "code"), _WAYS)
def test_a_process_ends_as_it_would_and_delivers_its_last_samples(way: str, code: int, walker: str) -> None:
    with Receiver() as receiver:
        with Target("endings.py", *way.split(), env=profiling_settings(receiver.url, 5, walker, **_LATER)) as target:
            target.line("ready")
            receiver.record()
            target.tell("go")
            assert target.finish(60) == code, target.output
            assert "Fatal Python error" not in target.output, target.output
            assert ("Traceback" in target.output) == (way == "uncaught"), target.output
            last = target.json("last")
        assert receiver.record(lambda record: record["span_id"] == last["span_id"] and "span_90(" in record["body"])


@_walkers
@pytest.mark.parametrize(("way", "code"), [("os_exit", 5), ("exit_code", 3)])
def test_a_process_ends_in_time_although_the_collector_hangs(way: str, code: int, walker: str) -> None:
    with Receiver(mode="hang") as receiver:
        with Target("endings.py", way, env=profiling_settings(receiver.url, 5, walker)) as target:
            target.line("ready")
            receiver.exports(1, answer="hang")
            target.tell("go")
            assert target.finish(_BOUND_S) == code, target.output
            assert "Traceback" not in target.output, target.output
        receiver.switch("ok")
