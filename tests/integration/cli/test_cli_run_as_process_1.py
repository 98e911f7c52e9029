"""``splunk-profiler run`` as process 1 of a container: the application sees nothing of the init beside it."""

from __future__ import annotations

import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from fcntl import ioctl
from pathlib import Path

import pytest
from command_line import COMMAND, ROOT, UNREACHABLE_URL, splunk_profiler
from pid_namespace import NAMESPACE, children, process_1, skip_without_namespace
from receiver_process import Receiver
from target_process import TESTS, Target, environment, profiling_settings

pytest.importorskip("splunk_profiler._walker")
from exporter_processes import wait_for_end

_RUN = [*COMMAND, "run", "--endpoint", UNREACHABLE_URL, "--"]
_CONTAINED = [sys.executable, "-I", "-S", str(TESTS / "targets" / "contained.py")]
# What a runtime or an administrator sends. SIGPIPE is one that the launcher's own Python ignores.
_SIGNALS = [
    *(signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGWINCH, signal.SIGTSTP),
    *(signal.SIGTTIN, signal.SIGTTOU, signal.SIGCONT, signal.SIGABRT, signal.SIGSEGV, signal.SIGPIPE, signal.SIGALRM),
    *(signal.SIGRTMIN, signal.SIGRTMAX),
]


@pytest.fixture(autouse=True)
def _namespace() -> None:
    skip_without_namespace()


def _contained(*arguments: str, before: str = "", env: dict[str, str] | None = None) -> Target:
    """Run a part of `contained.py`; process 1 runs the Python code `before` first."""
    prepare = f"import os, signal, sys, seccomp\n{before}\nos.execvp(sys.argv[1], sys.argv[1:])"
    prepared = [sys.executable, "-c", prepare] if before else []
    return Target(*NAMESPACE, *prepared, *_RUN, *_CONTAINED, *arguments, env=env, cwd=ROOT)


@pytest.mark.parametrize(("end", "status"), [("exit 0", 0), ("exit 37", 37), ("kill 9", 137), ("kill 15", 143)])
def test_status_of_process_1_is_that_of_the_application(end: str, status: int) -> None:
    with _contained(*end.split()) as target:
        assert target.finish() == status


def test_command_that_cannot_be_executed_ends_with_its_status(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/no/such/interpreter\n", "utf-8")
    script.chmod(0o755)
    with Target(*NAMESPACE, *_RUN, str(script), cwd=ROOT) as target:
        assert target.finish() == 127
        assert "names an interpreter that does not exist" in target.output


def test_each_signal_to_process_1_reaches_the_application_once() -> None:
    with _contained("signals") as target:
        target.json("state")
        init = process_1(target.pid)
        for count, number in enumerate(_SIGNALS, 1):
            os.kill(init, number)
            assert target.lines(count, "signal")[-1] == str(int(number))
        os.kill(init, signal.SIGUSR2)
        assert target.finish() == 5
        assert len(target.lines(len(_SIGNALS), "signal")) == len(_SIGNALS)


def test_orphans_of_the_application_are_reaped_by_process_1() -> None:
    with _contained("orphan") as target:
        target.line("reaped")
        assert target.finish() == 0


def test_application_is_left_as_an_executed_one_would_be() -> None:
    with Target(*NAMESPACE, *_CONTAINED, "exit", "0", cwd=ROOT) as alone:
        expected = alone.json("state")
    with _contained("exit", "0", env={"LISTEN_PID": "1"}) as target:
        state = target.json("state")
    assert state["parent"] == 1
    assert state["pid"] == state["group"] == state["session"] != 1
    assert state["signals"] == expected["signals"]
    assert state["files"].keys() == expected["files"].keys()
    assert state["directory"] == str(ROOT)
    assert set(state["variables"].values()) == {str(state["pid"])}
    assert state["files of process 1"] == {}
    assert state["directory of process 1"] == "/"


def test_closed_descriptors_and_ignored_signals_stay_so() -> None:
    ignored = (signal.SIGCHLD, signal.SIGUSR1)  # where SIGCHLD is ignored, the kernel drops the statuses of children
    before = "".join(f"signal.signal({int(number)}, signal.SIG_IGN)\n" for number in ignored)
    with _contained("exit", "9", before=f"{before}os.dup2(1, 7)\nos.close(0)\nos.close(2)") as target:
        state = target.json("state")
        assert target.finish() == 9
    assert state["files"].keys() == {"1", "7"}
    for number in ignored:
        assert state["signals"]["SigIgn"] & (1 << (number - 1))


@pytest.mark.parametrize("setting", ["SPLUNK_PROFILER_ENABLED=false", "SPLUNK_PROFILER_EXPORTER=thread"])
def test_application_without_an_exporter_process_is_process_1(setting: str) -> None:
    name, _, value = setting.partition("=")
    with _contained("exit", "0", env={name: value}) as target:
        assert target.json("state")["pid"] == 1
        assert target.finish() == 0


def test_application_is_process_1_if_there_is_no_room_for_another() -> None:
    with _contained("exit", "3", before="seccomp.refuse('clone')") as target:
        state = target.json("state")
        assert target.finish() == 3
    assert state["pid"] == 1


@contextmanager
def _on_terminal(*command: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Run a command with a terminal as its standard input, and yield the other end of that as well."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        command, stdin=theirs, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment()
    ) as process:
        try:
            yield process, ours
        finally:
            process.kill()
            os.close(ours)
            os.close(theirs)


@pytest.mark.parametrize("is_container", [True, False], ids=["container", "job of a shell"])
def test_application_has_the_terminal_and_its_signals_once(is_container: bool) -> None:
    lead = ["setsid", "--ctty"]  # a container's process 1 leads a session; that of a shell's job has the shell's
    before = [*NAMESPACE, *lead] if is_container else [*lead, *NAMESPACE]
    with _on_terminal(*before, *_RUN, *_CONTAINED, "signals") as (process, terminal):
        assert process.stdout is not None
        state = json.loads(process.stdout.readline().removeprefix("state "))
        os.write(terminal, b"\x03")
        assert process.stdout.readline() == f"signal {int(signal.SIGINT)}\n"
        ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 90, 0, 0))
        assert process.stdout.readline() == f"signal {int(signal.SIGWINCH)}\n"
        os.write(terminal, b"\x1a")
        assert process.stdout.readline() == f"signal {int(signal.SIGTSTP)}\n"
        os.kill(process_1(process.pid), signal.SIGUSR2)
        assert process.stdout.read() == ""
        assert process.wait() == 5
    assert state["foreground"] == state["group"]
    if is_container:
        assert state["pid"] == state["group"] == state["session"]


def test_process_beside_the_application_keeps_the_terminal() -> None:
    beside = ["setsid", "--ctty", "sh", "-c", 'sleep 1000 & exec "$@"', "sh"]  # as an entry point starts a helper
    with _on_terminal(*NAMESPACE, *beside, *_RUN, *_CONTAINED, "signals") as (process, terminal):
        assert process.stdout is not None
        state = json.loads(process.stdout.readline().removeprefix("state "))
        init = process_1(process.pid)
        os.write(terminal, b"\x03")
        assert process.stdout.readline() == f"signal {int(signal.SIGINT)}\n"
        helper, _ = children(init)
        assert Path(f"/proc/{helper}/comm").read_text("utf-8") == "sleep\n"
        os.kill(init, signal.SIGUSR2)
        assert process.stdout.read() == ""
        assert process.wait() == 5
    assert state["session"] == 1
    assert state["foreground"] == state["group"]


def test_wait_of_the_application_never_finds_the_exporter() -> None:
    with Receiver() as receiver:
        words = [*COMMAND, "run", "--", sys.executable, str(TESTS / "targets" / "exported_service.py")]
        with Target(*NAMESPACE, *words, env=profiling_settings(receiver.url, 10), cwd=ROOT) as target:
            receiver.record()
            init = process_1(target.pid)
            application, exporter = children(init)
            assert b"exporter_process" in Path(f"/proc/{exporter}/cmdline").read_bytes()
            target.tell("wait")
            assert target.json("waited") == 1  # its own child: process 1 adopts the orphan
            target.tell("stop")
            assert target.finish() == 0, target.output
    assert application != exporter


def test_commands_given_process_1_look_at_the_application() -> None:
    helped = ("sh", "-c", 'sleep 1000 & exec "$@"', "sh")  # process 1 has an older child
    service = [*COMMAND, "run", "--", sys.executable, str(TESTS / "targets" / "exported_service.py")]
    with Receiver() as receiver:
        env = profiling_settings(receiver.url, 10, OTEL_SERVICE_NAME="shop")
        with Target(*NAMESPACE, *helped, *service, env=env, cwd=ROOT) as target:
            receiver.record()
            init = process_1(target.pid)
            application = children(init)[1]
            doctor = splunk_profiler("doctor", "--pid", str(init), "--no-export", "--json")
            inspected = splunk_profiler("inspect", str(init), "--json")
            agent = splunk_profiler("host-agent", str(init), "--duration", "0.1", "--json")
            target.tell("stop")
    line = f"process {init} is the launcher (splunk-profiler run): looking at {application}, which it waits for\n"
    assert doctor.stderr == inspected.stderr == agent.stderr == line
    assert (doctor.returncode, inspected.returncode, agent.returncode) == (0, 0, 0)
    assert f'"fact": "{application}: ' in doctor.stdout
    assert json.loads(inspected.stdout)["pid"] == json.loads(agent.stdout.splitlines()[0])["pid"] == application


@contextmanager
def _hosting(folder: Path) -> Iterator[tuple[Target, int, int]]:
    """Run an application that is connected to an exporter of `EchoSession`; yield both process ids as well."""
    env = {
        "SPLUNK_PROFILER_OUTPUT": f"stream:{folder / 'streams'}",  # the profiler itself starts no exporter
        "LC_ECHO_FOLDER": str(folder / "noted"),
    }
    (folder / "noted").mkdir()
    words = [*COMMAND, "run", "--", sys.executable, str(TESTS / "targets" / "exporter_host.py"), "serve"]
    with Target(*NAMESPACE, *words, env=env, cwd=ROOT) as target:
        target.line("exporter")
        application, exporter = children(process_1(target.pid))
        yield target, application, exporter


def test_container_ends_after_the_last_records_are_sent(tmp_path: Path) -> None:
    with _hosting(tmp_path) as (target, application, _):
        target.tell("slow")  # the exporter takes the whole of its time
        target.line("sent")
        killed_s = time.monotonic()
        os.kill(application, signal.SIGKILL)
        assert target.finish() == 128 + signal.SIGKILL
        assert time.monotonic() - killed_s > 2.0  # `EchoSession.end_timeout_s`
    assert [path.suffix for path in (tmp_path / "noted").iterdir()] == [""]


def test_container_ends_although_the_exporter_does_not(tmp_path: Path) -> None:
    with _hosting(tmp_path) as (target, application, exporter):
        os.kill(exporter, signal.SIGSTOP)
        os.kill(application, signal.SIGKILL)
        assert target.finish() == 128 + signal.SIGKILL
        wait_for_end(exporter)
