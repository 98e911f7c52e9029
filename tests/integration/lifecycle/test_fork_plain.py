"""`os.fork` in a process with many threads, while exports are under way: parent and children go on sending."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest
from forking_target import assert_goes_on, forking, record_of
from receiver_process import Receiver
from target_process import Target, profiling_settings

_CHILDREN = {"auto": 20, "portable": 6}  # a walk in Python of so many processes with 17 threads each takes its time
# The portable walker's processes export themselves: they fork in the middle of that. One exporter for 21 processes and
# more, beside other work on two processors, does not keep up with an export each millisecond for all of them.
_EXPORT_INTERVALS_MS = {"auto": "200", "portable": "1"}


# Each works for a quarter of a period.
SHORT_CHILDREN = """
import os, select, sys, time
import splunk_profiler
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
def in_child():
    until_s = time.monotonic() + 0.1
    while time.monotonic() < until_s: sum(range(1000))
trace.set_tracer_provider(TracerProvider())
assert splunk_profiler.start()
while not select.select([0], [], [], 0)[0]:
    if os.fork() == 0:
        in_child()
        splunk_profiler.stop(30)
        os._exit(0)
    os.wait()
"""


@pytest.mark.parametrize("how", ["os.fork", "thread"])
@pytest.mark.parametrize("walker", ["auto", "portable"])
def test_parent_and_forked_children_go_on_sending_under_their_own_pids(how: str, walker: str) -> None:
    settings = {"SPLUNK_PROFILER_EXPORT_INTERVAL": _EXPORT_INTERVALS_MS[walker], "SPLUNK_PROFILER_WALKER": walker}
    children = _CHILDREN[walker]
    with Receiver() as receiver, forking(receiver, how, children, 50, **settings) as (target, pid):
        target.tell("fork")
        target.line("forked")
        for line in target.lines(children, "child"):
            assert record_of(receiver, json.loads(line))["resource"]["set.in.code"] == "yes"
        assert_goes_on(receiver, pid)
        target.tell("stop")
        assert target.json("statuses") == [0] * children
        assert target.finish() == 0, target.output
        assert "Traceback" not in target.output, target.output


def test_children_that_live_for_less_than_a_period_are_sampled() -> None:
    with Receiver() as receiver:
        env = profiling_settings(receiver.url, 400, SPLUNK_PROFILER_EXPORT_INTERVAL="50")
        with Target(sys.executable, "-c", SHORT_CHILDREN, env=env) as target:
            parent = target.pid
            receiver.record(lambda one: one["resource"]["process.pid"] != parent and "in_child(" in one["body"])
            target.close_stdin()
            assert target.finish() == 0, target.output


def test_fork_during_a_hanging_export_leaves_parent_and_child_sending() -> None:
    with Receiver() as receiver, forking(receiver, "os.fork", 2) as (target, pid):
        receiver.switch("hang")
        receiver.exports(1, answer="hang")
        target.tell("fork")
        target.line("forked")
        receiver.switch("ok")
        for line in target.lines(2, "child"):
            record_of(receiver, json.loads(line))
        assert_goes_on(receiver, pid)
        target.tell("stop")
        assert target.finish() == 0, target.output


def _off_the_record() -> dict[str, str]:
    """Settings of a profiler whose collector does not matter."""
    return profiling_settings("http://127.0.0.1:9", 10, OTEL_SERVICE_NAME="forking")


@pytest.mark.parametrize("walker", ["auto", "portable"])
@pytest.mark.parametrize(("how", "status"), [("os.fork", "0"), ("forkpty", "-1")])
def test_after_a_fork_or_a_failed_one_threads_of_ours_can_log(walker: str, how: str, status: str) -> None:
    env = {**_off_the_record(), "SPLUNK_PROFILER_WALKER": walker}
    with Target("lines_after_forks.py", how, "INFO", env=env) as target:
        assert target.line("status", 150) == status
        assert target.line("parent", 150) == "True"
        assert target.finish() == 0, target.output
        assert target.output.count("profiling all threads") == 1  # the child does not repeat it


@pytest.mark.parametrize("walker", ["auto", "portable"])
def test_child_does_not_say_what_the_level_kept_back_at_the_start(walker: str) -> None:
    env = {**_off_the_record(), "SPLUNK_PROFILER_WALKER": walker}
    with Target("lines_after_forks.py", "os.fork", "WARNING", env=env) as target:
        assert target.finish() == 0, target.output
        assert "walker" not in target.output, target.output


@pytest.mark.parametrize(("walker", "level_at_start"), [("auto", "ERROR"), ("portable", "INFO")])
def test_fork_ends_while_another_thread_writes_a_log_line(walker: str, level_at_start: str) -> None:
    env = {**_off_the_record(), "SPLUNK_PROFILER_WALKER": walker}
    with Target("line_blocked_at_fork.py", level_at_start, env=env) as target:
        assert target.line("child") == "0", target.output


def test_a_fork_waits_for_grpc_to_be_loaded_as_long_as_that_gets_on(tmp_path: Path) -> None:
    env = {**_off_the_record(), "SPLUNK_PROFILER_EXPORTER": "thread"}
    with Target("importing_forks.py", "outside", str(tmp_path), env=env) as target:
        pid = target.line("forked")
        assert target.line("child") == f"{pid} with threads grpc"
        target.line("over")
        assert "Traceback" not in target.output, target.output


def test_fork_inside_an_import_that_grpc_waits_for_leaves_a_child_off(tmp_path: Path) -> None:
    env = {**_off_the_record(), "SPLUNK_PROFILER_EXPORTER": "thread"}
    with Target("importing_forks.py", "inside", str(tmp_path), env=env) as target:
        pid = target.line("forked")
        assert target.line("child") == f"{pid} alone grpc"
        target.line("over")
        assert "was forked while the profiler of its parent was loading" in target.output
        assert "Traceback" not in target.output, target.output


_IN_THE_FIRST_START = ["splunk_profiler.lifecycle.process", "splunk_profiler.lifecycle.sampling"]


def _fork_in_first_start(how: str, module: str) -> tuple[str, str]:
    """Return what the child says of the profiler, and all output."""
    with Target("starting_forks.py", how, module, env=_off_the_record()) as target:
        child = target.line("child")
        target.line("over")
        assert "Traceback" not in target.output, target.output
    return child, target.output


def test_fork_waits_for_a_first_start_on_another_thread_that_advances() -> None:
    child, _ = _fork_in_first_start("advancing", _IN_THE_FIRST_START[0])
    assert child == "runs"


@pytest.mark.parametrize("module", _IN_THE_FIRST_START)
def test_child_forked_inside_its_own_first_start_goes_on_with_it(module: str) -> None:
    child, _ = _fork_in_first_start("forking", module)
    assert child == "runs"


@pytest.mark.parametrize("module", _IN_THE_FIRST_START)
def test_child_forked_where_the_first_start_waits_for_the_fork_stays_off(module: str) -> None:
    child, output = _fork_in_first_start("waiting", module)
    assert child == "stays off"
    assert "was forked while the profiler of its parent was starting" in output


@pytest.mark.parametrize("how", ["subprocess", "gevent"])
def test_nothing_is_started_between_fork_and_exec(how: str) -> None:
    pytest.importorskip("gevent", reason="gevent is not installed")
    with Target("preexec.py", how, env=_off_the_record()) as target:
        assert target.finish() == 0
        assert target.line("before exec") == "1"
        assert target.line("socket") == "closed"
        if how == "subprocess":
            assert target.line("forked there:") == "with threads"
            assert target.line("started there:") == "with threads"
        assert target.line("parent") == "with threads"


@pytest.mark.parametrize("walker", ["native", "portable"])
def test_fork_while_another_thread_attaches_leaves_the_parent_exporting(walker: str) -> None:
    with (
        Receiver() as receiver,
        Target(
            "attaching_fork.py",
            env=profiling_settings(receiver.url, walker=walker, OTEL_SERVICE_NAME="forking"),  # waits for no provider
        ) as target,
    ):
        target.line("ready")
        receiver.record()
        target.tell("fork")
        target.line("forked")
        forked_ns = time.time_ns()
        receiver.record(lambda record: record["time_ns"] > forked_ns)
        target.tell("end")
        assert target.finish() == 0


@pytest.mark.parametrize("walker", ["native", "portable"])
def test_a_child_that_c_code_forks_goes_on_whatever_the_lost_threads_held(walker: str) -> None:
    with (
        Receiver() as receiver,
        Target("fork_inside_threading.py", env=profiling_settings(receiver.url, 5, walker)) as target,
    ):
        child = target.json("forked")
        if walker == "native":
            receiver.record(lambda record: record["resource"]["process.pid"] == child)
        target.tell("end")
        assert target.json("child") == 0, target.output
        assert target.finish() == 0, target.output
    assert ("without Python's hooks" in target.output) is (walker == "portable")


_FORK_BESIDE_WAIT = """
import ctypes, os, sys, threading, time
import splunk_profiler
assert splunk_profiler.start()
sys.setswitchinterval(60)
until = time.monotonic() + 0.2
while time.monotonic() < until:  # the sampler waits for the GIL soon, and longer than this
    pass
child = ctypes.PyDLL(None).fork()
sys.setswitchinterval(0.005)
if child == 0:
    threads = [threading.Thread(target=time.sleep, args=(0.001,)) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    os._exit(0)
print("child", os.waitpid(child, 0)[1], flush=True)
"""


@pytest.mark.parametrize("walker", ["native", "portable"])
def test_child_of_c_code_runs_threads_though_the_sampler_wanted_the_gil(walker: str) -> None:
    env = {**_off_the_record(), "SPLUNK_PROFILER_WALKER": walker}
    with Target(sys.executable, "-W", "ignore", "-c", _FORK_BESIDE_WAIT, env=env) as target:
        assert target.json("child") == 0
        assert target.finish() == 0, target.output
