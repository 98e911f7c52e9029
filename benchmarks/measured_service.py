"""A `service` in a process of its own, seen from where it is measured."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

SERVICE = Path(__file__).with_name("service.py")
_SETTINGS = ("SPLUNK_", "OTEL_", "DD_", "ELASTIC_OTEL_", "PYTHON")


class MeasuredService:
    """The running process; `profiler` is a name of `profilers.PROFILERS` or ``off``."""

    def __init__(self, python: str, shape: str, profiler: str, settings: Mapping[str, str]) -> None:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(_SETTINGS)}
        self._process = subprocess.Popen(
            [python, str(SERVICE), shape, profiler],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=sys.stderr,
            env=inherited | {"PYTHONHASHSEED": "0", "OTEL_SERVICE_NAME": "benchmark", **settings},
            text=True,
        )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def ask(self, command: str) -> dict[str, Any]:
        """Give a command and return the answer."""
        self.tell(command)
        return self.answer()

    def tell(self, command: str) -> None:
        """Give a command."""
        assert self._process.stdin is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """Wait for the answer to a command."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith('{"pid"'):  # a profiler may print
                answer: dict[str, Any] = json.loads(line)
                return answer
        raise RuntimeError(f"the service ended with status {self._process.wait()}")

    def kill(self) -> None:
        """Kill it."""
        self._process.kill()

    def __enter__(self) -> MeasuredService:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()


def find_exporters(pid: int) -> list[int]:
    """Return the process ids of the exporters of a process."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and b"exporter for PID %d " % pid in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return found


def exporters_cpu_s(pid: int) -> float:
    """Return the CPU seconds of the exporters of a process so far."""
    return sum(time.clock_gettime((~exporter << 3) | 2) for exporter in find_exporters(pid))  # the kernel's clock of it


def exporters_memory_kib(pid: int) -> tuple[int, int]:
    """Return the resident memory of the exporters of a process, and how much of it is not of files."""
    status = "".join(Path(f"/proc/{exporter}/status").read_text("utf-8") for exporter in find_exporters(pid))
    lines = [line.split() for line in status.splitlines()]
    resident, anonymous = (sum(int(line[1]) for line in lines if line[0] == name) for name in ("VmRSS:", "RssAnon:"))
    return resident, anonymous
