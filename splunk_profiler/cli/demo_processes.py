"""The demo's processes, which are verbs of this package: each has its own log, and none outlives the demo.

Runs on the main thread of `demo`.
"""

from __future__ import annotations

import ctypes
import http.client
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from splunk_profiler.cli.errors import CommandError
from splunk_profiler.system.private_files import open_private

_START_TIMEOUT_S = 60
_STOP_TIMEOUT_S = 20
_POLL_INTERVAL_S = 0.05
_MAX_LOG_LINES = 30
_PR_SET_PTRACER = 0x59616D61


@dataclass(frozen=True, slots=True)
class Child:
    """A process of the demo, and the log that it writes to; its methods raise `CommandError` when it fails."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def stop(self, expected_codes: tuple[int, ...]) -> None:
        """Terminate it, and check that it ends in time and with an expected code."""
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

    def wait_for_line(self, start: str) -> str | None:
        """Wait for a line of output that begins with `start` and return its rest; None if it does not come in time."""
        deadline = time.monotonic() + _START_TIMEOUT_S
        is_running = True
        while is_running and time.monotonic() < deadline:
            is_running = self.process.poll() is None
            for line in self.log.read_text(errors="replace").splitlines():
                if line.startswith(start):
                    return line.removeprefix(start)
            time.sleep(_POLL_INTERVAL_S)
        return None

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
def run_verb(
    name: str,
    words: list[str],
    env: Mapping[str, str],
    directory: Path,
    *descriptors: int,
    preexec: Callable[[], None] | None = None,
    expected_codes: tuple[int, ...] = (0,),
) -> Iterator[Child]:
    """Run ``splunk-profiler WORDS``, which writes to ``NAME.log``; end it with the block, and check its exit code.

    The process first calls `preexec`.
    """
    path = directory / f"{name}.log"
    # A signal that comes before the process can be ended, also inside of Popen, waits.
    unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))

    def prepare() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
        if preexec is not None:
            preexec()

    try:
        with open(path, "wb", opener=open_private) as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "splunk_profiler", *words],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=descriptors,
                preexec_fn=prepare,  # noqa: PLW1509  # this process has no other thread yet
            )
        child = Child(name, process, path)
        try:
            signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
            yield child
            child.stop(expected_codes)
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_TIMEOUT_S)
            process.kill()
            process.wait()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)


def make_ptrace_hook(parent: int) -> Callable[[], None] | None:
    """Return a function that lets descendants of `parent` read the process that calls it; None outside Linux.

    With ``kernel.yama.ptrace_scope`` 1 only ancestors may trace a process, and the process that it names by
    PR_SET_PTRACER, with its descendants. That outlasts an `exec`. Without Yama the call has no effect.
    """
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl
    prctl.argtypes = (ctypes.c_int, *[ctypes.c_ulong] * 4)

    def set_ptracer() -> None:
        prctl(_PR_SET_PTRACER, parent, 0, 0, 0)

    return set_ptracer


def summarize_agent_log(log: Path) -> str:
    """Return one line on the host agent's JSON lines in `log`: what it sent, or why it sent nothing."""
    events, other_lines = [], []
    for line in log.read_text(errors="replace").splitlines():
        try:
            events.append(dict(json.loads(line)))
        except (ValueError, TypeError):
            other_lines.append(line.strip())
    totals = events[-1] if events and events[-1].get("event") == "totals" else {}
    if totals.get("processes"):
        lost = f"; {totals['lost_samples']:,} were lost" if totals.get("lost_samples") else ""
        return f"sent {totals.get('samples', 0):,} samples of transactions to the service{lost}"
    reasons = [reason["text"] for event in events if event.get("event") == "unseen" for reason in event["reasons"]]
    why = other_lines[-1] if other_lines else reasons[-1] if reasons else "it does not say why"
    why = why.removeprefix("splunk-profiler: error: ")
    return f"could not follow the service, and the demo went on without it: {why}"
