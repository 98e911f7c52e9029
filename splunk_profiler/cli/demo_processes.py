"""The demo's processes: each has its own log, and none outlives the demo.

Runs on the main thread of `demo`. Imports nothing of ours but errors and `system.private_files`.
"""

from __future__ import annotations

import http.client
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from splunk_profiler.cli.errors import CommandError
from splunk_profiler.system.private_files import open_private

_START_TIMEOUT_S = 60
_STOP_TIMEOUT_S = 20
_POLL_INTERVAL_S = 0.05
_MAX_LOG_LINES = 30


def own_command(verb: str) -> list[str]:
    """Return the command line of a verb of this package."""
    return [sys.executable, "-m", "splunk_profiler", verb]


def describe_step(number: int, title: str, command: list[str]) -> str:
    """Return the line for a step of the demo, with its command as a user would type it."""
    words = ["splunk-profiler", *command[3:]] if command[:3] == own_command("")[:3] else command
    here = f"{Path.cwd()}/"
    short = ("python" if word == sys.executable else word.removeprefix(here) for word in words)
    return f"{number}  {title}: {shlex.join(short)}"


@dataclass(frozen=True, slots=True)
class Child:
    """A process of the demo, and the log that it writes to; its methods raise `CommandError` when it fails."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def stop(self, expected_codes: tuple[int, ...] = (0,)) -> None:
        """Terminate it, and check that it ends in time and with an expected code."""
        if self.process.poll() is None:
            self.process.terminate()
        try:
            code = self.process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise self.error(f"the {self.name} did not end within {_STOP_TIMEOUT_S} s") from None
        if code not in (*expected_codes, -signal.SIGTERM):
            raise self.error(f"the {self.name} ended with {code}")

    def error(self, text: str) -> CommandError:
        """Return an error that shows the end of the log below `text`."""
        lines = self.log.read_text(errors="replace").splitlines()
        return CommandError(text, f"the end of {self.log}:", *lines[-_MAX_LOG_LINES:])

    def wait_for_address(self) -> str:
        """Wait for the address that a collector prints, and return it."""
        deadline = time.monotonic() + _START_TIMEOUT_S
        while time.monotonic() < deadline:
            for line in self.log.read_text().splitlines():
                if line.startswith("listening on "):
                    return line.removeprefix("listening on ")
            if self.process.poll() is not None:
                break
            time.sleep(_POLL_INTERVAL_S)
        raise self.error(f"the {self.name} did not start")

    def wait_for_output(self) -> None:
        """Wait for the first line of output, or for the end of the process."""
        deadline = time.monotonic() + _START_TIMEOUT_S
        while self.process.poll() is None and b"\n" not in self.log.read_bytes():
            if time.monotonic() >= deadline:
                raise self.error(f"the {self.name} says nothing")
            time.sleep(_POLL_INTERVAL_S)

    def wait_for_health(self, port: int) -> None:
        """Send a service one request and wait for the answer; the port queues the request until the service starts."""
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_START_TIMEOUT_S)
        try:
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return
            problem = "does not answer /health well"
        except (OSError, http.client.HTTPException) as error:
            is_ended = self.process.poll() is not None
            problem = f"ended with {self.process.returncode}" if is_ended else f"does not answer ({error})"
        finally:
            connection.close()
        raise self.error(f"the service {problem}")


@contextmanager
def run_process(
    name: str,
    command: list[str],
    env: Mapping[str, str],
    directory: Path,
    *descriptors: int,
    preexec: Callable[[], None] | None = None,
) -> Iterator[Child]:
    """Run a child that writes to ``NAME.log`` and calls `preexec` first; end it with the block."""
    path = directory / f"{name}.log"
    with open(path, "wb", opener=open_private) as log:
        child = subprocess.Popen(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            pass_fds=descriptors,
            preexec_fn=preexec,  # noqa: PLW1509  # this process has no other thread yet
        )
    try:
        yield Child(name, child, path)
    finally:
        if child.poll() is None:
            child.terminate()
            try:
                child.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
