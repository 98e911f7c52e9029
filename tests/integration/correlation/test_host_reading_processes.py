"""Readings of a host profiler in special conditions: late libraries, threads, forks, servers."""

from __future__ import annotations

import json
import platform
import shutil
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from derived_ids import WorkUnit
from host_reading import describe_mixed_reading
from publishing_target import SERVICE, iter_moments, publishing_target, socket_folder
from publishing_target import publishing_settings as settings
from target_process import TESTS, Target

import splunk_profiler
from splunk_profiler.inspector import Reader, Report
from splunk_profiler.inspector.model import Interface, TlsKind

pytest.importorskip("splunk_profiler._context", reason="the native publisher is not built for this interpreter")

pytestmark = pytest.mark.usefixtures("high_priority")

_GLIBC = platform.libc_ver()[0] == "glibc"
_LABELS = Path(splunk_profiler.__file__).parent / "libcustomlabels.so"


def _read_report(pid: int, *, strict_host: bool = True) -> Report:
    """A reader that has never seen the process before."""
    with Reader(pid, strict_host=strict_host) as reader:
        return reader.read()


def _span_by_tid(report: Report) -> dict[int, str]:
    """The span that each thread shows, in both ABIs; threads that show nothing are left out."""
    shown = {}
    for thread in report.threads:
        labels = {label.key: label.value.decode() for label in thread.labels or ()}
        record = thread.correlation
        span_id = record.span_id if record is not None and record.is_usable else ""
        assert labels.get(b"span_id", "") == span_id, thread
        assert thread.problems == (), thread
        if span_id:
            shown[thread.tid] = span_id
    return shown


def _assert_spans_shown(report: Report, expected: list[dict[str, Any]]) -> None:
    """All of these threads, and no others, show their spans; the process says who it is and where it listens."""
    wanted = {thread["tid"]: thread["span_id"] for thread in expected if thread["span_id"]}
    assert _span_by_tid(report) == wanted, expected
    assert report.storage is not None, expected
    assert report.storage.service_name == SERVICE
    assert report.socket_accepted, report.reasons
    assert {library.interface: library.variable.tls for library in report.libraries} == {
        Interface.ELASTIC: TlsKind.STATIC,
        Interface.LABELS: TlsKind.STATIC,
    }


@pytest.mark.parametrize("how", ["late", "preloaded"])
def test_threads_from_before_and_after_the_libraries_came_are_read(how: str) -> None:
    preload = {"LD_PRELOAD": str(_LABELS)} if how == "preloaded" else {}
    with publishing_target("published_processes.py", "threads", **preload) as target:
        moments = 0
        for expected in iter_moments(target):
            moments += 1
            assert len(expected) == 4
            for _ in range(2):  # a second reader, which has missed the publication, sees the same
                _assert_spans_shown(_read_report(expected[0]["pid"]), expected)
        assert moments == 1
        assert target.finish() == 0


def test_thread_that_reuses_the_ident_of_one_ended_in_a_span_shows_none() -> None:
    with publishing_target("published_processes.py", "idents") as target:
        for expected in iter_moments(target):
            _assert_spans_shown(_read_report(expected[0]["pid"]), expected)
        assert target.finish() == 0
        assert target.json("reused") > 0, "no ident was used again: nothing was tested"


@pytest.mark.skipif(not _GLIBC, reason="another C library has no surplus of static TLS")
@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not there")
def test_used_up_static_tls_is_explained_by_the_log_and_the_inspector(
    tmp_path: Path,
) -> None:
    fillers = []
    for size, count in ((64, 64), (8, 9)):  # what the large ones leave is for the small ones
        filler = tmp_path / f"filler-of-{size}.so"
        command = [
            "gcc",
            f"-DBYTES={size}",
            "-shared",
            "-fPIC",
            "-o",
            str(filler),
            str(TESTS / "targets" / "static_tls_filler.c"),
        ]
        subprocess.run(command, check=True)
        fillers += [shutil.copy(filler, tmp_path / f"filler-of-{size}-{number}.so") for number in range(count)]
    with publishing_target("published_processes.py", "static_tls_full", *map(str, fillers)) as target:
        for expected in iter_moments(target):
            pid = expected[0]["pid"]
            strict, spec = _read_report(pid), _read_report(pid, strict_host=False)
            assert {library.variable.tls for library in strict.libraries} == {TlsKind.DYNAMIC}
            assert _span_by_tid(strict) == {}
            assert not strict.is_visible(Interface.ELASTIC)
            assert {reason.interface for reason in strict.reasons if reason.code == "tls-dynamic"} == {*Interface}
            assert _span_by_tid(spec) == {expected[0]["tid"]: expected[0]["span_id"]}
        assert target.finish() == 0
        assert "static TLS" in target.line("full")
        assert target.output.count("host profilers cannot read") == 2, target.output
        assert target.output.count("GLIBC_TUNABLES=glibc.rtld.optional_static_tls") == 2


@pytest.mark.skipif(not _GLIBC, reason="another C library has no surplus of static TLS")
@pytest.mark.parametrize("room", [0, 4096])
def test_the_remedy_that_the_log_names_is_one(room: int) -> None:
    tunables = {"GLIBC_TUNABLES": f"glibc.rtld.optional_static_tls={room}"}
    with publishing_target("published_processes.py", "threads", **tunables) as target:
        for expected in iter_moments(target):
            report = _read_report(expected[0]["pid"])
            if room:
                _assert_spans_shown(report, expected)
            else:
                assert _span_by_tid(report) == {}
        assert target.finish() == 0
        assert ("host profilers cannot read" in target.output) == (room == 0)


def test_forked_child_and_grandchild_are_read_as_processes_of_their_own() -> None:
    sockets: dict[int, set[str]] = {}
    with publishing_target("published_processes.py", "forks") as target:
        for expected in iter_moments(target):
            report = _read_report(expected[0]["pid"])
            _assert_spans_shown(report, expected)
            assert report.storage is not None
            sockets.setdefault(expected[0]["pid"], set()).add(report.storage.socket_path)
        assert target.finish() == 0
        assert "rror" not in target.output
    assert len(sockets) == 3
    assert all(len(paths) == 1 for paths in sockets.values()), "a process has changed its socket"
    assert len(set.union(*sockets.values())) == 3, "a process has the socket of another"


def test_forked_child_shows_its_parents_storage_until_it_has_its_own() -> None:
    observed = []
    with publishing_target("published_processes.py", "halted_forks") as target:
        for expected in iter_moments(target):
            report = _read_report(expected[0]["pid"])
            assert report.storage is not None
            assert report.socket_accepted
            assert _span_by_tid(report) == {expected[0]["tid"]: expected[0]["span_id"]}
            observed.append((expected[0]["moment"], expected[0]["pid"], report.storage.socket_path))
        assert target.finish() == 0
    (_, parent, parents_socket), (_, child, inherited), (_, again, own) = observed
    assert parent != child == again
    assert parents_socket == inherited != own


def test_reader_sees_consistent_values_while_threads_publish_and_fork() -> None:
    readings = 0
    with publishing_target("publishing_storm.py", "10") as target:
        target.line("ready")
        with Reader(target.pid) as reader:
            while target.is_running and not target.has_line("done"):
                report = reader.read()
                assert report.storage is None or report.storage.service_name == SERVICE
                for reading in report.threads:
                    readings += reading.was_stopped
                    assert not describe_mixed_reading(reading)
            deadline = time.monotonic() + 60
            while (last := reader.read()).storage is None:  # a thread of the profiler publishes it
                assert time.monotonic() < deadline
        assert last.socket_accepted
        assert list(_span_by_tid(last).values()) == [f"{WorkUnit(1, 0).span_id:016x}"]
        target.tell("on")
        assert target.finish() == 0
        assert "rror" not in target.output, target.output
    assert readings > 0


@pytest.mark.skipif(find_spec("gunicorn") is None, reason="gunicorn is not there for this interpreter")
@pytest.mark.parametrize("preload", [False, True], ids=["plain", "preload"])
def test_each_gunicorn_worker_is_read_as_a_process_of_its_own(preload: bool) -> None:
    words = [sys.executable, "-m", "gunicorn", "--bind", "127.0.0.1:0", "--workers", "2"]
    words += [*(["--preload"] if preload else []), "blocking_service:application"]
    with socket_folder() as folder, Target(*words, env=settings(folder, STANDING_FOLDER=str(folder))) as target:
        url = target.find(r"Listening at: (http://[0-9.:]+)")
        sockets = {}
        with ExitStack() as requests:
            # A worker serves one request at a time: the second one stands in the other worker.
            for _ in range(2):
                response = requests.enter_context(urlopen(url, timeout=60))  # of our own server
                standing = json.loads(response.readline())
                requests.callback(response.read)
                requests.callback(Path(standing["pipe"]).write_text, "on")
                report = _read_report(standing["pid"])
                _assert_spans_shown(report, [standing])
                assert report.storage is not None
                sockets[standing["pid"]] = report.storage.socket_path
        if preload:
            master = _read_report(target.pid)
            _assert_spans_shown(master, [])
            assert master.storage is not None
            sockets[target.pid] = master.storage.socket_path
        target.signal(signal.SIGTERM)
        assert target.finish() == 0
    assert len(sockets) == len(set(sockets.values())) == 2 + preload, "a process has the socket of another"
