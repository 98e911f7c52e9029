"""Starts `spawned.py` by `spawn_exporter`, and says as JSON what came of it: ``spawning.py CONDITION``.

Says ``running`` and ``ended`` (what `os.wait` finds and how often SIGCHLD came by then) and ``state`` (what the program
found, or the error).
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import seccomp
from marked_work import say
from owned_pairs import owned_pair

from splunk_profiler._walker import OwnedSocket, spawn_exporter

_PROGRAM = Path(__file__).with_name("spawned.py")
_PR_SET_CHILD_SUBREAPER = 36
_NOBODY = 65534


def _become_subreaper() -> None:
    assert ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0


def _limit_processes() -> None:
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
    if os.getuid() == 0:
        os.setuid(_NOBODY)  # the limit does not hold for root


def _open_others() -> None:
    for descriptor in os.pipe():
        os.set_inheritable(descriptor, True)
    os.dup2(1, 700)


def _open_others_below_an_old_filter() -> None:
    _open_others()
    for _ in range(300):  # more than one list has room for
        os.dup(1)
    seccomp.kill_at("close_range")


def _hide_proc() -> None:
    os.chroot(_PROGRAM.parent)  # and the program


def _hide_proc_without_close_range() -> None:
    seccomp.refuse("close_range", errno.ENOSYS)
    _hide_proc()


def _schedule(policy: int, priority: int = 0) -> None:
    os.sched_setscheduler(0, policy, os.sched_param(priority))  # of this thread


CONDITIONS: dict[str, Callable[[], object]] = {
    "plain": lambda: None,
    "blocked signals": lambda: signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM, signal.SIGINT}),
    "descriptors": _open_others,
    "old filter": _open_others_below_an_old_filter,
    "no list of descriptors": _hide_proc,
    "no close_range either": _hide_proc_without_close_range,
    "real time": lambda: _schedule(os.SCHED_RR, 10),
    "batch": lambda: _schedule(os.SCHED_BATCH),
    "subreaper": _become_subreaper,
    "process limit": _limit_processes,
    "no clone": seccomp.refuse_vfork,
    "no exec": lambda: seccomp.refuse("execve", errno.EACCES),
    "no second clone": lambda: seccomp.kill_at_clone_with_signal(signal.SIGCHLD),
    "killed": lambda: seccomp.kill_at("setsid"),
    "standard descriptors": lambda: None,
}


def _try_to_wait() -> str:
    try:
        return str(os.wait())
    except ChildProcessError:
        return "no child"


def _spawn(condition: str, theirs: OwnedSocket) -> Any:
    words = [sys.executable, "-I", "-S", str(_PROGRAM), "one", ""]
    CONDITIONS[condition]()
    try:
        spawn_exporter([os.fsencode(word) for word in words], [b"ONLY=\xff"], theirs)
    except OSError as error:
        return {"error": errno.errorcode[error.errno or 0], "text": str(error)}
    finally:
        theirs.close()
    return None


def main() -> None:
    deliveries: list[int] = []
    signal.signal(signal.SIGCHLD, lambda number, _: deliveries.append(number))
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.signal(signal.SIGUSR2, lambda *_: None)
    if sys.argv[1] == "standard descriptors":  # the sockets get the numbers
        os.close(0)
        os.close(2)
    theirs, ours = owned_pair()
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(_spawn(sys.argv[1], theirs)))
    thread.start()
    thread.join()
    stream = ours.makefile("rb")
    state = results[0] or json.loads(stream.readline() or "{}")
    say("running", [_try_to_wait(), len(deliveries)])
    if "pid" in state:
        ours.sendall(b"x")
    assert not stream.read()  # until it has ended
    say("ended", [_try_to_wait(), len(deliveries)])
    say("state", {**state, "host": os.getpid()})


if __name__ == "__main__":
    main()
