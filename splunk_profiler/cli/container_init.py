"""The init of a container: what ``splunk-profiler run`` is as process 1.

The exporter process is an orphan, and orphans become children of process 1. If that were the application, its
`os.wait()` would find the exporter. So the application becomes a child of the launcher, which stays: it passes signals
on, reaps orphans, and ends with the application's status once the exporter has sent the last records.

Runs on the only thread of the launcher, with all signals blocked. Loads nothing after the fork, and holds none of the
application's descriptors, so that a reader of its output does not wait for this process.
"""

from __future__ import annotations

import fcntl
import os
import signal
import termios
import time
from collections.abc import MutableMapping
from contextlib import suppress
from pathlib import Path

from splunk_profiler.exporter_process import TITLE

EXPORTER_TIMEOUT_S = 2.5  # its own 2 seconds for the last records, and its exit
_SIGNALS = signal.valid_signals()
_FATAL_STATUS = 128  # plus the number of the signal, as for process 1 itself


def fork_application() -> None:
    """Return in a child that is to execute the application; stay in this process until its end, and exit.

    If there is no room for another process, return in this one.
    """
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    on_child_end = signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # where it is ignored, there is no status
    terminal = _open_terminal()
    shares_terminal = terminal is not None and not _is_alone_in_session()
    if terminal is not None and not shares_terminal:
        _release_terminal(terminal)
    child = 0
    with suppress(OSError):
        child = os.fork()
    if child:
        _close_descriptors()
        os._exit(_serve(child, shares_terminal=shares_terminal))
    if not shares_terminal:
        _begin_session(terminal)
    signal.signal(signal.SIGCHLD, on_child_end)
    for number in _SIGNALS:
        if callable(signal.getsignal(number)):  # Python's own, which must not run between here and `exec`
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def name_application(env: MutableMapping[str, str], names: tuple[str, ...]) -> None:
    """Give those of the variables that name process 1 this process's id."""
    env.update({name: str(os.getpid()) for name in names if env.get(name) == "1"})


def _open_terminal() -> int | None:
    """Return a descriptor of the controlling terminal, which closes at `exec`; None if there is no terminal."""
    try:
        return os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY)
    except OSError:
        return None


def _is_alone_in_session() -> bool:
    """Return True if this process leads its session and no other is in it, which would lose the terminal, too."""
    own = os.getpid()
    if os.getsid(0) != own:
        return False
    with suppress(OSError):  # /proc is not mounted
        for entry in Path("/proc").iterdir():
            with suppress(OSError):  # it has ended
                if entry.name.isdigit() and int(entry.name) != own and os.getsid(int(entry.name)) == own:
                    return False
        return True
    return False


def _release_terminal(terminal: int) -> None:
    """Release the terminal that this process, the leader of the session, controls: the application is to control it."""
    fcntl.ioctl(terminal, termios.TIOCNOTTY)
    for number in (signal.SIGHUP, signal.SIGCONT):  # which that sends us
        signal.sigtimedwait([number], 0)


def _begin_session(terminal: int | None) -> None:
    """Lead a session of this process's own and control the terminal, as process 1 of a container does."""
    with suppress(OSError):  # this process leads one already: it is process 1 and could not fork
        os.setsid()
    if terminal is not None:
        with suppress(OSError):
            fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)


def _close_descriptors() -> None:
    """Close all descriptors, and leave the working directory, which can be unmounted then."""
    numbers = [*range(256)]
    with suppress(OSError):
        numbers = [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]
    for number in numbers:
        with suppress(OSError):
            os.close(number)
    os.chdir("/")


def _serve(application: int, *, shares_terminal: bool) -> int:
    """Return the exit status of the application, after its end."""
    while True:
        received = signal.sigwaitinfo(_SIGNALS)
        if received.si_signo == signal.SIGCHLD:
            ended = _reap()
            if application in ended:
                _wait_for_exporters()
                status = os.waitstatus_to_exitcode(ended[application])
                return status if status >= 0 else _FATAL_STATUS - status
        elif not (shares_terminal and received.si_code > 0):  # else the kernel's, to the application as well
            with suppress(OSError):
                os.kill(application, received.si_signo)


def _reap() -> dict[int, int]:
    """Return the statuses of the children that have ended, by process id."""
    ended: dict[int, int] = {}
    with suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            ended[found[0]] = found[1]
    return ended


def _wait_for_exporters() -> None:
    """Wait until no exporter is left, but not for ever: the end of process 1 kills them."""
    deadline_s = time.monotonic() + EXPORTER_TIMEOUT_S
    while (left_s := deadline_s - time.monotonic()) > 0 and _has_exporter():
        signal.sigtimedwait([signal.SIGCHLD], left_s)
        _reap()


def _has_exporter() -> bool:
    with suppress(OSError):  # /proc is not mounted
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                if entry.name.isdigit() and TITLE.encode() in (entry / "cmdline").read_bytes():
                    return True
    return False
