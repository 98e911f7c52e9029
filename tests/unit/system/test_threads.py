"""Real threads, also where gevent has replaced them."""

from __future__ import annotations

import _thread
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from interrupted_lines import is_interrupted, is_interrupted_by_signal

from splunk_profiler.system import threads
from splunk_profiler.system.threads import OwnedLock, WakeEvent, Worker, enough_stack, real


def test_a_worker_is_a_named_daemon_that_can_be_joined() -> None:
    over = WakeEvent()
    seen: list[tuple[str, bool]] = []

    def body() -> None:
        seen.append((threading.current_thread().name, threading.current_thread().daemon))
        over.wait(60)

    worker = Worker("subject", body)
    worker.start()
    assert worker.ident in {thread.ident for thread in threading.enumerate()}
    assert not worker.join(0)
    over.set()
    assert worker.join(60)
    assert worker.join(0), "joining twice is joining once"
    assert seen == [("splunk-profiler-subject", True)]


def test_a_worker_whose_thread_cannot_be_made_is_waited_for_by_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(_thread, "start_new_thread", fail)
    worker = Worker("subject", lambda: None)
    with pytest.raises(RuntimeError, match="can't start"):
        worker.start()
    assert worker.join(0)


def test_a_worker_is_no_thread_of_the_application_under_a_debugger(monkeypatch: pytest.MonkeyPatch) -> None:
    traced: list[object] = []

    def start_traced(function: Callable[..., object], *arguments: Any) -> int:
        traced.append(function)
        return start(function, *arguments)

    start = _thread.start_new_thread  # as pydevd, and so debugpy, replaces it
    monkeypatch.setattr(_thread, "_original_start_new_thread", start, raising=False)
    monkeypatch.setattr(_thread, "start_new_thread", start_traced)
    worker = Worker("subject", lambda: None)
    worker.start()
    assert worker.join(60)
    assert not traced
    monkeypatch.setattr(_thread, "_original_start_new_thread", start_traced)  # gevent's, where the debugger comes later
    monkeypatch.setattr(_thread, "start_new_thread", start)
    worker = Worker("subject", lambda: None)
    worker.start()
    assert worker.join(60)
    assert not traced


def test_the_kernel_knows_a_worker_by_its_name() -> None:
    over = WakeEvent()
    worker = Worker("subject", lambda: over.wait(60))  # type: ignore[arg-type]
    worker.start()
    try:
        name = Path(f"/proc/self/task/{worker.native_id}/comm").read_text("utf-8")
        # CPython gives it from 3.14 on, before that the native walker, if another test has loaded it.
        is_named = sys.version_info >= (3, 14) or "splunk_profiler._walker" in sys.modules
        assert (name == "splunk-profiler\n") == is_named
    finally:
        over.set()
        assert worker.join(60)


def test_the_start_of_a_worker_that_does_not_begin_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    begins: list[Callable[[], None]] = []
    start, has_ended = _thread.start_new_thread, WakeEvent()
    monkeypatch.setattr(_thread, "start_new_thread", lambda begin, _: begins.append(begin))
    ran: list[bool] = []
    worker = Worker("subject", lambda: ran.append(True), max_start_s=0.01)
    with pytest.raises(RuntimeError, match=r"^the thread splunk-profiler-subject has not begun within 0.01 s$"):
        worker.start()
    assert worker.join(0)
    start(lambda: (begins[0](), has_ended.set()), ())  # type: ignore[func-returns-value]
    assert has_ended.wait(60)
    assert not ran


def test_a_program_that_waits_for_all_threads_does_not_wait_for_a_worker() -> None:
    over = WakeEvent()
    worker = Worker("subject", lambda: over.wait(60) and None)  # type: ignore[arg-type]
    worker.start()
    (listed,) = [thread for thread in threading.enumerate() if thread.ident == worker.ident]
    listed.join()
    assert listed.is_alive()
    over.set()
    assert worker.join(60)
    assert not listed.is_alive()


def test_a_signal_given_before_the_wait_is_not_lost_and_counts_once() -> None:
    signal = WakeEvent()
    signal.set()
    signal.set()
    assert signal.wait(60)
    assert not signal.wait(0)


@pytest.mark.parametrize("timeout_s", [0.0, 1e-9, 1e-6, 1e-5])
def test_a_wait_ends_also_when_its_time_is_over_before_it_begins(timeout_s: float) -> None:
    for _ in range(5_000):
        assert not WakeEvent().wait(timeout_s)
    over = WakeEvent()

    def body() -> None:
        over.wait(60)

    worker = Worker("subject", body)
    worker.start()
    for _ in range(5_000):
        assert not worker.join(timeout_s)
    over.set()
    assert worker.join(60)


def test_an_owned_lock_keeps_other_threads_out_until_its_owner_releases_it() -> None:
    lock, taken = OwnedLock(), WakeEvent()
    assert lock.acquire(0)
    assert lock.acquire(0), "its owner has it already"

    def take() -> None:
        lock.release()
        lock.acquire()
        taken.set()

    other = Worker("other", take)
    other.start()
    assert not taken.wait(0.01)
    lock.release()
    assert other.join(60)
    assert not lock.acquire(0), "the other thread has it"


def test_an_owned_lock_is_not_lost_wherever_a_signal_handler_raises() -> None:
    lock = OwnedLock()

    def use() -> None:
        with lock:
            lock.acquire(60)
        lock.release()

    for line in count(1):
        was_interrupted = is_interrupted(use, threads, line)
        use()
        got: list[bool] = []
        other = Worker("other", lambda: got.append(lock.acquire(0)) or lock.release())  # type: ignore[func-returns-value] # noqa: B023
        other.start()
        assert other.join(60)
        assert got == [True], f"after an exception at line {line}"
        if not was_interrupted:
            break
    assert line > 10


def test_an_end_that_a_signal_handler_interrupts_is_seen_by_the_next_join() -> None:
    for line in count(1):
        worker = Worker("subject", lambda: None)
        worker.start()
        was_interrupted = is_interrupted(lambda: worker.join(60), threads, line)  # noqa: B023
        assert worker.join(60), line
        assert worker.join(0), f"after an exception at line {line}"
        if not was_interrupted:
            break
    assert line > 3


def test_a_worker_leaves_signals_to_the_threads_of_the_application() -> None:
    blocked: list[set[int]] = []
    worker = Worker("subject", lambda: blocked.append(set(signal.pthread_sigmask(signal.SIG_BLOCK, ()))))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    worker.start()
    assert worker.join(60)
    assert {signal.SIGTERM, signal.SIGINT, signal.SIGALRM, signal.SIGCHLD, signal.SIGPROF} <= blocked[0]
    assert not {signal.SIGSEGV, signal.SIGFPE} & blocked[0]
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before


def test_a_worker_that_cannot_be_prepared_fails_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise ValueError("no such signal")

    monkeypatch.setattr(signal, "pthread_sigmask", refuse)
    ran: list[bool] = []
    worker = Worker("subject", lambda: ran.append(True))
    with pytest.raises(RuntimeError, match="no such signal"):
        worker.start()
    assert worker.join(60)
    assert not ran


GEVENT = """
from gevent import monkey
if BEFORE: monkey.patch_all()
import _thread, threading, gevent
from splunk_profiler.system.gil import GilOffer
from splunk_profiler.system.threads import WakeEvent, Worker
if not BEFORE: monkey.patch_all()
real_ident = monkey.get_original("_thread", "get_ident")
over, idents = WakeEvent(), []
def body():
    idents.append(real_ident())
    over.wait(60)
worker = Worker("subject", body)
worker.start()
turns = []
gevent.joinall([gevent.spawn(lambda: (turns.append(1), gevent.sleep(0))) for _ in range(3)])
over.set()
assert worker.join(60) and len(turns) == 3
assert worker.name not in {thread.name for thread in threading.enumerate()}
assert idents[0] != real_ident(), "the worker ran as a greenlet of the main thread"
print("ok")
"""


FORK = """
import os, threading
from splunk_profiler.system.threads import WakeEvent, Worker
over = WakeEvent()
worker = Worker("subject", lambda: over.wait(60))
worker.start()
(listed,) = [thread for thread in threading.enumerate() if thread.ident == worker.ident]
if PATCHES:
    from gevent import monkey
    monkey.patch_all()
    import queue
    waited_for = queue.Queue()
    other = threading.Thread(target=waited_for.get)
    other.start()
answer_from, answer_to = os.pipe()  # gevent's `waitpid` misses a child that ends at once, one time in a hundred
if os.fork() == 0:
    left = [thread for thread in threading.enumerate() if thread is not threading.current_thread()]
    os.write(answer_to, b"n" if left or listed.is_alive() or (PATCHES and other.is_alive()) else b"y")
    os._exit(0)
os.close(answer_to)
assert os.read(answer_from, 1) == b"y"
assert listed.is_alive()
if PATCHES:
    waited_for.put(None)
over.set()
assert worker.join(60)
print("ok")
"""


STACK = """
import sys, threading
from splunk_profiler.system.threads import Worker
size = 32768 if sys.version_info < (3, 14) else 65536
threading.stack_size(size)
def descend(depth):
    return depth and sorted([depth, depth], key=lambda _: descend(depth - 1))[0]
worker = Worker("subject", lambda: descend(20))
worker.start()
assert worker.join(60) and threading.stack_size() == size
print("ok")
"""


IMPORT_LOCK = """
import importlib._bootstrap, sys, _thread
import gevent.monkey
from splunk_profiler.system.threads import real
lock = importlib._bootstrap._get_module_lock("gevent.monkey")
lock.acquire()  # as an import of another thread has it
found, ended = [], _thread.allocate_lock()
ended.acquire()
_thread.start_new_thread(lambda: (found.append(real("_thread", "get_ident")), ended.release()), ())
assert ended.acquire(timeout=30), "it waits for the import"
assert found == [_thread.get_ident]
print("ok")
"""


INHERITANCE = """
import contextvars, weakref
from splunk_profiler.system.threads import WakeEvent, Worker
class Span: pass
current, over, seen = contextvars.ContextVar("current", default=None), WakeEvent(), []
current.set(Span())
ended = weakref.ref(current.get())
def body():
    over.wait(60)
    seen.append(current.get())
worker = Worker("subject", body)
worker.start()
current.set(None)
assert ended() is None, "the worker keeps it"
over.set()
assert worker.join(60) and seen == [None], seen
print("ok")
"""


def _run(code: str, *options: str) -> str:
    done = subprocess.run(
        [sys.executable, *options, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize("patches", [False, True])
def test_a_worker_is_no_thread_of_a_forked_child(patches: bool) -> None:
    options = ("-W", "ignore::DeprecationWarning")  # newer versions warn of forks beside threads
    assert _run(f"PATCHES = {patches}\n{FORK}", *options) == "ok\n"


def test_a_worker_has_the_stack_that_it_needs() -> None:
    assert _run(STACK) == "ok\n"


def test_stack_size_that_the_application_sets_meanwhile_stays() -> None:
    usual = threading.stack_size(1 << 16)
    try:
        with enough_stack():
            threading.stack_size(1 << 20)
        assert threading.stack_size(1 << 16) == 1 << 20
        with enough_stack():
            assert threading.stack_size(1 << 18) == 1 << 18
        assert threading.stack_size(usual) == 1 << 16
    finally:
        threading.stack_size(usual)


def test_worker_is_a_real_thread_if_gevent_patched_threading_before() -> None:
    assert _run(f"BEFORE = True\n{GEVENT}") == "ok\n"


def test_worker_is_a_real_thread_if_gevent_patches_threading_afterwards() -> None:
    assert _run(f"BEFORE = False\n{GEVENT}") == "ok\n"


def test_worker_has_no_span_of_the_thread_that_starts_it() -> None:
    assert _run(INHERITANCE, "-X", "thread_inherit_context=1") == "ok\n"  # has an effect from CPython 3.14 on


def test_what_gevent_replaces_is_found_without_an_import() -> None:
    assert _run(IMPORT_LOCK) == "ok\n"


class FrozenImports:
    """An import hook that lets nothing else be imported."""

    def find_spec(self, *_: object) -> None:
        raise RuntimeError("imports are frozen")


def test_what_a_lazy_import_has_not_loaded_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    assert real("colorsys", "rgb_to_hsv")(1, 1, 1) == (0, 0, 1)


def test_nothing_can_be_patched_where_an_import_hook_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("gevent", "eventlet"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(sys, "meta_path", [FrozenImports()])
    assert not threads.is_patch_possible()


def test_search_for_gevent_passes_on_what_a_signal_handler_raises() -> None:
    line = next(n for n in count(1) if not is_interrupted_by_signal(threads.is_patch_possible, threads, n))
    assert line > 1
