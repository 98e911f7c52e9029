"""Runs a program of `targets/` in a process that is forked from one that has loaded its modules.

Imports nothing of the package.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from target_process import TESTS, environment


@cache
def _forking_process(program: str) -> subprocess.Popen[str]:
    """Start the process that those of `program` are forked from, which ends with this one."""
    return subprocess.Popen(
        [sys.executable, str(TESTS / "targets" / program)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    )


class ForkedProcess:
    """A process of a program that calls `fork_processes`, with pipes from and to it.

    Attributes:
        pid: its process id.
        stdin, stdout: text to its standard input and from its standard output.
    """

    def __init__(self, program: str, *arguments: str, env: Mapping[str, str] | None = None) -> None:
        read_input, write_input = os.pipe()
        read_output, write_output = os.pipe()
        own = Path("/proc") / str(os.getpid()) / "fd"
        self._forking = _forking_process(program)
        self.pid = self._ask([f"{own}/{read_input}", f"{own}/{write_output}", {**(env or environment())}, *arguments])
        self._id = os.pidfd_open(self.pid)
        for descriptor in (read_input, write_output):
            os.close(descriptor)
        self.stdin = os.fdopen(write_input, "w", encoding="utf-8")
        self.stdout = os.fdopen(read_output, encoding="utf-8")

    def _ask(self, question: list[object] | int) -> int:
        assert self._forking.stdin is not None
        assert self._forking.stdout is not None
        print(json.dumps(question), file=self._forking.stdin, flush=True)
        return int(self._forking.stdout.readline())

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._id, signal.SIGKILL)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Return True once it has ended, False if it has not within this time."""
        return bool(select.select([self._id], [], [], timeout_s)[0])

    def close(self) -> int:
        """Forget it when it has ended; return its exit status."""
        self.stdout.close()
        os.close(self._id)
        return self._ask(self.pid)
