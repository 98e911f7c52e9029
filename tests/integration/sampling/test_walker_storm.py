"""The native walker while everything moves: threads, exec'd code, recursion, the collector, forks, the end."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from c_library import compile_library
from target_process import Target

pytest.importorskip("splunk_profiler._walker", reason="the native walker is not built for this interpreter")


@pytest.mark.takes_long
def test_stacks_are_whole_and_nothing_leaks_while_threads_come_and_go() -> None:
    with Target("walker_storm.py", "2000", "1000") as target:
        target.line("ready")
        assert target.finish(timeout_s=240) == 0
        last = target.output.splitlines()[-2:]
        assert last[1] == "ok"
        counters = json.loads(last[0])
    assert counters["captured"] + counters["missed"] == counters["due"]
    any_thread_runs_calls = sys.version_info >= (3, 12)  # else the ticker pauses Python for each snapshot
    assert (counters["by_pending_call"] > 0) == any_thread_runs_calls


def test_forks_beside_a_delay_of_forks_and_threads_that_end_go_on() -> None:
    with Target("delayed_forks.py") as target:
        target.line("over", 240)
        assert target.finish() == 0, target.output


FORKED_BEFORE = """
import ctypes, os, sys, threading
threading.Thread(target=threading.Event().wait, daemon=True).start()  # the child does not have it
child = ctypes.PyDLL(None).fork()
if child:
    os._exit(os.waitpid(child, 0)[1])
from walker_forks import start
ticker, run = start()
threads = ticker.drain(10_000_000_000)[-1].threads
print("main threads", [thread.native_id for thread in threads].count(os.getpid()), flush=True)
ticker.stop()
os._exit(0)
"""


ENDINGS = [
    "return",
    "sys.exit",
    "os._exit",
    "unhandled",
    "main thread first",
    "stopped and dropped",
    "collected",
    "after C code",
    "long finaliser",
]
FILL_FREED_MEMORY = "glibc.malloc.perturb=170:glibc.malloc.tcache_count=0"
HAS_INTERPRETERS = any(find_spec(name) is not None for name in ("_interpreters", "_xxsubinterpreters"))
needs_interpreters = pytest.mark.skipif(
    not HAS_INTERPRETERS, reason="this interpreter has no module for subinterpreters"
)


@pytest.mark.parametrize("ending", [*ENDINGS, pytest.param("another interpreter", marks=needs_interpreters)])
def test_a_process_ends_as_it_would_without_the_walker(ending: str) -> None:
    with Target("walker_endings.py", ending, env={"GLIBC_TUNABLES": FILL_FREED_MEMORY}) as target:
        target.line("ready")
        assert target.finish() == (1 if ending == "unhandled" else 0)
        assert "Fatal" not in target.output


FORKS = ["os.fork", "C code", "C code without the GIL", "os.fork in a thread", "C code in a thread", "twice"]


@pytest.mark.parametrize("how", FORKS)
def test_a_forked_child_is_noticed_and_samples_for_itself(how: str) -> None:
    with Target("walker_forks.py", how) as target:
        assert target.finish(240) == 0  # forks with a sanitizer take a second each beside other work
        assert set(target.lines(40, "child")) == {"noticed, alone, sampling"}
        assert target.line("parent") == "sampling"


@pytest.mark.skipif(sys.version_info < (3, 11), reason="thread states have no native ids before CPython 3.11")
def test_child_of_c_code_loads_the_walker_after_the_fork() -> None:
    with Target(sys.executable, "-c", FORKED_BEFORE) as target:
        assert target.line("main threads") == "1"
        assert target.finish() == 0, target.output


def test_a_child_that_execs_another_program_is_left_alone() -> None:
    with Target("walker_forks.py", "exec") as target:
        assert target.finish() == 0
        assert target.line("parent") == "sampling"
        assert "child" not in target.output


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """C code that forks."""
    return compile_library("foreign_forks.c", tmp_path_factory.mktemp("library"))


@pytest.mark.parametrize("how", ["lock", "os.fork", "C code without the GIL", "thread of C code"])
def test_forks_continue_while_other_threads_want_the_gil_and_locks(how: str, library: Path) -> None:
    with Target("foreign_forks.py", how, str(library)) as target:
        assert target.finish(timeout_s=240) == 0
        assert target.line("went well") == "300"


@pytest.mark.parametrize("how", ["os.fork", "C code", "C code without the GIL"])
def test_children_inherit_no_lock_of_a_log_handler_that_our_thread_uses(how: str, library: Path) -> None:
    with Target("foreign_forks.py", f"log {how}", str(library)) as target:
        assert target.finish() == 0
        assert target.line("went well") == "60"


@pytest.mark.parametrize("how", ["kept", "kept, native thread", "used, native thread"])
def test_child_of_a_fork_while_our_thread_keeps_the_gil_runs_python(how: str, library: Path) -> None:
    with Target("foreign_forks.py", how, str(library)) as target:
        assert target.finish() == 0
        assert target.line("status") == "0"


def test_forks_leave_room_in_the_queue_of_pending_calls(library: Path) -> None:
    with Target("foreign_forks.py", "queue", str(library)) as target:
        assert target.finish() == 0
        assert target.line("posted") == "16"
