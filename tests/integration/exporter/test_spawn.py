"""`spawn_exporter` starts a program that is not the host's child and has nothing of the host."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from target_process import TESTS, Target

pytest.importorskip("splunk_profiler._walker")
from owned_pairs import owned_pair

from splunk_profiler._walker import OwnedSocket, show_in_maps, spawn_exporter
from splunk_profiler.system.threads import read_proc_file

_OF_PYTHON = {signal.SIGPIPE, signal.SIGXFSZ}  # which it ignores itself
_PROGRAM = os.fsencode(shutil.which("true") or "")


@pytest.fixture
def theirs() -> Iterator[OwnedSocket]:
    owned, ours = owned_pair()
    with ours:
        yield owned
    owned.close()


def _mask(*signals: signal.Signals) -> int:
    return sum(1 << (number - 1) for number in signals)


def _spawn_under(condition: str) -> Any:
    with Target("spawning.py", condition) as target:
        assert target.json("running") == ["no child", 0]
        assert target.json("ended") == ["no child", 0]
        assert target.finish() == 0
        return target.json("state")


@pytest.mark.parametrize("condition", ["plain", "blocked signals", "descriptors", "old filter", "standard descriptors"])
def test_spawned_program_has_nothing_of_its_host(condition: str) -> None:
    state = _spawn_under(condition)
    assert state["parent"] != state["host"]
    assert state["session"] == state["pid"]
    assert state["nice"] == os.nice(0)
    assert sorted(state["descriptors"]) == ["0", "1", "2", "3"]
    assert {state["descriptors"][number] for number in "012"} == {"/dev/null"}
    assert state["descriptors"]["3"].startswith("socket:")
    assert (state["blocked"], state["caught"]) == (0, 0)
    assert state["ignored"] == _mask(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, *_OF_PYTHON)
    assert state["arguments"] == ["one", ""]
    assert {**state["environment"], "LC_CTYPE": ""} == {"ONLY": "\udcff", "LC_CTYPE": ""}  # Python sets LC_CTYPE


def test_spawned_program_of_a_real_time_host_is_not_real_time() -> None:
    if subprocess.run(["chrt", "--rr", "10", "true"], capture_output=True, check=False).returncode:
        pytest.skip("the kernel refuses real-time scheduling")
    assert _spawn_under("real time")["policy"] == os.SCHED_OTHER


def test_spawned_program_of_a_batch_host_is_one_too() -> None:
    assert _spawn_under("batch")["policy"] == os.SCHED_BATCH


@pytest.mark.parametrize(
    ("condition", "error"),
    [
        ("subreaper", "ECHILD"),
        ("no clone", "EPERM"),
        ("no exec", "EACCES"),
        ("process limit", "EAGAIN"),
        ("no second clone", "ECANCELED"),
    ],
)
def test_spawn_that_the_system_refuses_is_an_error(condition: str, error: str) -> None:
    assert _spawn_under(condition)["error"] == error


@pytest.mark.parametrize(
    ("condition", "error"),
    [("no list of descriptors", "ENOENT"), ("no close_range either", "ENOSYS")],  # ENOENT: there is no program
)
def test_descriptors_are_closed_without_a_list_where_the_kernel_can(condition: str, error: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("chroot needs root")
    assert _spawn_under(condition)["error"] == error


def test_spawned_program_killed_before_exec_leaves_the_host_going_on() -> None:
    assert _spawn_under("killed").keys() == {"host"}


def test_spawn_as_process_1_is_refused() -> None:
    command = ["unshare", "--pid", "--fork", "--mount-proc"]
    if subprocess.run([*command, "true"], capture_output=True, check=False).returncode:
        pytest.skip("the kernel refuses a namespace of process ids")
    with Target(*command, sys.executable, str(TESTS / "targets" / "spawning.py"), "plain") as target:
        state = target.json("state")
        assert state["error"] == "ECHILD"
        assert "adopts orphans" in state["text"]
        assert target.json("running") == ["no child", 0]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ([b"/no/such/program"], FileNotFoundError),
        ([b"/"], PermissionError),
        ([_PROGRAM, b"x" * 1_000_000], OSError),
        ([], ValueError),
        ([b"a\0b"], ValueError),
        (["text"], TypeError),
        ((_PROGRAM,), TypeError),
    ],
)
def test_spawn_of_what_cannot_be_is_an_error(arguments: Any, error: type[Exception], theirs: OwnedSocket) -> None:
    with pytest.raises(error):
        spawn_exporter(arguments, [], theirs)


def test_spawn_with_a_number_that_is_anothers_is_an_error(theirs: OwnedSocket, tmp_path: Path) -> None:
    number = theirs.descriptor
    with (tmp_path / "file").open("wb") as file:
        os.dup2(file.fileno(), number)
    with pytest.raises(OSError, match="Bad file"):
        spawn_exporter([_PROGRAM], [], theirs)
    os.close(number)
    with pytest.raises(OSError, match="Bad file"):
        spawn_exporter([_PROGRAM], [], theirs)
    with pytest.raises(TypeError):
        spawn_exporter([_PROGRAM], [], 0)  # type: ignore[arg-type]


@pytest.mark.parametrize("environment", [["text"], [b"a\0b"], ()])
def test_spawn_with_a_wrong_environment_is_an_error(environment: Any, theirs: OwnedSocket) -> None:
    with pytest.raises((TypeError, ValueError)):
        spawn_exporter([_PROGRAM], environment, theirs)


def test_many_spawns_on_threads_leave_no_memory_and_no_child_behind() -> None:
    def spawn() -> None:
        theirs, ours = owned_pair()
        with ours:
            spawn_exporter([_PROGRAM], [b"A=1"], theirs)
            with pytest.raises(FileNotFoundError):
                spawn_exporter([b"/no/such/program"], [b"A=1"], theirs)
            theirs.close()
            assert ours.recv(1) == b""  # it has ended

    def spawn_often() -> None:
        for _ in range(25):
            spawn()

    spawn_often()
    children = Path(f"/proc/self/task/{threading.get_native_id()}/children")
    before = Path("/proc/self/maps").read_text("utf-8").count("\n"), read_proc_file(children)
    threads = [threading.Thread(target=spawn_often) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    after = Path("/proc/self/maps").read_text("utf-8").count("\n")
    assert after - before[0] < 25  # of threads' stacks and arenas; each spawn has a mapping
    assert read_proc_file(children) == before[1]


def test_a_text_that_is_shown_stays_until_another_or_none_is() -> None:
    for text in ("first reason", "second reason", ""):
        show_in_maps(text)
        shown = [line for line in read_proc_file("/proc/self/maps").splitlines() if " reason" in line]
        assert [text in line for line in shown] == [True] * bool(text)
    with pytest.raises(OSError, match="Invalid argument"):
        show_in_maps("x" * 250)
    show_in_maps("é" * 124)
    show_in_maps("")
