"""An application in a container: ``contained.py PART``. Says ``state`` (as JSON) before anything else.

``signals``: says each signal that it gets, until SIGUSR2, and ends with 5. ``orphan``: makes one, and says ``reaped``
once its process id is free. ``exit N`` and ``kill N`` end it. Needs nothing but the standard library.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path


def _say(word: str, value: object = None) -> None:
    os.write(1, f"{word} {json.dumps(value)}\n".encode())


def _ids(pid: str) -> dict[str, object]:
    words = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()
    return {"parent": int(words[1]), "group": int(words[2]), "session": int(words[3]), "foreground": int(words[5])}


def _signals_of(pid: str) -> dict[str, int]:
    lines = Path(f"/proc/{pid}/status").read_text("utf-8").splitlines()
    pairs = [line.split(":") for line in lines if line.startswith(("SigBlk", "SigIgn", "SigCgt"))]
    return {name: int(value, 16) for name, value in pairs}


def _files(pid: str) -> dict[str, str]:
    found = {}
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):  # the descriptor of the listing itself
            found[entry.name] = str(entry.readlink())
    return found


def _state() -> dict[str, object]:
    return {
        "pid": os.getpid(),
        **_ids("self"),
        "signals": _signals_of("self"),
        "files": _files("self"),
        "variables": {name: os.environ.get(name) for name in ("LISTEN_PID", "SPLUNK_PROFILER_RUN_PID")},
        "files of process 1": _files("1"),
        "directory of process 1": str(Path("/proc/1/cwd").readlink()),
        "directory": str(Path.cwd()),
    }


def _tell_signals() -> None:
    while (number := signal.sigwait(signal.valid_signals())) != signal.SIGUSR2:
        _say("signal", number)
    sys.exit(5)


def _make_orphan() -> None:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        orphan = os.fork()
        if orphan:
            os.write(writer, str(orphan).encode())
        os._exit(0)
    os.waitpid(child, 0)
    orphan = int(os.read(reader, 16))
    deadline = time.monotonic() + 30
    while Path(f"/proc/{orphan}").exists():
        assert time.monotonic() < deadline, "it is a zombie"
        os.sched_yield()
    _say("reaped")


def main() -> None:
    part, *arguments = sys.argv[1:]
    if part == "signals":
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    _say("state", _state())
    if part == "signals":
        _tell_signals()
    elif part == "orphan":
        _make_orphan()
    elif part == "exit":
        sys.exit(int(arguments[0]))
    elif part == "kill":
        os.kill(os.getpid(), int(arguments[0]))


main()
