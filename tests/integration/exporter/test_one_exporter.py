"""A tree of processes has one exporter, however its processes are started."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import pytest
from command_line import COMMAND
from receiver_process import Receiver
from target_process import TESTS, Target, profiling_settings

pytest.importorskip("splunk_profiler._walker")
from exporter_processes import exporters_with_variable, wait_for_end

_RUN = (*COMMAND, "run", "--")
_GUNICORN = ("-m", "gunicorn", "--bind", "127.0.0.1:0", "--workers", "4", "wsgi_service:application")
_UVICORN = ("-m", "uvicorn", "--port", "0", "--workers", "2", "asgi_service:application")


def _sender(record: dict[str, Any]) -> int:
    return int(record["resource"]["process.pid"])


def _wait_for_senders(receiver: Receiver, count: int) -> set[int]:
    """Return the ids of the processes that have sent, once there are so many."""
    found: set[int] = set()
    while len(found) < count:
        known = frozenset(found)
        found.add(_sender(receiver.record(lambda record, known=known: _sender(record) not in known)))  # type: ignore[misc]
    return found


@contextmanager
def _sending(words: tuple[str, ...], processes: int) -> Iterator[tuple[Target, set[int]]]:
    """Run a program until so many processes of it have sent; yield their ids. There must be one exporter then."""
    module = words[words.index("-m") + 1] if "-m" in words else "splunk_profiler"
    if find_spec(module) is None:
        pytest.skip(f"{module} is not there for this interpreter")
    with Receiver() as receiver:
        # Without a name of the service, the first records of processes that set up no provider wait 5 s for one.
        with Target(*words, env=profiling_settings(receiver.url, 50, OTEL_SERVICE_NAME="tree")) as target:
            pids = _wait_for_senders(receiver, processes)
            (exporter,) = exporters_with_variable(f"={receiver.url}")
            yield target, pids
        wait_for_end(exporter)


def test_gunicorn_workers_under_run_have_one_exporter() -> None:
    with _sending((*_RUN, sys.executable, *_GUNICORN), 5) as (target, pids):
        assert target.pid in pids


def test_uvicorn_workers_under_run_have_one_exporter() -> None:
    with _sending((*_RUN, sys.executable, *_UVICORN), 3):
        pass


@pytest.mark.parametrize(
    ("method", "before"),
    [("fork", ()), ("spawn", ()), ("forkserver", ()), ("spawn", _RUN)],
    ids=["fork", "spawn", "forkserver", "spawn, run"],
)
def test_processes_of_multiprocessing_have_one_exporter(method: str, before: tuple[str, ...]) -> None:
    # Without the launcher, the parent hands its secret on: it starts the profiler before it has other threads.
    with _sending((*before, sys.executable, str(TESTS / "targets" / "spawning_service.py"), method), 3) as (target, _):
        target.tell("stop")
        assert target.finish() == 0, target.output
