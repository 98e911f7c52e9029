"""A service that publishes to host profilers and closes all descriptors that it did not open, as daemons do.

Reads commands: ``close`` closes them and opens a few of its own, which get the numbers that are free now; ``look``
says as JSON how those are and what is published; ``end`` ends. Says ``ready`` first, with what is published, and logs
all there is to its output.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any

from marked_work import say
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from own_memory import OwnMemory
from published_process import read_storage, wait_for_storage

import splunk_profiler

_MAX_DESCRIPTOR = 1024


class Own:
    """Descriptors of the application, each with something in it."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115  # stays open
        self._pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._pipe = os.pipe()
        self._file.write(b"in a file")
        self._file.flush()
        self._pair[0].send(b"in a socket")
        self._pair[1].send(b"in the other")
        os.write(self._pipe[1], b"in a pipe")

    def contents(self) -> list[str]:
        """Taken out of them."""
        self._file.seek(0)
        ends = [end.recv(100, socket.MSG_DONTWAIT) for end in self._pair]
        return [part.decode() for part in (self._file.read(), *ends, os.read(self._pipe[0], 100))]


def _published() -> dict[str, Any]:
    storage = read_storage()
    descriptors = {}
    for number in range(_MAX_DESCRIPTOR):
        try:
            descriptors[os.fstat(number).st_ino] = number
        except OSError:
            continue
    rows = [line.split() for line in Path("/proc/self/net/unix").read_text("utf-8").splitlines()[1:]]
    bound = [row[7] for row in rows if len(row) > 7 and int(row[6]) in descriptors]
    return {"storage": storage and str(storage.socket), "bound": bound}


def main() -> None:
    logging.basicConfig(level=logging.DEBUG, stream=sys.stdout)
    trace.set_tracer_provider(TracerProvider())
    OwnMemory()
    splunk_profiler.start()
    wait_for_storage()
    with trace.get_tracer("closing").start_as_current_span("one"):
        say("ready", _published())
    opened: list[Own] = []  # kept: a descriptor that an object closes when it is freed may be another's by then
    for line in sys.stdin:
        command = line.strip()
        if command == "close":
            os.closerange(3, _MAX_DESCRIPTOR)
            opened.append(Own())
            say("closed", len(opened))
        elif command == "look":
            say("look", {**_published(), "contents": opened[-1].contents()})
        else:
            splunk_profiler.stop()
            say("left", _published())
            sys.stdout.flush()
            os._exit(0)  # objects of earlier rounds would close numbers that are others' now


if __name__ == "__main__":
    main()
