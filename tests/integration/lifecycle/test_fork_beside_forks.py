"""Forks by C code beside those of Python, where threads export: one at a time has the handlers of gRPC."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from c_library import NEEDS_COMPILER, compile_library
from receiver_process import Receiver
from target_process import Target, profiling_settings

pytestmark = [
    pytest.mark.skipif(find_spec("splunk_profiler._context") is None, reason="the native publisher is not built"),
    NEEDS_COMPILER,
]

FORKS = 60
PROGRAM = f"""
import ctypes, os, sys, threading
import splunk_profiler
library = ctypes.CDLL(sys.argv[1])
assert splunk_profiler.start()
print("ready", flush=True)
sys.stdin.readline()
def fork():
    child = os.fork()
    if child == 0:
        splunk_profiler.stop(30)
        os._exit(0)
    return os.waitpid(child, 0)[1]
def repeat(fork):
    statuses.append(sum(fork() for _ in range({FORKS})))
statuses = []
def repeat_in_c():
    while not statuses: assert library.fork_on_thread() == 0
threads = [threading.Thread(target=repeat, args=(fork,)), threading.Thread(target=repeat_in_c)]
for one in threads: one.start()
for one in threads: one.join()
print("statuses", *statuses, flush=True)
sys.stdin.readline()
splunk_profiler.stop(30)
"""


def test_c_code_and_python_may_fork_at_once_where_threads_export(tmp_path: Path) -> None:
    library = compile_library("foreign_forks.c", tmp_path)
    with Receiver() as receiver:
        env = profiling_settings(receiver.url, 10, SPLUNK_PROFILER_EXPORTER="thread")
        with Target(sys.executable, "-c", PROGRAM, str(library), env=env) as target:
            receiver.records(1)  # gRPC has registered its handlers
            target.tell("fork")
            assert target.line("statuses") == "0"
            seen = len(receiver.records())
            receiver.records(seen + 1)
            target.tell("stop")
            assert target.finish(timeout_s=120) == 0, target.output
