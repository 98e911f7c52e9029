"""Runs programs with Python before them (``preexec_fn``): ``preexec.py HOW``, with the profiler at work.

Says how many threads there are between fork and exec, and whether a socket to an exporter is still open; where HOW is
``subprocess``, and not ``gevent``, also whether there are others in a process that is forked there, and after a start
there.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

if sys.argv[1] == "gevent":
    import_module("gevent.monkey").patch_all()

import splunk_profiler
from splunk_profiler._walker import OwnedSocket

SOCKET = OwnedSocket.listen(b"\0splunk-profiler-preexec-%d" % os.getpid())
NUMBER = SOCKET.descriptor


def threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def look() -> None:
    for _ in range(100_000):  # whatever is to be noticed while Python runs
        pass
    os.write(1, f"before exec {threads()}\n".encode())
    os.write(1, b"socket %s\n" % (b"open" if Path(f"/proc/self/fd/{NUMBER}").exists() else b"closed"))


def fork() -> None:
    child = os.fork()
    if child == 0:
        os.write(1, b"forked there: with threads\n" if threads() > 1 else b"forked there: alone\n")
        os._exit(0)
    os.waitpid(child, 0)


def start() -> None:
    assert splunk_profiler.start()
    os.write(1, b"started there: with threads\n" if threads() > 1 else b"started there: alone\n")


def main() -> None:
    assert splunk_profiler.start()
    for act in (look,) if sys.argv[1] == "gevent" else (look, fork, start):
        subprocess.run(["true"], check=True, preexec_fn=act)
    print("parent", "with threads" if threads() > 1 else "alone", flush=True)


if __name__ == "__main__":
    main()
