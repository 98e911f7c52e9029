"""Forks while the profiler loads gRPC: ``importing_forks.py HOW FOLDER``.

FOLDER comes first on `sys.path`; a module ``grpc`` is put there that takes its time and then makes room for the real
one. HOW is ``outside`` (the fork has to wait until it is loaded) or ``inside`` (the fork is in an import that gRPC
waits for). The child imports gRPC, says so and whether it has other threads, and ends.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from pathlib import Path

import splunk_profiler

_IMPORT_S = 5.6  # more than any wait of ours that does not ask whether things get on

SLOW = """
import sys
import importing_forks
importing_forks.be_slow()
sys.path.remove(importing_forks.FOLDER)
del sys.modules["grpc"]
import grpc
sys.path.insert(0, importing_forks.FOLDER)
"""
FOLDER = ""
begun, holding = threading.Event(), threading.Event()


def say(line: str) -> None:
    """Write in one piece, also beside other writers."""
    os.write(1, f"{line}\n".encode())


def be_slow() -> None:
    """The body of the module ``grpc``."""
    if begun.is_set():
        return  # it is a child's
    begun.set()
    if sys.argv[1] == "inside":
        assert holding.wait(60)
        __import__("held_open")
    else:
        until = time.monotonic() + _IMPORT_S
        while time.monotonic() < until:
            time.sleep(0.01)  # uses the processor each time


def fork() -> None:
    """The body of the module ``held_open``, or what the main thread does."""
    holding.set()
    child = os.fork()
    if child == 0:
        import grpc  # noqa: PLC0415

        threads = len(list(Path("/proc/self/task").iterdir()))
        say(f"child {os.getpid()} {'alone' if threads == 1 else 'with threads'} {grpc.__name__}")
        os._exit(0)
    say(f"forked {child}")
    assert os.waitpid(child, 0)[1] == 0


def main(how: str, folder: str) -> None:
    global FOLDER  # noqa: PLW0603
    FOLDER = folder
    sys.modules["importing_forks"] = sys.modules["__main__"]
    logging.basicConfig()
    Path(folder, "grpc.py").write_text(SLOW, "utf-8")
    Path(folder, "held_open.py").write_text("import importing_forks\nimporting_forks.fork()\n", "utf-8")
    sys.path.insert(0, folder)
    assert splunk_profiler.start()
    assert begun.wait(60)
    if how == "inside":
        __import__("held_open")
    else:
        fork()
    say("over")
    sys.stdin.readline()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
