"""Runs a program where what another system lacks is missing: ``simulated_system.py SYSTEM MODULE|FILE [ARGUMENT…]``.

SYSTEM is ``darwin`` or ``win32``. What is Linux's (or POSIX's) alone is taken out of this interpreter's modules before
the package is imported; what the standard library and click make of the system is imported before that.
"""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401
import logging
import logging.handlers
import multiprocessing.util  # noqa: F401
import os
import runpy
import select
import shutil  # noqa: F401
import signal
import socket
import subprocess  # noqa: F401
import sys
import tempfile  # noqa: F401
import threading  # noqa: F401
import time
import types
import urllib.request  # noqa: F401
from pathlib import Path
from typing import Any

import click  # noqa: F401

NOT_ON_MACOS = {
    signal: ("sigtimedwait", "sigwaitinfo", "pidfd_send_signal", "SIGRTMIN", "SIGRTMAX", "SIGPOLL", "SIGPWR"),
    time: ("CLOCK_BOOTTIME", "CLOCK_TAI", "pthread_getcpuclockid"),
    os: (
        *("sched_getaffinity", "sched_setaffinity", "eventfd", "pidfd_open", "memfd_create", "getrandom", "pipe2"),
        *("posix_fadvise", "posix_fallocate", "copy_file_range", "splice", "getresuid", "setns", "unshare"),
        *("getxattr", "setxattr", "listxattr", "O_TMPFILE", "O_PATH", "O_LARGEFILE", "O_NOATIME", "preadv2"),
    ),
    socket: ("SOCK_NONBLOCK", "SOCK_CLOEXEC", "AF_NETLINK", "AF_PACKET", "SO_PASSCRED", "SO_PEERCRED", "MSG_NOSIGNAL"),
    select: ("epoll",),
}
NOT_ON_WINDOWS: dict[types.ModuleType, tuple[str, ...]] = {
    **NOT_ON_MACOS,
    signal: (
        *NOT_ON_MACOS[signal],
        *("pthread_sigmask", "pthread_kill", "sigpending", "sigwait", "setitimer", "SIGKILL", "SIGBUS", "SIGTRAP"),
        *("SIGHUP", "SIGPIPE", "SIGXFSZ", "SIGUSR1", "SIGUSR2", "SIG_BLOCK", "SIG_SETMASK", "alarm"),
    ),
    time: (*NOT_ON_MACOS[time], "clock_gettime", "clock_gettime_ns", "CLOCK_MONOTONIC", "CLOCK_REALTIME"),
    os: (
        *NOT_ON_MACOS[os],
        *("fork", "register_at_fork", "getuid", "geteuid", "uname", "sysconf", "getpriority", "pread", "fchmod"),
        *("O_CLOEXEC", "O_NOFOLLOW", "O_NONBLOCK", "mkfifo", "getloadavg"),
    ),
    socket: (*NOT_ON_MACOS[socket], "AF_UNIX", "socketpair"),
    select: (*NOT_ON_MACOS[select], "poll"),
}
EXTENSIONS = ("splunk_profiler._walker", "splunk_profiler._context")
NO_MODULES = {"darwin": EXTENSIONS, "win32": (*EXTENSIONS, "fcntl", "resource", "pwd", "grp", "termios")}


def become(system: str) -> None:
    for module, names in (NOT_ON_MACOS if system == "darwin" else NOT_ON_WINDOWS).items():
        for name in names:
            if hasattr(module, name):
                delattr(module, name)
    for name in NO_MODULES[system]:
        sys.modules[name] = None  # type: ignore[assignment]  # it can be neither imported nor found
    read = Path.read_text

    def read_text(path: Path, *args: Any, **kwargs: Any) -> str:
        if str(path).startswith("/proc"):
            raise FileNotFoundError(str(path))
        return read(path, *args, **kwargs)

    Path.read_text = read_text  # type: ignore[assignment, method-assign]
    sys.platform = system


become(sys.argv[1])
del sys.argv[1]
if sys.argv[1].endswith(".py"):
    del sys.argv[0]
    logging.basicConfig(level=logging.INFO)
    runpy.run_path(sys.argv[0], run_name="__main__")
else:
    runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
