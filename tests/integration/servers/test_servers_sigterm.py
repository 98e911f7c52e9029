"""Servers at the end of a rollout: SIGTERM ends them as ever, and their last interval is not lost.

All send the same stream to an exporter process, whatever the format: `test_sigterm` has each destination.
"""

from __future__ import annotations

import json
import signal
import sys
import urllib.request
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from loop_processes import accepts
from profile_files import wait_until
from receiver_process import Receiver
from target_process import Target, profiling_settings

pytest.importorskip("splunk_profiler._walker")
from exporter_processes import find_exporters, wait_for_end

_NUMBER = 7
_needs_uvicorn = pytest.mark.skipif(find_spec("uvicorn") is None, reason="uvicorn is not there for this interpreter")
_needs_gunicorn = pytest.mark.skipif(find_spec("gunicorn") is None, reason="gunicorn is not there for this interpreter")
_SEND = f"import celery_service as c\nfor _ in range(20): c.app.send_task('serve', [{_NUMBER}])"


@pytest.fixture(scope="module", name="receiver")
def _receiver() -> Iterator[Receiver]:
    with Receiver() as receiver:
        yield receiver


def _environment(receiver: Receiver, **more: str) -> dict[str, str]:
    later = {"SPLUNK_PROFILER_EXPORT_INTERVAL": "600000"}  # than the test: all that arrives was sent at the end
    return profiling_settings(receiver.url, 10, OTEL_SERVICE_NAME="shop", **later, **more)


def _served(url: str) -> int:
    """The process that has served most of some requests."""
    pids: Counter[int] = Counter()
    for _ in range(5):
        with urllib.request.urlopen(f"{url}/{_NUMBER}", timeout=60) as response:
            pids[json.load(response)["pid"]] += 1
    return pids.most_common(1)[0][0]


def _wait_for(receiver: Receiver, pid: int) -> None:
    """Return once there is a sample of that process's requests, which it had to send at its end."""
    mark = f".work_in_span_{_NUMBER:02}("
    receiver.record(lambda record: record["resource"]["process.pid"] == pid and mark in record["body"])


@_needs_uvicorn
@pytest.mark.parametrize("start", ["by the service", "by the launcher"])
def test_uvicorn_sends_its_last_interval_and_ends_by_sigterm(start: str, receiver: Receiver) -> None:
    words = ["-m", "splunk_profiler", "run", "--", sys.executable] if start == "by the launcher" else []
    words += ["-m", "uvicorn", "asgi_service:application", "--port", "0"]
    with Target(sys.executable, *words, env=_environment(receiver)) as target:
        pid = _served(target.find(r"running on (http://[0-9.:]+)"))
        target.signal(signal.SIGTERM)
        assert target.finish() == -signal.SIGTERM, target.output
        assert pid == target.pid
        _wait_for(receiver, pid)


@_needs_uvicorn
def test_workers_of_uvicorn_send_their_last_interval(receiver: Receiver) -> None:
    words = ["-m", "uvicorn", "asgi_service:application", "--port", "0", "--workers", "2"]
    with Target(sys.executable, *words, env=_environment(receiver)) as target:
        url = target.find(r"running on (http://[0-9.:]+)")
        wait_until(lambda: accepts(url))  # it says so before its workers do
        pid = _served(url)
        wait_until(lambda: bool(find_exporters(pid)))  # each worker is a program of its own
        (exporter,) = find_exporters(pid)
        target.signal(signal.SIGTERM)
        assert target.finish() == 0, target.output
        assert pid != target.pid
        _wait_for(receiver, pid)
        wait_for_end(exporter)


@_needs_gunicorn
@pytest.mark.parametrize(
    ("kind", "options"),
    [("sync", ()), ("gthread", ("--preload",)), ("uvicorn.workers.UvicornWorker", ())],
    ids=["sync", "gthread, preload", "uvicorn"],
)
def test_a_gunicorn_worker_sends_its_last_interval(kind: str, options: tuple[str, ...], receiver: Receiver) -> None:
    if kind.startswith("uvicorn") and find_spec("uvicorn") is None:
        pytest.skip("uvicorn is not there for this interpreter")
    application = "asgi_service" if kind.startswith("uvicorn") else "wsgi_service"
    words = ["-m", "gunicorn", "--bind", "127.0.0.1:0", "--worker-class", kind, *options]
    with Target(sys.executable, *words, f"{application}:application", env=_environment(receiver)) as target:
        pid = _served(target.find(r"Listening at: (http://[0-9.:]+)"))
        target.signal(signal.SIGTERM)
        assert target.finish() == 0, target.output
        _wait_for(receiver, pid)


@pytest.mark.skipif(find_spec("celery") is None, reason="celery is not there for this interpreter")
def test_a_celery_child_sends_its_last_interval(receiver: Receiver, tmp_path: Path) -> None:
    (tmp_path / "control").mkdir()
    folder = {"CELERY_FOLDER": str(tmp_path)}
    words = [sys.executable, "-m", "celery", "--app", "celery_service", "worker", "--pool", "prefork"]
    words += ["--concurrency", "1", "--without-gossip", "--without-mingle", "--without-heartbeat"]
    with Target(*words, env=_environment(receiver, **folder, C_FORCE_ROOT="1"), cwd=tmp_path) as worker:
        with Target(sys.executable, "-c", _SEND, env=folder, cwd=tmp_path) as sender:
            assert sender.finish() == 0, sender.output
        pid = int(json.loads(worker.lines(20, "served")[0])["pid"])
        worker.signal(signal.SIGTERM)
        assert worker.finish() == 0, worker.output
        _wait_for(receiver, pid)
