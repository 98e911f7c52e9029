"""A collector whose output is a terminal.

Every wait ends with the test's own deadline. Imports nothing of the package.
"""

from __future__ import annotations

import os
import pty
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from command_line import COMMAND, DEADLINE_S, ROOT, clean_environment


class CollectingTerminal:
    """A running ``splunk-profiler collect`` on a terminal of 200 columns.

    Attributes:
        output: its output so far.
    """

    def __init__(self, process: subprocess.Popen[bytes], descriptor: int) -> None:
        self._process, self._descriptor = process, descriptor
        self.output = b""
        self.read_until("Ctrl-C")
        self.address = self.output.partition(b"listening on ")[2].split()[0].decode()

    def read_until(self, text: str) -> None:
        """Read until the output has that text."""
        while text.encode() not in self.output:
            self.output += os.read(self._descriptor, 1 << 16)

    def end(self) -> None:
        """Interrupt it and read the rest of its output."""
        self._process.send_signal(signal.SIGTERM)
        with suppress(OSError):  # the other end is closed
            while more := os.read(self._descriptor, 1 << 16):
                self.output += more
        assert self._process.wait(DEADLINE_S) == 0


@contextmanager
def run_collector_on_terminal(directory: Path) -> Iterator[CollectingTerminal]:
    """Run such a collector; end it with the block."""
    controller_fd, terminal_fd = pty.openpty()
    command = [*COMMAND, "collect", "--port", "0", "--output", str(directory)]
    env = clean_environment({"COLUMNS": "200", "TERM": "xterm"})
    try:
        with subprocess.Popen(command, env=env, cwd=ROOT, stdout=terminal_fd, stderr=terminal_fd) as process:
            os.close(terminal_fd)
            try:
                yield CollectingTerminal(process, controller_fd)
            finally:
                process.kill()
    finally:
        os.close(controller_fd)
