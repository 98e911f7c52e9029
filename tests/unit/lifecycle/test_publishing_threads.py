"""The thread that makes a process visible: when it runs, and what begins it anew."""

from __future__ import annotations

import _thread
import threading
from collections.abc import Iterator
from errno import EAGAIN
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

pytest.importorskip("splunk_profiler._context")

from published_process import provider, publishing, read_storage, wait_for_storage

from splunk_profiler.config import Config, from_config
from splunk_profiler.host_profilers import publisher
from splunk_profiler.host_profilers.correlator import Correlator
from splunk_profiler.lifecycle.publishing import make_publishing
from splunk_profiler.system.threads import WakeEvent, Worker, wait_until

_NAME = "splunk-profiler-auditor"
_AUDIT_S = 1.0
_WAIT_S = 90.0


@pytest.fixture
def directory() -> Iterator[Path]:
    """Yield an own directory, with a path short enough for a socket."""
    with TemporaryDirectory(prefix="s") as path:
        yield Path(path)


def count_threads() -> int:
    return sum(thread.name == _NAME for thread in threading.enumerate())


def first_span() -> None:
    """Start and end the first span of a provider."""
    with provider("shop").get_tracer("t").start_as_current_span("first"):
        pass


def wait_for_end() -> None:
    assert wait_until(lambda: count_threads() == 0, _WAIT_S)


def test_beside_sampling_the_thread_ends_when_all_is_set_up(directory: Path) -> None:
    with publishing(directory, {"service.name": "early"}):
        wait_for_end()
        assert read_storage() is not None


def test_audit_has_a_new_thread_do_what_a_first_span_made_due(directory: Path) -> None:
    with publishing(directory) as life:
        wait_for_end()
        first_span()
        assert count_threads() == 0  # not on the thread of the application
        assert read_storage() is None
        life.audit()
        assert wait_for_storage().name == "shop"
        wait_for_end()


def test_audits_make_no_second_thread_while_one_is_at_work(directory: Path) -> None:
    with publishing(directory) as life:
        wait_for_end()
        first_span()
        life.publisher.hold_for_fork(_WAIT_S)  # keeps the thread from its work
        try:
            for _ in range(3):
                life.audit()
                assert count_threads() == 1
        finally:
            life.publisher.release_after_fork()
        wait_for_end()


def test_audits_make_no_thread_while_nothing_is_due_or_after_a_stop(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Worker] = []
    with publishing(directory) as life:
        wait_for_end()
        monkeypatch.setattr(Worker, "start", lambda worker: started.append(worker))  # noqa: PLW0108  # a method
        life.audit()
        first_span()
    life.audit()
    assert not started


def test_audits_make_no_thread_for_a_socket_that_could_not_be_read(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(EAGAIN, "no more threads")

    monkeypatch.setattr(Correlator, "listen", fail)
    with publishing(directory, {"service.name": "early"}) as life:
        wait_for_end()
        assert not life.publisher.has_pending_work


def test_library_that_cannot_be_looked_up_keeps_no_process_invisible(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> Path:
        raise ValueError("an import hook without a specification")

    monkeypatch.setattr(publisher, "labels_library", fail)
    with publishing(directory, {"service.name": "early"}) as life:
        wait_for_end()
        assert wait_for_storage().name == "early"
        assert not life.publisher.has_pending_work


def test_audit_tries_again_when_the_process_could_make_no_more_threads(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    with publishing(directory) as life:
        wait_for_end()
        first_span()
        with monkeypatch.context() as patch:
            patch.setattr(_thread, "start_new_thread", fail)
            life.audit()
        assert count_threads() == 0
        assert read_storage() is None
        life.audit()
        assert wait_for_storage().name == "shop"


def test_without_sampling_the_thread_stays_and_a_first_span_wakes_it(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait, waiting = WakeEvent.wait, threading.Event()

    def wait_longer(event: WakeEvent, timeout_s: float) -> bool:
        if timeout_s != _AUDIT_S:
            return wait(event, timeout_s)
        waiting.set()
        return wait(event, 2 * _WAIT_S)

    monkeypatch.setattr(WakeEvent, "wait", wait_longer)
    config = Config(correlation="true", custom_labels="true", socket_directory=str(directory))
    life = make_publishing(from_config(config, {}))
    assert life is not None
    life.start()
    assert waiting.wait(_WAIT_S)
    try:
        first_span()
        assert wait_for_storage().name == "shop"
        assert count_threads() == 1
    finally:
        life.stop()
        life.remove_patch()
    wait_for_end()
