"""`start` and `stop` in signal handlers, finalisers and any thread: they come back, and leave nothing half done."""

from __future__ import annotations

import signal

import pytest
from receiver_process import Receiver
from target_process import TREE, Target, profiling_settings


@pytest.mark.usefixtures("shared_exporter")
@pytest.mark.parametrize("walker", ["auto", "portable"])
@pytest.mark.parametrize("case", ["handler_in_stop", "handler_in_start", "finaliser"])
def test_calls_in_the_middle_of_others_end_and_leave_nothing(case: str, walker: str) -> None:
    _run(case, walker)


@pytest.mark.parametrize("walker", ["auto", "portable"])
@pytest.mark.parametrize("case", ["handler_raises", "own_thread", "threads", "inside_threading"])
def test_calls_that_start_an_exporter_end_and_leave_nothing(case: str, walker: str) -> None:
    _run(case, walker, **{TREE: ""})


def _run(case: str, walker: str, **more: str) -> None:
    settings = profiling_settings("http://127.0.0.1:9", 10, walker, OTEL_SERVICE_NAME="shop", **more)
    with Target("interrupted.py", case, env=settings) as target:
        target.line("done", 120)
        assert target.finish() == 0, target.output
        lost = case == "handler_raises"  # in the callback of a weak reference, as an exception may be anywhere
        assert lost or "Traceback" not in target.output, target.output


def test_stop_in_a_handler_during_the_stop_at_exit_does_not_hang() -> None:
    with Receiver(mode="hang") as receiver:
        with Target("interrupted.py", "handler_at_exit", env=profiling_settings(receiver.url, 5)) as target:
            target.line("ready")
            receiver.exports(1, answer="hang")
            target.tell("go")
            target.line("exits")
            target.signal(signal.SIGTERM)
            target.line("handled")
            assert target.finish() == 0, target.output
        receiver.switch("ok")
