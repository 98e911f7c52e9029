"""The sink is opened late, once, and never while the process forks or the application imports."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from sample_factory import make_sample

from splunk_profiler.export import lazy_sink
from splunk_profiler.export.lazy_sink import LazySink
from splunk_profiler.samples import Batch, ExportResult, ExportStatus, Sample


class Taking:
    """A sink that accepts all batches and records its calls."""

    def __init__(self) -> None:
        self.batches: list[Batch[Sample]] = []
        self.asked: list[str] = []

    def export(self, batch: Batch[Sample]) -> ExportResult:
        self.batches.append(batch)
        return ExportResult(ExportStatus.DELIVERED)

    def set_shutdown_deadline(self, timeout_s: float) -> None:
        self.asked.append(f"deadline {timeout_s}")

    def interrupt(self) -> None:
        self.asked.append("interrupt")

    def shutdown(self) -> None:
        self.asked.append("shutdown")


BATCH = Batch((make_sample(),))


class Gate:
    """A gate in the middle of an import."""

    def __init__(self) -> None:
        self.here, self.over = threading.Event(), threading.Event()
        self.inside: Callable[[], object] = self.over.wait

    def enter(self) -> None:
        self.here.set()
        self.inside()


@pytest.fixture
def slow_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """Provide a module ``slow_to_import`` whose import passes a gate."""
    gate = Gate()
    (tmp_path / "slow_to_import.py").write_text("import gate_of_test\ngate_of_test.enter()\n", "utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(sys.modules, "gate_of_test", gate)
    yield gate
    gate.over.set()
    sys.modules.pop("slow_to_import", None)


def test_the_sink_is_made_by_the_first_export_and_once() -> None:
    made: list[Taking] = []
    late = LazySink(lambda: made.append(Taking()) or made[-1])  # type: ignore[func-returns-value]
    assert not made
    assert late.export(BATCH).export_status is ExportStatus.DELIVERED
    late.open()
    assert late.export(BATCH).export_status is ExportStatus.DELIVERED
    assert len(made) == 1
    assert made[0].batches == [BATCH, BATCH]


def test_it_is_not_made_while_another_thread_imports(slow_module: Gate) -> None:
    importing = threading.Thread(target=__import__, args=("slow_to_import",))
    importing.start()
    slow_module.here.wait()
    imports_were_over: list[bool] = []

    def make() -> Taking:
        imports_were_over.append(slow_module.over.is_set())
        return Taking()

    opening = threading.Thread(target=LazySink(make).open)
    opening.start()
    try:
        opening.join(0.6)  # twice the quiet time that it needs
        assert not imports_were_over
    finally:
        slow_module.over.set()
        importing.join()
        opening.join()
    assert imports_were_over == [True]


def test_it_is_made_within_5_seconds_beside_an_endless_import(slow_module: Gate) -> None:
    importing = threading.Thread(target=__import__, args=("slow_to_import",))
    importing.start()
    slow_module.here.wait()
    made: list[bool] = []
    started_s = time.monotonic()
    LazySink(lambda: made.append(True) or Taking()).open()  # type: ignore[func-returns-value]
    assert made
    assert time.monotonic() - started_s < 5
    slow_module.over.set()
    importing.join()


def test_it_is_not_made_while_the_process_forks() -> None:
    made = threading.Event()

    def make() -> Taking:
        made.set()
        return Taking()

    late = LazySink(make)
    late.hold_for_fork(0.0)
    exporting = threading.Thread(target=late.export, args=(BATCH,))
    exporting.start()
    exporting.join(0.2)
    assert not made.is_set()
    late.release_after_fork()
    exporting.join()
    assert made.is_set()


def test_a_fork_waits_for_imports_and_not_for_detectors() -> None:
    loading, loaded, detecting, detected = (threading.Event() for _ in range(4))

    def load() -> None:
        loading.set()
        loaded.wait()

    def detect() -> None:
        detecting.set()
        detected.wait()

    late = LazySink(Taking, load=load, detect=detect)
    exporting = threading.Thread(target=late.export, args=(BATCH,))
    exporting.start()
    loading.wait()
    were_loaded: list[bool] = []

    def fork() -> None:
        late.hold_for_fork(0.0)
        were_loaded.append(loaded.is_set())
        late.release_after_fork()

    forking = threading.Thread(target=fork)
    forking.start()
    forking.join(0.2)
    assert not were_loaded
    loaded.set()
    forking.join()
    assert were_loaded == [True]
    detecting.wait()
    fork()  # returns before the detection ends
    detected.set()
    exporting.join()


def test_a_fork_waits_for_what_a_detector_imports_on_a_thread_of_its_own(slow_module: Gate) -> None:
    def detect() -> None:
        with ThreadPoolExecutor() as pool:  # like the SDK
            pool.submit(__import__, "slow_to_import").result()

    late = LazySink(Taking, detect=detect)
    exporting = threading.Thread(target=late.export, args=(BATCH,))
    exporting.start()
    slow_module.here.wait()
    were_over: list[bool] = []

    def fork() -> None:
        late.hold_for_fork(0.0)
        were_over.append(slow_module.over.is_set())
        late.release_after_fork()

    forking = threading.Thread(target=fork)
    forking.start()
    forking.join(0.2)
    assert not were_over
    slow_module.over.set()
    forking.join()
    exporting.join()
    assert were_over == [True]


def test_a_fork_inside_an_import_that_is_waited_for_goes_on(slow_module: Gate) -> None:
    late = LazySink(Taking, load=lambda: __import__("slow_to_import"))
    exporting = threading.Thread(target=late.export, args=(BATCH,))

    def fork() -> None:
        exporting.start()
        late.hold_for_fork(0.0)  # must return
        late.release_after_fork()

    slow_module.inside = fork
    __import__("slow_to_import")
    exporting.join()
    assert late.export(BATCH).export_status is ExportStatus.DELIVERED


@pytest.fixture
def no_gevent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lazy_sink, "is_patch_possible", lambda: False)


@pytest.mark.usefixtures("no_gevent")
def test_modules_are_loaded_at_the_start_if_nothing_imports(slow_module: Gate) -> None:
    slow_module.over.set()
    late = LazySink(Taking, load=lambda: __import__("slow_to_import"))
    late.load()
    assert "slow_to_import" in sys.modules


@pytest.mark.usefixtures("no_gevent")
def test_modules_that_fail_at_the_start_are_reported_by_the_export(slow_module: Gate) -> None:
    slow_module.inside = lambda: 1 / 0
    late = LazySink(Taking, load=lambda: __import__("slow_to_import"))
    late.load()
    assert "division by zero" in late.export(BATCH).detail


@pytest.mark.usefixtures("no_gevent")
@pytest.mark.usefixtures("no_gevent")
def test_what_a_signal_handler_raises_at_the_start_is_the_applications() -> None:
    def time_is_up(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, time_is_up)
    try:
        with pytest.raises(TimeoutError):
            LazySink(Taking, load=partial(signal.raise_signal, signal.SIGALRM)).load()
    finally:
        signal.signal(signal.SIGALRM, before)


def test_nothing_is_loaded_at_the_start_while_a_thread_imports(slow_module: Gate) -> None:
    loaded: list[bool] = []
    importing = threading.Thread(target=__import__, args=("slow_to_import",))
    importing.start()
    slow_module.here.wait()
    LazySink(Taking, load=lambda: loaded.append(True)).load()
    slow_module.over.set()
    importing.join()
    assert not loaded


def test_nothing_is_loaded_at_the_start_before_gevent_may_patch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lazy_sink, "is_patch_possible", lambda: True)
    loaded: list[bool] = []
    LazySink(Taking, load=lambda: loaded.append(True)).load()
    assert not loaded


def test_loading_beside_busy_threads_takes_short_turns() -> None:
    before_s = sys.getswitchinterval()
    seen_s: list[float] = []

    def note() -> Taking:
        seen_s.append(sys.getswitchinterval())
        return Taking()

    late = LazySink(note, load=note)
    late.export(BATCH)
    loading_s, opening_s = seen_s  # to open it may wait for a provider of credentials
    assert loading_s < before_s / 10
    assert opening_s == before_s
    assert sys.getswitchinterval() == before_s


def test_child_forked_while_its_parent_loads_has_usual_turns() -> None:
    before_s = sys.getswitchinterval()
    in_child_s: list[float] = []

    def load() -> None:
        late.abandon()  # as in the child
        in_child_s.append(sys.getswitchinterval())

    late = LazySink(Taking, load=load)
    late.export(BATCH)
    assert in_child_s == [before_s]


def test_nothing_is_sent_until_the_service_is_known() -> None:
    asked = threading.Semaphore(0)
    described = threading.Event()

    def is_service_known() -> bool:
        asked.release()
        return described.is_set()

    opening = threading.Thread(target=LazySink(Taking, is_service_known).open)
    opening.start()
    for _ in range(3):
        asked.acquire()
    assert opening.is_alive()
    described.set()
    opening.join()


def test_an_ending_process_does_not_wait_for_its_description() -> None:
    asked = threading.Event()

    def is_service_known() -> bool:
        asked.set()
        return False

    late = LazySink(Taking, is_service_known)
    opening = threading.Thread(target=late.open)
    opening.start()
    asked.wait()
    late.set_shutdown_deadline(1.0)
    opening.join()


def test_time_that_the_imports_take_counts_as_waiting_for_the_description() -> None:
    now_s = 0.0

    def load() -> None:
        nonlocal now_s
        now_s += 6

    late: LazySink[Sample] = LazySink(Taking, lambda: False, load=load, clock=lambda: now_s)
    late.open()  # waits for ever where only the time afterwards counts: the clock stands still
    assert now_s == 6


def test_a_sink_that_cannot_be_made_is_tried_again_and_records_wait() -> None:
    start_s = now_s = float(round(time.monotonic()))  # whole seconds: their differences are exact
    tries_s: list[float] = []

    def make() -> Taking:
        tries_s.append(now_s - start_s)
        if len(tries_s) < 9:
            raise RuntimeError("can't start new thread")
        return Taking()

    late: LazySink[Sample] = LazySink(make, clock=lambda: now_s)
    late.open()
    outcomes = []
    while (outcome := late.export(BATCH)).export_status is ExportStatus.RETRY:
        outcomes.append(outcome.detail)
        now_s += 1
    assert set(outcomes) == {"the exporter cannot be made: can't start new thread"}
    assert outcome.export_status is ExportStatus.DELIVERED
    assert tries_s == [0, 1, 3, 7, 15, 31, 61, 91, 121]


def test_a_sink_that_cannot_be_made_names_an_error_without_text() -> None:
    def make() -> Taking:
        raise MemoryError

    assert LazySink(make).export(BATCH).detail == "the exporter cannot be made: MemoryError"


def test_an_ending_process_opens_nothing_but_for_a_batch() -> None:
    made: list[Taking] = []
    late = LazySink(lambda: made.append(Taking()) or made[-1])  # type: ignore[func-returns-value]
    late.set_shutdown_deadline(1.0)
    late.open()
    assert not made
    late.export(BATCH)
    assert made[0].asked == ["deadline 1.0"]


def test_what_is_asked_of_it_reaches_the_sink() -> None:
    sink = Taking()
    late = LazySink(lambda: sink)
    late.interrupt()
    late.export(BATCH)
    late.interrupt()
    late.set_shutdown_deadline(0.5)
    late.shutdown()
    assert sink.asked == ["interrupt", "deadline 0.5", "shutdown"]
