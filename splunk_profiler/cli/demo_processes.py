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
from pathlib import Path

from splunk_profiler.cli.errors import CommandError
from splunk_profiler.system.private_files import open_private

_START_TIMEOUT_S = 60
_STOP_TIMEOUT_S = 20
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


@contextmanager
def run_process(
    name: str,
    command: list[str],
    env: Mapping[str, str],
    directory: Path,
    *descriptors: int,
    preexec: Callable[[], None] | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a child that writes to ``NAME.log`` and calls `preexec` first; end it with the block."""
    with open(directory / f"{name}.log", "wb", opener=open_private) as log:
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
        yield child
    finally:
        if child.poll() is None:
            child.terminate()
            try:
                child.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


def stop_process(
    child: subprocess.Popen[bytes], name: str, directory: Path, expected_codes: tuple[int, ...] = (0,)
) -> None:
    """Terminate a child; raise `CommandError` if it does not end in time and with an expected code."""
    if child.poll() is None:
        child.terminate()
    try:
        code = child.wait(_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise CommandError(f"the {name} did not end within {_STOP_TIMEOUT_S} s", *tail(directory, name)) from None
    if code not in (*expected_codes, -signal.SIGTERM):
        raise CommandError(f"the {name} ended with {code}", *tail(directory, name))


def tail(directory: Path, name: str) -> list[str]:
    """Return the last lines of a process's log, to show below a problem."""
    path = directory / f"{name}.log"
    return [f"the end of {path}:", *path.read_text(errors="replace").splitlines()[-_MAX_LOG_LINES:]]


def wait_for_address(collector: subprocess.Popen[bytes], log: Path) -> str:
    """Wait for the address that a collector prints, and return it."""
    deadline = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < deadline:
        for line in log.read_text().splitlines():
            if line.startswith("listening on "):
                return line.removeprefix("listening on ")
        if collector.poll() is not None:
            break
        time.sleep(0.05)
    raise CommandError("the collector did not start", *tail(log.parent, "collector"))


def wait_for_output(child: subprocess.Popen[bytes], name: str, directory: Path) -> None:
    """Wait for the first line of a child's output, or for its end."""
    deadline = time.monotonic() + _START_TIMEOUT_S
    while child.poll() is None and b"\n" not in (directory / f"{name}.log").read_bytes():
        if time.monotonic() >= deadline:
            raise CommandError(f"the {name} says nothing", *tail(directory, name))
        time.sleep(0.05)


def wait_for_service(service: subprocess.Popen[bytes], port: int, directory: Path, name: str) -> None:
    """Send one request and wait for the answer; the port queues the request until the service starts."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_START_TIMEOUT_S)
    try:
        connection.request("GET", "/health")
        if connection.getresponse().status == 200:
            return
        problem = "does not answer /health well"
    except (OSError, http.client.HTTPException) as error:
        problem = f"ended with {service.wait(1)}" if service.poll() is not None else f"does not answer ({error})"
    finally:
        connection.close()
    raise CommandError(f"the service {problem}", *tail(directory, name))
