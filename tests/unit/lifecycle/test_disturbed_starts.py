"""Starts, forks and log lines that handlers of the application disturb, each case in a process of its own."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
from short_programs import run_code


def test_start_that_a_signal_handler_ended_keeps_no_fork_waiting() -> None:
    code = """
import os, sys, threading, time
from splunk_profiler.activation import ForkGate

gate = ForkGate()

def interrupt(frame, event, _):
    if frame.f_code is ForkGate.__exit__.__code__:
        sys.settrace(None)
        raise KeyboardInterrupt  # as a handler would that runs before the first line

def fork():
    child = os.fork()
    if child == 0:
        os._exit(gate.has_locked_imports())
    print(os.waitpid(child, 0)[1])

sys.settrace(interrupt)
try:
    with gate:
        pass
except KeyboardInterrupt:
    pass
forking = threading.Thread(target=fork, daemon=True)
forking.start()
until = time.monotonic() + 30
while forking.is_alive() and time.monotonic() < until:
    sum(range(1000))
"""
    assert run_code(code, PYTHONWARNINGS="ignore") == "0\n"


def test_child_interrupted_by_a_signal_in_its_fork_is_profiled() -> None:
    code = """
import os, sys, threading
import splunk_profiler
from splunk_profiler.otel.runtime_id import RuntimeId

original = RuntimeId.new_for_child

def interrupted(self):
    RuntimeId.new_for_child = original
    raise KeyboardInterrupt

assert splunk_profiler.start()
RuntimeId.new_for_child = interrupted
child = os.fork()
if child == 0:
    print(splunk_profiler.start(), any("sampler" in thread.name for thread in threading.enumerate()), flush=True)
    splunk_profiler.stop(0)
    os._exit(0)
print(os.waitpid(child, 0)[1], flush=True)
splunk_profiler.stop(0)
"""
    said = run_code(code, SPLUNK_PROFILER_ENABLED="true", PYTHONWARNINGS="ignore")
    assert said.startswith("True True\n0\n")


@pytest.mark.skipif(find_spec("splunk_profiler._context") is None, reason="the extension is not built")
def test_child_that_c_code_forks_during_a_start_publishes_nothing() -> None:
    code = """
import ctypes, os
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
import splunk_profiler
from splunk_profiler.user_labels.labels import LABEL_PUBLISHER

trace.set_tracer_provider(TracerProvider())
original = LABEL_PUBLISHER.open

def fork(*arguments):
    LABEL_PUBLISHER.open = original
    child = ctypes.PyDLL(None).fork()
    if child == 0:
        from splunk_profiler import _context
        splunk_profiler.stop(0)
        before = _context.counters()["published"]
        with trace.get_tracer("child").start_as_current_span("work"):
            print(_context.counters()["published"] - before, _context.audit()[0], flush=True)
        os._exit(0)
    print(os.waitpid(child, 0)[1], flush=True)
    original(*arguments)

LABEL_PUBLISHER.open = fork
print(splunk_profiler.start(), flush=True)
splunk_profiler.stop(0)
"""
    said = run_code(code, SPLUNK_PROFILER_ENABLED="true", SPLUNK_PROFILER_EXPORTER="thread", PYTHONWARNINGS="ignore")
    assert said.startswith("0 0\n0\nTrue\n"), said


def test_hooks_of_multiprocessing_are_as_many_after_many_starts_and_forks() -> None:
    code = """
import multiprocessing.util
import splunk_profiler

def count_hooks(generations):
    for _ in range(3):
        assert splunk_profiler.start()
        splunk_profiler.stop(0)
    print(len(multiprocessing.util._afterfork_registry), flush=True)
    if generations:
        assert splunk_profiler.start()
        child = multiprocessing.get_context("fork").Process(target=count_hooks, args=(generations - 1,))
        child.start()
        child.join()

count_hooks(2)
"""
    said = run_code(code, SPLUNK_PROFILER_ENABLED="true", SPLUNK_PROFILER_EXPORTER="thread", PYTHONWARNINGS="ignore")
    counts = [line for line in said.splitlines() if line.isdigit()]  # and perhaps lines of the log, on a busy machine
    assert len(counts) == 3, said
    assert len(set(counts)) == 1, said


def test_log_handler_of_the_application_that_raises_stops_nothing() -> None:
    code = """
import logging
import splunk_profiler

class Raising(logging.Handler):
    def emit(self, record):
        raise ValueError("of the handler")

logging.getLogger().addHandler(Raising())
print(splunk_profiler.start(), flush=True)
splunk_profiler.stop(0)
"""
    said = run_code(code, SPLUNK_PROFILER_ENABLED="true", SPLUNK_PROFILER_CALL_STACK_INTERVAL="abc")
    assert said.startswith("True\n")
    assert "ValueError: of the handler" in said
    assert "SPLUNK_PROFILER_CALL_STACK_INTERVAL='abc'" in said


@pytest.mark.parametrize("method", ["_log", "handle"])
def test_logger_class_of_the_application_that_raises_stops_nothing(method: str) -> None:
    code = f"""
import logging

class Raising(logging.Logger):
    def {method}(self, *arguments, **options):
        if self.name == "splunk_profiler":
            raise LookupError("request_id")
        super().{method}(*arguments, **options)

logging.setLoggerClass(Raising)
import splunk_profiler
print(splunk_profiler.start(), flush=True)
splunk_profiler.stop(0)
"""
    said = run_code(code, SPLUNK_PROFILER_ENABLED="true", SPLUNK_PROFILER_CALL_STACK_INTERVAL="abc")
    assert said.startswith("True\n")
    assert "SPLUNK_PROFILER_CALL_STACK_INTERVAL='abc'" in said


def test_line_that_a_signal_handler_interrupts_passes_on_its_error() -> None:
    code = """
import logging, signal
from splunk_profiler.lifecycle import process
from splunk_profiler.system.guard import logger

class TimeLimit(Exception):
    pass

class Interrupted(logging.Handler):
    def emit(self, record):
        signal.raise_signal(signal.SIGALRM)

def end_job(*_):
    raise TimeLimit

signal.signal(signal.SIGALRM, end_job)
logging.getLogger().addHandler(Interrupted())
try:
    logger.warning("a line")
except TimeLimit:
    print("it arrives")
"""
    assert run_code(code) == "it arrives\n"


def test_closed_standard_error_stops_nothing_that_is_logged_to_it() -> None:
    code = """
import logging, sys
import splunk_profiler

logging.basicConfig()
sys.stderr.close()
print(splunk_profiler.start(), flush=True)
splunk_profiler.stop(0)
"""
    said = run_code(
        code,
        SPLUNK_PROFILER_ENABLED="true",
        SPLUNK_PROFILER_EXPORTER="thread",
        SPLUNK_PROFILER_CALL_STACK_INTERVAL="abc",
    )
    assert said == "True\n"


def test_no_thread_of_the_profiler_takes_the_lock_of_logging() -> None:
    code = """
import logging, threading

class Lock:
    def __init__(self, lock):
        self.lock, self.takers = lock, set()

    def acquire(self):
        self.takers.add(threading.current_thread().name)
        return self.lock.acquire()

    def release(self):
        self.lock.release()

    __enter__ = acquire

    def __exit__(self, *_):
        self.release()

class Handler(logging.Handler):
    has_line_of_ours = threading.Event()

    def emit(self, record):
        if record.threadName.startswith("splunk-profiler-"):
            self.has_line_of_ours.set()

logging.getLogger().addHandler(Handler())
logging._lock = Lock(logging._lock)
import splunk_profiler
assert splunk_profiler.start()
assert Handler.has_line_of_ours.wait(50)
splunk_profiler.stop(0)
print(sorted(logging._lock.takers))
"""
    said = run_code(code, SPLUNK_PROFILER_ENABLED="true", ELASTIC_OTEL_UNIVERSAL_PROFILING_INTEGRATION_ENABLED="true")
    assert said == "['MainThread']\n"


_LOGGED_BESIDE_GREENLETS = """
import io, logging, sys
{patch}
from splunk_profiler.lifecycle import process
from splunk_profiler.system.guard import logger
from splunk_profiler.system.threads import Worker, real_lock
entered, ended, leave = [], [], real_lock()
leave.acquire()
class Output(io.StringIO):
    def write(self, text):
        if "of ours" in text:
            entered.append(text)
            leave.acquire()  # with the lock of the handler, for which greenlets wait
        return super().write(text)
logging.basicConfig(stream=Output(), level=logging.INFO)
def work():
    logger.warning("a line of ours about %s", "x" + chr(10))
    logger.debug("nothing")
    ended.append(True)
Worker("log", work).start()
while not (entered or ended):
    pass
logging.getLogger("app").info("a line of the application")
leave.release()
logger.warning("a line from a greenlet")
print(logging.root.handlers[0].stream.getvalue())
"""


_greenlets = pytest.mark.parametrize(
    ("library", "patch"),
    [
        ("gevent", "from gevent import monkey; monkey.patch_all()"),
        ("eventlet", "import eventlet; eventlet.monkey_patch()"),
    ],
)


@_greenlets
def test_lines_of_our_threads_take_no_lock_that_greenlets_wait_for(library: str, patch: str) -> None:
    if find_spec(library) is None:
        pytest.skip(f"{library} is not there for this interpreter")
    printed = run_code(_LOGGED_BESIDE_GREENLETS.format(patch=patch)).splitlines()
    assert "INFO:app:a line of the application" in printed
    assert "WARNING:splunk_profiler:a line from a greenlet" in printed
    (ours,) = [line for line in printed if "of ours" in line or "nothing" in line]
    assert ours == r"WARNING:splunk_profiler:a line of ours about x\n"


_BEFORE_THE_START = """
if sys.__stderr__ is not None:
    os.close(2)
    os.execv(sys.executable, sys.orig_argv)
assert os.memfd_create("data") == 2
"""
_AFTER_THE_START = """
os.close(2)
assert os.memfd_create("data") == 2
"""
_BEFORE_A_FORK = f"""
import splunk_profiler
assert splunk_profiler.start()
{_AFTER_THE_START}
if child := os.fork():
    os._exit(os.waitpid(child, 0)[1] != 0)
"""
_LOGGED_ELSEWHERE = """
import os, sys
{before}
{patch}
from splunk_profiler.lifecycle import process
from splunk_profiler.system.guard import logger
from splunk_profiler.system.threads import Worker
{after}
logging_thread = Worker("log", lambda: logger.warning("a line of ours"))
logging_thread.start()
assert logging_thread.join(50)
sys.stdout.buffer.write(os.pread(2, 99999, 0))
"""


@_greenlets
@pytest.mark.parametrize(("before", "after"), [(_BEFORE_THE_START, ""), ("", _AFTER_THE_START), ("", _BEFORE_A_FORK)])
def test_file_with_the_number_of_a_closed_stderr_gets_no_lines(
    before: str, after: str, library: str, patch: str
) -> None:
    if find_spec(library) is None:
        pytest.skip(f"{library} is not there for this interpreter")
    code = _LOGGED_ELSEWHERE.format(before=before, after=after, patch=patch)
    assert run_code(code, PYTHONWARNINGS="ignore", SPLUNK_PROFILER_ENABLED="true") == ""


@_greenlets
def test_lines_go_to_the_stderr_that_is_there_at_the_start(library: str, patch: str) -> None:
    if find_spec(library) is None:
        pytest.skip(f"{library} is not there for this interpreter")
    redirected = 'import splunk_profiler; os.dup2(os.memfd_create("log"), 2); assert splunk_profiler.start()'
    code = _LOGGED_ELSEWHERE.format(before="", after=redirected, patch=patch)
    assert "a line of ours\n" in run_code(code, PYTHONWARNINGS="ignore", SPLUNK_PROFILER_ENABLED="true")


_HANDLERS = pytest.mark.parametrize("handlers", ["", "import logging; logging.basicConfig()"])


@_HANDLERS
@pytest.mark.parametrize(("before", "after"), [(_BEFORE_THE_START, ""), ("", _AFTER_THE_START), ("", _BEFORE_A_FORK)])
def test_file_in_the_place_of_standard_error_gets_no_lines(before: str, after: str, handlers: str) -> None:
    code = _LOGGED_ELSEWHERE.format(before=before, after=after, patch=handlers)
    assert run_code(code, PYTHONWARNINGS="ignore", SPLUNK_PROFILER_ENABLED="true") == ""


@_HANDLERS
def test_log_that_takes_the_place_of_standard_error_gets_lines(handlers: str) -> None:
    appended = _AFTER_THE_START + "import fcntl; fcntl.fcntl(2, fcntl.F_SETFL, os.O_APPEND)"
    code = _LOGGED_ELSEWHERE.format(before="", after=appended, patch=handlers)
    assert "a line of ours\n" in run_code(code, PYTHONWARNINGS="ignore", SPLUNK_PROFILER_ENABLED="true")
