"""Forks while another thread is in the first `start`: ``starting_forks.py HOW MODULE``.

The import of MODULE takes its time there. HOW is ``advancing`` (for longer than a fork waits for a start that
stands still), ``waiting`` (for the thread that forks) or ``forking`` (it forks itself, as a signal handler
would have it). The child starts the profiler again, says whether it runs, imports MODULE if so, and ends.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
import threading
import time
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

import splunk_profiler

_IMPORT_S = 5.6
HOW, MODULE = sys.argv[1:]
TURN_S = sys.getswitchinterval()
pending = {MODULE}
begun, forked, reason_logged = threading.Event(), threading.Event(), threading.Event()
children: list[int] = []


class Slow(PathFinder):
    """A finder that is asked first."""

    @classmethod
    def find_spec(cls, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        spec = super().find_spec(fullname, path, target)
        if spec is not None and fullname in pending:
            pending.remove(fullname)
            loader: Any = spec.loader
            execute = loader.exec_module

            def be_slow(module: ModuleType) -> None:
                begun.set()
                if HOW == "waiting":
                    assert forked.wait(60)
                if HOW == "forking":
                    children.append(os.fork())
                until = time.monotonic() + _IMPORT_S
                while HOW == "advancing" and time.monotonic() < until:
                    time.sleep(0.01)  # uses the processor each time
                execute(module)

            loader.exec_module = be_slow
        return spec


class Handler(logging.StreamHandler):  # type: ignore[type-arg]  # it has none before CPython 3.11
    """Writes lines to standard error, and notes the one that says why a child stays off."""

    def emit(self, record: logging.LogRecord) -> None:
        super().emit(record)
        if "was forked" in record.getMessage():
            reason_logged.set()


def say(line: str) -> None:
    """Write in one piece, also beside other writers."""
    os.write(1, f"{line}\n".encode())


def be_child() -> None:
    """Start again, here and in a child of this child."""
    runs = splunk_profiler.start()
    if runs:
        importlib.import_module(MODULE)
    else:
        assert sys.getswitchinterval() == TURN_S
    if os.fork() == 0:
        os._exit(splunk_profiler.start() is not runs)
    assert os.wait()[1] == 0
    say(f"child {'runs' if runs else 'stays off'}")
    splunk_profiler.stop()
    assert runs or reason_logged.wait(60)  # by a thread, which nobody can join
    os._exit(0)


def main() -> None:
    logging.basicConfig(handlers=[Handler()])
    sys.meta_path.insert(0, Slow)
    if HOW == "forking":
        assert splunk_profiler.start()
    else:
        starter = threading.Thread(target=splunk_profiler.start)
        starter.start()
        assert begun.wait(60)
        children.append(os.fork())
        forked.set()
    if children == [0]:
        be_child()
    assert os.waitpid(children[0], 0)[1] == 0
    assert splunk_profiler.start()
    say("over")
    sys.stdin.readline()


if __name__ == "__main__":
    main()
