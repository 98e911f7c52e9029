"""gunicorn, uWSGI and uvicorn with workers: each worker's records have its process id and spans.

Workers that are forked have one exporter, and those that are executed anew below the launcher.
"""

from __future__ import annotations

import signal
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from command_line import COMMAND
from loop_judge import Answer, Key
from loop_processes import Load, accepts
from profile_files import wait_until
from receiver_process import Receiver
from target_process import Target, profiling_settings

pytest.importorskip("splunk_profiler._walker")
from exporter_processes import exporters_with_variable, wait_for_end

_WORKERS = 2
_UWSGI = Path(sys.executable).parent / "uwsgi"
_INSTRUMENT = Path(sys.executable).parent / "opentelemetry-instrument"
_PATHS = ["/0", "/1", "/2", "/3"]


def is_marked(record: dict[str, Any]) -> bool:
    return ".work_in_span_" in record["body"]


def answer_of(record: dict[str, Any]) -> Answer:
    """Return the answer that came from the record's process and span."""
    return Answer(Key(record["trace_id"], record["span_id"]), sampled=True, pid=record["resource"]["process.pid"])


def _assert_all_workers_send(
    receiver: Receiver, target: Target, url: str, *, master_too: bool, instrumented: bool = False
) -> None:
    """Check their records, and that one exporter for all of them has sent these and ends.

    Under OpenTelemetry's launcher its provider is the one that counts.
    """
    with Load(url, _PATHS) as load:
        load.wait_for_processes(_WORKERS)
        for pid in {answer.pid for answer in load.answers()}:
            record = receiver.record(
                lambda r, pid=pid: is_marked(r) and answer_of(r).pid == pid and answer_of(r) in load.answers()  # type: ignore[misc]
            )
            assert record["resource"].get("set.in.code") == (None if instrumented else "yes")
            assert pid != target.pid
        if master_too:
            now = time.time_ns()
            receiver.record(lambda r: r["time_ns"] > now and r["resource"]["process.pid"] == target.pid)
        (exporter,) = exporters_with_variable(f"={receiver.url}")
    target.signal(signal.SIGTERM)
    assert target.finish() == 0, target.output
    wait_for_end(exporter)
    receiver.catch_up()
    answers = {*load.answers()}
    wrong = [record for record in receiver.records(1, is_marked) if answer_of(record) not in answers]
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
            has_preloaded = "--preload" in options
            _assert_all_workers_send(receiver, target, url, master_too=has_preloaded)
        # Without the option, each worker starts the profiler after its fork, and the master does not.
        senders = {record["resource"]["process.pid"] for record in receiver.records()}
        assert (target.pid in senders) is has_preloaded


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
        _assert_all_workers_send(receiver, target, url, master_too=False)


@pytest.mark.skipif(find_spec("uvicorn") is None, reason="uvicorn is not there for this interpreter")
@pytest.mark.parametrize("launcher", ["splunk-profiler run", "opentelemetry-instrument"])
def test_every_uvicorn_worker_sends_under_its_own_process_id(launcher: str) -> None:
    instrumented = launcher == "opentelemetry-instrument"
    if instrumented and not _INSTRUMENT.exists():
        pytest.skip("opentelemetry-instrument is not there")
    words = [str(_INSTRUMENT)] if instrumented else [*COMMAND, "run", "--"]
    words += [sys.executable, "-m", "uvicorn", "--port", "0", "--workers", str(_WORKERS), "asgi_service:application"]
    with Receiver() as receiver:
        others = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url, "OTEL_METRICS_EXPORTER": "none"}
        target = Target(*words, env=profiling_settings(receiver.url, 10, **(others if instrumented else {})))
        with target:
            url = target.find(r"running on (http://[0-9.:]+)")
            wait_until(lambda: accepts(url))  # it says so before its workers do
            _assert_all_workers_send(receiver, target, url, master_too=True, instrumented=instrumented)
