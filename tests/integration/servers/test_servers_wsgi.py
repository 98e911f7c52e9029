"""gunicorn and uWSGI in their ways of forking: each worker's records have its process id and spans, by one exporter."""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
import urllib.request
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest
from receiver_process import Receiver
from target_process import Target, profiling_settings

pytest.importorskip("splunk_profiler._walker")
from exporter_processes import exporters_with_variable, wait_for_end

_WORKERS = 2
_UWSGI = Path(sys.executable).parent / "uwsgi"


class Load:
    """Clients that ask without a pause, and remember every answer."""

    def __init__(self, url: str, clients: int = 4) -> None:
        self._url = url
        self._stopping = False
        self._answered = threading.Condition()
        self._answers: list[dict[str, Any]] = []
        self._failures: list[Exception] = []
        self._clients = [threading.Thread(target=self._ask, args=(number,)) for number in range(clients)]

    def pids(self, count: int, timeout_s: float = 60) -> set[int]:
        """The processes that have answered, once there are so many."""
        with self._answered:
            found = self._answered.wait_for(lambda: self._failures or len(self._pids()) >= count, timeout_s)
            assert not self._failures, self._failures
            assert found, f"only {self._pids()} have answered"
            return self._pids()

    def has(self, record: dict[str, Any]) -> bool:
        """True if an answer came from the record's process and span."""
        ids = (record["resource"]["process.pid"], record["trace_id"], record["span_id"])
        with self._answered:
            return any(ids == (answer["pid"], answer["trace_id"], answer["span_id"]) for answer in self._answers)

    def _pids(self) -> set[int]:
        return {answer["pid"] for answer in self._answers}

    def _ask(self, number: int) -> None:
        try:
            while not self._stopping:
                with urllib.request.urlopen(f"{self._url}/{number}", timeout=30) as response:
                    answer = json.load(response)
                with self._answered:
                    self._answers.append(answer)
                    self._answered.notify_all()
        except Exception as error:
            with self._answered:
                self._failures.append(error)
                self._answered.notify_all()

    def __enter__(self) -> Load:
        for client in self._clients:
            client.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stopping = True
        for client in self._clients:
            client.join()


def is_marked(record: dict[str, Any]) -> bool:
    return ".work_in_span_" in record["body"]


def _assert_all_workers_send(receiver: Receiver, target: Target, url: str, workers: int, master_too: bool) -> None:
    """Check their records, and that one exporter for all of them has sent these and ends."""
    with Load(url) as load:
        for pid in load.pids(workers):
            record = receiver.record(
                lambda r, pid=pid: is_marked(r) and r["resource"]["process.pid"] == pid and load.has(r)  # type: ignore[misc]
            )
            assert record["resource"]["set.in.code"] == "yes"
            assert pid != target.pid
        if master_too:
            now = time.time_ns()
            receiver.record(lambda r: r["time_ns"] > now and r["resource"]["process.pid"] == target.pid)
        (exporter,) = exporters_with_variable(f"={receiver.url}")
    target.signal(signal.SIGTERM)
    assert target.finish() == 0, target.output
    wait_for_end(exporter)
    wrong = [record for record in receiver.records(1, is_marked) if not load.has(record)]
    assert not wrong, wrong[0]


@pytest.mark.skipif(find_spec("gunicorn") is None, reason="gunicorn is not there for this interpreter")
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("sync", ()),
        ("gthread", ("--threads", "4", "--preload")),
        ("gevent", ()),
        ("gevent", ("--preload",)),  # a worker patches what its profiler already uses
    ],
    ids=["sync", "gthread, preload", "gevent", "gevent, preload"],
)
def test_every_gunicorn_worker_sends_under_its_own_process_id(kind: str, options: tuple[str, ...]) -> None:
    if kind == "gevent" and find_spec("gevent") is None:
        pytest.skip("gevent is not there for this interpreter")
    words = ["-m", "gunicorn", "--bind", "127.0.0.1:0", "--workers", str(_WORKERS), "--worker-class", kind, *options]
    with Receiver() as receiver:
        env = profiling_settings(receiver.url, 10)
        with Target(sys.executable, *words, "wsgi_service:application", env=env) as target:
            url = target.find(r"Listening at: (http://[0-9.:]+)")
            _assert_all_workers_send(receiver, target, url, _WORKERS, master_too="--preload" in options)


@pytest.mark.skipif(not _UWSGI.exists(), reason="uWSGI is not there for this interpreter")
@pytest.mark.parametrize(
    "mode",
    [
        "",
        "--enable-threads",
        "--enable-threads --py-call-osafterfork",
        "--enable-threads --lazy-apps",
    ],
)
def test_every_uwsgi_worker_sends_under_its_own_process_id(mode: str) -> None:
    words = [str(_UWSGI), "--http-socket", "127.0.0.1:0", "--master", "--die-on-term", "--need-app"]
    words += ["--processes", str(_WORKERS), "--home", sys.prefix, *mode.split(), "--module", "wsgi_service:application"]
    with Receiver() as receiver, Target(*words, env=profiling_settings(receiver.url, 10)) as target:
        url = "http://" + target.find(r"bound to TCP address ([0-9.:]+)")
        _assert_all_workers_send(receiver, target, url, _WORKERS, master_too=False)
