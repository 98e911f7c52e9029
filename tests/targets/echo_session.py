"""A session of the exporter process for tests: it sends back what it got, and notes what happens to it.

A stream of lines. ``pid`` is answered with the exporter's process id and that of the host, ``env NAME`` with a
variable, ``prefix`` with the place of its Python, ``alarm`` with the seconds until SIGALRM, ``count`` with the number
of bytes so far, ``raise`` by an exception, ``slow`` has it never be done, ``linger`` starts a thread that never ends;
other lines come back. With the variable LC_ECHO_FOLDER it writes, at the end, what it got to the file PID.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

FACTORY = "echo_session:EchoSession"


class EchoSession:
    end_timeout_s = 2.0
    has_failed = False

    def __init__(self, pid: int) -> None:
        self.is_done = False
        self._pid = pid
        self._bytes = 0
        self._rest = b""
        self._answers: list[bytes] = []
        self._is_slow = False
        self._lines: list[bytes] = []

    def feed(self, data: bytes) -> None:
        self._bytes += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._take(line)

    def tick(self) -> None:
        """Nothing is due."""

    def messages(self) -> list[bytes]:
        answers, self._answers = self._answers, []
        return answers

    def status(self) -> bytes:
        return b"status of %d after %d bytes" % (self._pid, self._bytes)

    def log_lines(self) -> AbstractContextManager[None]:
        return nullcontext()

    def close(self) -> None:
        folder = os.environ.get("LC_ECHO_FOLDER")
        if folder:
            whole = Path(folder, f"{self._pid}.part")
            whole.write_bytes(b"\n".join(self._lines))
            whole.rename(Path(folder, str(self._pid)))
        self.is_done = not self._is_slow

    def _take(self, line: bytes) -> None:
        word, _, rest = line.partition(b" ")
        if word == b"pid":
            self._answers.append(f"{os.getpid()} {self._pid}".encode())
        elif word == b"env":
            self._answers.append(os.environb.get(rest, b"unset"))
        elif word == b"prefix":
            self._answers.append(os.fsencode(sys.base_prefix))
        elif word == b"alarm":
            self._answers.append(str(signal.alarm(0)).encode())
        elif word == b"count":
            self._answers.append(str(self._bytes).encode())
        elif word == b"raise":
            raise ValueError("not a stream")
        elif word == b"slow":
            self._is_slow = True
        elif word == b"linger":
            threading.Thread(target=threading.Event().wait).start()
        elif word != b"drop":
            self._lines.append(line)
            self._answers.append(line)
