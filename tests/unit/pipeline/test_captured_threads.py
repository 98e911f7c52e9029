"""Names and states in samples are those of the capture, however late the snapshot is handled."""

from __future__ import annotations

import hashlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FunctionType

import pytest
from running_ticker import running
from stream_feed import StreamedBuilder
from top_frames import top_frame

from splunk_profiler.capture.walker import Ticker, WalkerChoice, choose_walker, make_ticker
from splunk_profiler.samples import Sample, ThreadSample

PERIOD_NS = 10_000_000


class Watcher:
    """A walker of one kind and its snapshot builder."""

    def __init__(self, choice: WalkerChoice) -> None:
        self.ticker: Ticker = make_ticker(choice, None, lambda _: None, 100)
        self.capture = StreamedBuilder(native=choice.name == "native", period_ns=PERIOD_NS)

    def handle(self) -> list[Sample]:
        """Return all samples that were captured since the last call."""
        return [sample for raw in self.ticker.drain(0) for sample in self.capture.snapshot(raw).samples]

    def look(self, name: str) -> ThreadSample:
        """Return the sample of the thread with that name."""
        self.ticker.capture()
        (sample,) = [sample for sample in self.handle() if sample.thread.thread.name == name]
        return sample.thread


def _watcher(kind: str) -> Watcher:
    choice = choose_walker(kind)
    if choice.name != kind:
        pytest.skip(f"no native walker: {choice.reason}")
    return Watcher(choice)


@pytest.fixture(params=["native", "portable"])
def watcher(request: pytest.FixtureRequest) -> Watcher:
    return _watcher(request.param)


@pytest.fixture
def native() -> Watcher:
    return _watcher("native")


def call(then: Callable[[], None]) -> None:
    then()


def work_named(name: str) -> Callable[[Callable[[], None]], None]:
    """Return `call` with another name in stacks."""
    code = call.__code__.replace(co_name=name)
    if sys.version_info >= (3, 11):
        code = code.replace(co_qualname=name)
    return FunctionType(code, globals())


def test_short_lived_threads_never_have_the_name_of_another_one(watcher: Watcher) -> None:
    captured = watcher.ticker.counters

    def live() -> None:
        until = captured().captured + 2
        while captured().captured < until:
            time.sleep(0)  # the ticker may have the GIL

    names, idents = [f"work_{number}" for number in range(150)], []
    samples: list[Sample] = []
    with running(watcher.ticker, PERIOD_NS // 5):
        for number, name in enumerate(names):
            thread = threading.Thread(target=work_named(name), args=(live,), name=name)
            thread.start()
            idents.append(thread.ident)
            thread.join()
            if number % 10 == 9:
                samples += watcher.handle()
    samples += watcher.handle()
    compared = 0
    for sample in samples:
        seen = sample.thread
        works = [frame.function for frame in seen.stack.frames if frame.function in names]
        if works and seen.thread.name != f"Thread-{seen.thread.ident:#x}":  # else it is not known
            compared += 1
            assert works == [seen.thread.name]
    assert len(set(idents)) < len(idents), "no ident was given again: nothing was tested"
    assert compared >= 150


def test_a_thread_that_ended_before_the_drain_keeps_its_name_and_state(watcher: Watcher) -> None:
    over = threading.Event()
    thread = threading.Thread(target=call, args=(watcher.ticker.capture,), name="gone")
    thread.start()
    thread.join()
    other = threading.Thread(target=over.wait, name="next")  # most likely with the same ident
    other.start()
    (sample,) = [sample for sample in watcher.handle() if sample.thread.thread.name == "gone"]
    over.set()
    other.join()
    assert sample.thread.running


@contextmanager
def blocked_after_work() -> Iterator[Callable[[], None]]:
    """Start a thread ``subject`` that works on request and waits in a pipe in between."""
    read_end, write_end = os.pipe()
    done = threading.Semaphore(0)

    def body() -> None:
        while os.read(read_end, 1) == b"1":
            sum(range(500_000))
            done.release()

    def work() -> None:
        os.write(write_end, b"1")
        done.acquire()
        stat = Path(f"/proc/self/task/{subject.native_id}/stat")
        while stat.read_text().rpartition(")")[2].split()[0] != "S" or not _is_in(subject, body):
            os.sched_yield()

    subject = threading.Thread(target=body, name="subject")
    subject.start()
    try:
        yield work
    finally:
        os.write(write_end, b"0")
        subject.join()
        os.close(read_end)
        os.close(write_end)


def _is_in(thread: threading.Thread, body: Callable[[], None]) -> bool:
    return top_frame(thread.ident or 0).f_code is body.__code__


def test_a_thread_that_waits_after_work_is_not_running(native: Watcher) -> None:
    with blocked_after_work() as work:
        native.look("subject")
        for _ in range(5):
            before = native.look("subject")
            work()
            after = native.look("subject")
            assert after.cpu_ns > before.cpu_ns
            assert not after.running


def test_a_thread_in_c_code_without_the_gil_is_running(native: Watcher) -> None:
    block, over = bytes(1 << 24), threading.Event()

    def digest() -> None:
        while not over.is_set():
            hashlib.sha256(block).digest()

    subject = threading.Thread(target=digest, name="subject")
    subject.start()
    try:
        while not native.look("subject").running:
            os.sched_yield()
    finally:
        over.set()
        subject.join()


def test_a_thread_that_holds_the_gil_is_running(watcher: Watcher) -> None:
    for _ in range(3):
        assert watcher.look("MainThread").running
