"""Datadog's own test agent as a process, from a virtual environment of its own.

It needs an older release of OpenTelemetry's protocol than the profiler's exporters, so it cannot be installed beside
them. The first interpreter that needs the environment makes it below ``build/``.
"""

from __future__ import annotations

import base64
import fcntl
import json
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from types import TracebackType

from datadog_form import ReadForm, read_form
from target_process import Target

_RELEASE = "ddapm-test-agent==1.69.1"
_HOME = Path(__file__).resolve().parents[2] / "build" / "ddapm-test-agent"


class NotInstallableError(Exception):
    """The test agent cannot be installed here."""


def install_agent() -> Path:
    """Return the agent's program; install it first if necessary.

    Raises:
        NotInstallableError: it cannot be installed.
    """
    program, ready = _HOME / "bin" / "ddapm-test-agent", _HOME / "ready"
    _HOME.parent.mkdir(exist_ok=True)
    with _HOME.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another worker may install it at the same time
        if not (ready.exists() and (_HOME / "bin" / "python").exists()):
            _run_python("-m", "venv", "--clear", "--without-pip", str(_HOME))
            options = ("--quiet", "--no-compile", "--disable-pip-version-check")
            _run_python("-m", "pip", "--python", str(_HOME / "bin" / "python"), "install", *options, _RELEASE)
            ready.touch()
    return program


def _run_python(*arguments: str) -> None:
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=250, check=False)
    if done.returncode:
        raise NotInstallableError(f"{_RELEASE} cannot be installed: {(done.stderr or done.stdout).strip()[-300:]}")


def _free_ports(count: int) -> list[int]:
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in listeners]
    for listener in listeners:
        listener.close()
    return ports


class DatadogAgent:
    """A running test agent.

    Args:
        program: its program.
        folder: its working directory.
    """

    def __init__(self, program: Path, folder: Path) -> None:
        port, *others = _free_ports(3)
        options = (f"--port={port}", f"--otlp-http-port={others[0]}", f"--otlp-grpc-port={others[1]}")
        self.url = f"http://127.0.0.1:{port}"
        self._process = Target(
            str(program),
            "--host=127.0.0.1",
            *options,
            env={"PYTHONPATH": "", "PYTHONDONTWRITEBYTECODE": ""},
            cwd=folder,
        )

    def __enter__(self) -> DatadogAgent:
        self._process.__enter__()
        self._process.line("======== Running APM server")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.__exit__(kind, error, traceback)

    def forms(self, count: int) -> list[ReadForm]:
        """Wait for `count` forms with profiles and return all of them, oldest first."""
        self._process.lines(count, "INFO:aiohttp.access:")
        with urllib.request.urlopen(f"{self.url}/test/session/requests", timeout=60) as answer:
            requests = json.load(answer)
        found = [
            read_form(request["headers"]["Content-Type"], base64.b64decode(request["body"]))
            for request in reversed(requests)
            if request["url"].endswith("/profiling/v1/input")
        ]
        assert len(found) >= count
        return found
