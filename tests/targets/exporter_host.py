"""A host of an exporter process with sessions of `EchoSession`: ``exporter_host.py SCENARIO``.

Says ``exporter PID`` once it is connected, and results as JSON. Input that is closed ends what waits.
"""

from __future__ import annotations

import sys
from importlib import import_module

if sys.argv[1] == "gevent":
    import_module("gevent.monkey").patch_all()

import contextlib
import ctypes
import multiprocessing
import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from exporter_processes import ask, exporter_pid, new_connection, send, wait_for_end
from marked_work import say
from target_process import let_exporter_run

from splunk_profiler._walker import set_after_fork_in_child
from splunk_profiler.exporter_process.connection import MAX_ANSWER_S
from splunk_profiler.exporter_process.launch import LaunchError, choose_interpreter

_FORKS = 50
_NOBODY = 65534
_MAX_PAUSE_S = 60.0  # before a start
_TOKEN = os.urandom(16).hex()
CONNECTION = new_connection(token=_TOKEN)


def _connect() -> None:
    say("exporter", exporter_pid(CONNECTION))


def _find_child() -> str:
    try:
        return str(os.wait())
    except ChildProcessError:
        return "no child"


def _greet(name: str) -> None:
    """Send a line of this process and end its connection."""
    answer = ask(CONNECTION, name.encode())
    assert answer == name.encode(), answer
    assert CONNECTION.close(30)


def serve() -> None:
    _connect()
    for line in sys.stdin:
        send(CONNECTION, line.encode())
        say("sent")
    say("closed", CONNECTION.close(30))


def wait_for_children() -> None:
    deliveries: list[int] = []
    signal.signal(signal.SIGCHLD, lambda number, _: deliveries.append(number))
    _connect()
    waited = [_find_child()]
    subprocess.run(["true"], check=True, preexec_fn=lambda: None)
    context = multiprocessing.get_context("fork")
    process = context.Process(target=_greet, args=("multiprocessing",))
    process.start()
    process.join()
    waited.append(_find_child())
    say("waited", [*waited, process.exitcode, len(deliveries)])
    say("closed", CONNECTION.close(30))


def restart_beside_waiting_thread() -> None:
    """Have a thread wait for any child, again and again, while exporters start."""
    passed_s = 0.0
    connection = new_connection(token=_TOKEN, clock=lambda: time.monotonic() + passed_s)
    seen: list[tuple[int, int]] = []
    tries, over = 0, threading.Event()

    def wait_often() -> None:
        nonlocal tries
        while not over.is_set():
            tries += 1
            with contextlib.suppress(ChildProcessError):
                seen.append(os.wait() if tries % 2 else os.waitpid(-1, 0))

    def restart() -> None:
        nonlocal passed_s
        pid = exporter_pid(connection)
        say("exporter", pid)
        os.kill(pid, signal.SIGKILL)
        wait_for_end(pid)
        passed_s += _MAX_PAUSE_S

    waiting = threading.Thread(target=wait_often)
    waiting.start()
    for _ in range(3):
        restart()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writer)
        os.read(reader, 1)
        os._exit(0)
    restart()  # now the thread waits for this child
    say("exporter", exporter_pid(connection))
    os.close(writer)
    while not seen:
        let_exporter_run()
    over.set()
    waiting.join()
    say("child", child)
    say("tries", tries)
    say("seen", seen)
    say("closed", connection.close(30))


def exit_at_once() -> None:
    pid = exporter_pid(CONNECTION)
    os.kill(pid, signal.SIGSTOP)  # it surely outlives this process
    say("exporter", pid)
    os._exit(0)


def close_descriptors() -> None:
    _connect()
    before = {int(name) for name in os.listdir("/proc/self/fd")}  # noqa: PTH208
    os.closerange(3, 1024)
    files = [tempfile.TemporaryFile(buffering=0) for _ in range(10)]  # noqa: SIM115  # stay open
    pairs = [socket.socketpair() for _ in range(10)]
    numbers = {file.fileno() for file in files} | {end.fileno() for pair in pairs for end in pair}
    _connect()  # anew
    assert CONNECTION.close(30)
    contents = [os.pread(file.fileno(), 100, 0) for file in files]
    for pair in pairs:
        for end in pair:
            end.setblocking(False)
            try:
                contents.append(end.recv(100))
            except BlockingIOError:
                contents.append(b"")
    say("reused", len(numbers & before))
    say("contents", [content.decode() for content in contents])
    sys.stdout.flush()
    os._exit(0)  # objects of libraries would close numbers that are others' now


def become_daemon() -> None:
    _connect()
    if os.fork():
        os._exit(0)
    os.setsid()
    if os.fork():
        os._exit(0)
    os.closerange(3, 1024)
    os.chdir("/")
    say("daemon", os.getpid())
    _connect()
    _greet("daemon")
    os._exit(0)


def fork_often(fork: Callable[[], int]) -> None:
    _connect()
    set_after_fork_in_child(CONNECTION.reset_after_fork)  # also has the GIL made anew after a fork of C code
    over = threading.Event()

    def send_until_over() -> None:
        while not over.is_set():
            CONNECTION.send(b"drop\n")

    sender = threading.Thread(target=send_until_over)
    sender.start()
    children = []
    for number in range(_FORKS):
        child = fork()
        if child == 0:
            status = 1
            try:
                _greet(f"child {number}")
                status = 0
            finally:
                os._exit(status)
        children.append(child)
    say("statuses", [os.waitpid(child, 0)[1] for child in children])
    over.set()
    sender.join()
    say("connected", exporter_pid(CONNECTION))
    _greet("parent")


def fork_child_that_never_connects() -> None:
    _connect()
    set_after_fork_in_child(lambda: None)
    child = ctypes.PyDLL(None).fork()
    if child:
        say("child", child)
    signal.pause()


def fork_beside_stopped_exporter() -> None:
    passed_s = 0.0
    connection = new_connection(token=_TOKEN, clock=lambda: time.monotonic() + passed_s)
    exporter = exporter_pid(connection)
    say("exporter", exporter)
    os.kill(exporter, signal.SIGSTOP)
    child = os.fork()
    if child == 0:
        grandchild = os.fork()  # its parent has not started the exporter: it has to wait for the answer
        if grandchild:
            os._exit(os.waitpid(grandchild, 0)[1])
        taken = [connection.send(b"drop\n")]
        passed_s += MAX_ANSWER_S
        taken.append(connection.send(b"drop\n"))
        say("silence", connection.failure)
        taken.append(connection.send(b"drop\n"))
        say("taken", taken)
        os.kill(exporter, signal.SIGCONT)
        say("connected", exporter_pid(connection))
        assert connection.close(30)
        os._exit(0)
    say("status", os.waitpid(child, 0)[1])
    assert connection.close(30)


def fork_and_end_before_exporter_runs() -> None:
    exporter = exporter_pid(CONNECTION)
    say("exporter", exporter)
    os.kill(exporter, signal.SIGSTOP)
    child = os.fork()
    if child == 0:
        sent = CONNECTION.send(b"last words\n")
        confirmed = CONNECTION.close(0.1)
        say("child", [sent, confirmed])
        os._exit(0)
    os.waitpid(child, 0)
    os.kill(exporter, signal.SIGCONT)
    _greet("parent")


def _unavailable_reason() -> str:
    """Return the reason why this process can have no exporter; empty if it can."""
    try:
        choose_interpreter("auto", is_native=True)
    except LaunchError as error:
        return str(error)
    return ""


def start_in_chroot() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chroot(folder)
        say("obstacle", _unavailable_reason())


def start_as_process_1() -> None:
    say("pid", os.getpid())
    say("obstacle", _unavailable_reason())
    child = os.fork()
    if child == 0:
        say("child", _unavailable_reason())
        os._exit(0)
    os.waitpid(child, 0)
    child = os.fork()
    if child == 0:
        # As a server's worker: it has a title of its own, and may not read whose program process 1 is.
        ctypes.memset(int(Path("/proc/self/stat").read_text("utf-8").rpartition(")")[2].split()[45]), ord("w"), 1)
        os.setuid(_NOBODY)
        say("worker", _unavailable_reason())
        os._exit(0)
    os.waitpid(child, 0)
    say("left", _find_child())


def fork_to_another_user() -> None:
    _connect()
    child = os.fork()
    if child == 0:
        CONNECTION.reset_after_fork()
        other = new_connection(token=_TOKEN)  # while the interpreter is in reach
        os.setuid(_NOBODY)
        say("same user", CONNECTION.send(b"before\n"))
        CONNECTION.close(30)
        # The interpreter may be out of reach of this user.
        say("other user", exporter_pid(other) if other.send(b"") else other.failure)
        other.close(30)
        os._exit(0)
    os.waitpid(child, 0)
    _greet("parent")


SCENARIOS: dict[str, Callable[[], None]] = {
    "serve": serve,
    "gevent": serve,
    "wait": wait_for_children,
    "waiting thread": restart_beside_waiting_thread,
    "exit": exit_at_once,
    "close descriptors": close_descriptors,
    "daemon": become_daemon,
    "os.fork": lambda: fork_often(os.fork),
    "fork of C code": lambda: fork_often(ctypes.PyDLL(None).fork),
    "child of C code": fork_child_that_never_connects,
    "stopped exporter": fork_beside_stopped_exporter,
    "late exporter": fork_and_end_before_exporter_runs,
    "chroot": start_in_chroot,
    "process 1": start_as_process_1,
    "another user": fork_to_another_user,
}

if __name__ == "__main__":
    SCENARIOS[sys.argv[1]]()
