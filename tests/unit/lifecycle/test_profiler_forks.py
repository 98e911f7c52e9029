"""The parts of the profiler that a fork holds, and the order in which it does."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("splunk_profiler._context")

from splunk_profiler.config import Config, from_config
from splunk_profiler.export.lazy_sink import LazySink
from splunk_profiler.host_profilers.correlator import Correlator
from splunk_profiler.host_profilers.publisher import ProcessPublisher
from splunk_profiler.lifecycle.profiler import Profiler
from splunk_profiler.lifecycle.sampling import Sampling
from splunk_profiler.otel.runtime_id import RuntimeId
from splunk_profiler.pipeline.batch_exporter import BatchExporter

NOTICED = threading.Event()  # that this process is a forked child
_HOLDING_ORDER: list[type] = [LazySink, BatchExporter, ProcessPublisher, Correlator]


@pytest.fixture
def profiler(tmp_path: Path) -> Iterator[Profiler]:
    """One that samples and publishes, and has not been started."""
    config = Config(
        enabled=True, exporter="thread", correlation="true", custom_labels="true", socket_directory=str(tmp_path)
    )
    made = Profiler(
        from_config(config, {}),
        NOTICED.set,
        lambda: None,
        RuntimeId.new(),
        parent=None,
        is_forked_child=False,
        has_lost_threads=False,
    )
    yield made
    made.release_after_fork()


def _record_calls(monkeypatch: pytest.MonkeyPatch, name: str) -> list[type]:
    """Return a list that grows by the class whose method `name` is called."""
    called: list[type] = []
    for owner in _HOLDING_ORDER:
        original: Callable[..., Any] = getattr(owner, name)

        def recorded(*arguments: Any, owner: type = owner, original: Callable[..., Any] = original) -> Any:
            called.append(owner)
            return original(*arguments)

        monkeypatch.setattr(owner, name, recorded)
    return called


def test_releases_reverse_the_order_of_the_holds(profiler: Profiler, monkeypatch: pytest.MonkeyPatch) -> None:
    held = _record_calls(monkeypatch, "hold_for_fork")
    released = _record_calls(monkeypatch, "release_after_fork")
    profiler.hold_for_fork(0.02)
    assert held == _HOLDING_ORDER
    profiler.release_after_fork()
    assert released == _HOLDING_ORDER[::-1]


def test_a_failed_release_does_not_keep_the_others(profiler: Profiler, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_self: Correlator) -> None:
        raise ValueError("released")

    released = _record_calls(monkeypatch, "release_after_fork")
    profiler.hold_for_fork(0.02)
    with monkeypatch.context() as patch:
        patch.setattr(Correlator, "release_after_fork", fail)
        with pytest.raises(ValueError, match="released"):
            profiler.release_after_fork()
    assert released == [ProcessPublisher, BatchExporter, LazySink]


def test_a_fork_of_c_code_beside_a_stop_is_noticed_in_the_child(
    profiler: Profiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, codes = Sampling.stop, list[int]()

    def fork_and_stop(self: Sampling, timeout_s: float) -> None:
        child = ctypes.PyDLL(None).fork()  # calls no hook of Python
        if child == 0:
            os._exit(0 if NOTICED.wait(20) else 1)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        original(self, timeout_s)

    monkeypatch.setattr(Sampling, "stop", fork_and_stop)
    assert profiler.start()
    profiler.stop(10)
    assert codes == [0]
