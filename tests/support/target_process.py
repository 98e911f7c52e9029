"""Runs a program of `targets/` (or any command) as a process that hand-shakes with the test.

    with Target("association.py", "threads", env={…}) as target:
        target.line("ready")                    # the first line of output that starts so
        target.tell("stop")                     # a line for its standard input
        assert target.finish() == 0

Every wait has a deadline and fails with all that the process has said. Whatever happens, the process and its
process group are gone when the block ends. Imports nothing of the package.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

TESTS = Path(__file__).parents[1]
# A process group to end, in the session of the tests: a busy process in a session of its own gets more than its share
# where Linux groups sessions (sched_autogroup) and its threads wake often, which left nothing to others for seconds.
_OWN_GROUP: dict[str, Any] = {"process_group": 0} if sys.version_info >= (3, 11) else {"start_new_session": True}
_CLEARED_PREFIXES = ("SPLUNK_", "OTEL_", "ELASTIC_", "PYTHON", "GRPC_")
TREE = "SPLUNK_PROFILER_TREE"  # of the fixture `shared_exporter`; empty, a target has an exporter of its own


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return this process's environment without settings of profilers, SDKs and Python, but with its path."""
    env = {name: value for name, value in os.environ.items() if name == TREE or not name.startswith(_CLEARED_PREFIXES)}
    path = [
        str(TESTS / "targets"),
        str(TESTS / "support"),
        *(entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry),
    ]
    env |= {"PYTHONPATH": os.pathsep.join(path), "PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}
    return {**env, **(more or {})}


def profiling_settings(receiver_url: str, interval_ms: int = 5, walker: str = "auto", **more: str) -> dict[str, str]:
    """Return the settings of a target that is profiled into a receiver."""
    return {
        "SPLUNK_PROFILER_ENABLED": "true",
        "SPLUNK_PROFILER_LOGS_ENDPOINT": receiver_url,
        "LC_RECEIVER": receiver_url,  # exporters inherit it, and are found by it
        "SPLUNK_PROFILER_CALL_STACK_INTERVAL": str(interval_ms),
        "SPLUNK_PROFILER_EXPORT_INTERVAL": "50",
        "SPLUNK_PROFILER_WALKER": walker,
        "SPLUNK_PROFILER_MAX_OVERHEAD": "off",  # the interval is shorter than the profiler allows by default
        **more,
    }


def let_exporter_run() -> None:
    """Give the processor up: fifty processes that only yield it starve an exporter, whose priority is lower."""
    select.select([], [], [], 0.002)


class Target:
    """A running process. A first word that ends in ``.py`` is a program of `targets/`, run by this interpreter.

    Args:
        command: program and arguments.
        env: variables to set besides those of `environment`.
        cwd: its working directory.
    """

    def __init__(self, *command: str, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> None:
        words: Sequence[str] = command
        if command[0].endswith(".py"):
            words = [sys.executable, str(TESTS / "targets" / command[0]), *command[1:]]
        self._process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
            env=environment(env),
            cwd=cwd,
            **_OWN_GROUP,
        )
        self._changed = threading.Condition()
        self._lines: list[str] = []
        self._ended = False
        self._reader = threading.Thread(target=self._read, name="target-reader")
        self._reader.start()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """True until it has ended."""
        return self._process.poll() is None

    @property
    def output(self) -> str:
        """Output and errors so far."""
        with self._changed:
            return "\n".join(self._lines)

    def final_output(self, timeout_s: float = 60) -> str:
        """Wait until all writers of its output have ended, and return the output."""
        self._wait(lambda: self._ended, timeout_s, "did not end its output")
        return self.output

    def lines(self, count: int, start: str = "", timeout_s: float = 60) -> list[str]:
        """Wait for `count` lines with that start, and return all of them without it."""

        def seen() -> list[str]:
            return [line[len(start) :].strip() for line in self._lines if line.startswith(start)]

        self._wait(lambda: len(seen()) >= count, timeout_s, f"did not say {start!r} {count} times")
        with self._changed:
            return seen()

    def line(self, start: str = "", timeout_s: float = 60) -> str:
        """Wait for a line with that start, and return it without the start."""
        return self.lines(1, start, timeout_s)[0]

    def find(self, pattern: str, timeout_s: float = 60) -> str:
        """Wait for a line that matches `pattern`, and return its first group."""

        def seen() -> list[str]:
            return [match[1] for line in self._lines if (match := re.search(pattern, line))]

        self._wait(lambda: bool(seen()), timeout_s, f"did not say anything like {pattern!r}")
        with self._changed:
            return seen()[0]

    def json(self, start: str, timeout_s: float = 60) -> Any:
        """Wait for a line with that start, and return the JSON value after it."""
        return json.loads(self.line(start, timeout_s))

    def has_line(self, start: str) -> bool:
        """Return True if a line with that start is there."""
        with self._changed:
            return any(line.startswith(start) for line in self._lines)

    def wait_for_either(self, start: str, end: str, after: int) -> str:
        """Wait for more than `after` lines that start with `start`, or for the line `end`; return which."""

        def seen() -> bool:
            return end in self._lines or sum(line.startswith(start) for line in self._lines) > after

        self._wait(seen, 60, f"said neither {start!r} nor {end!r}")
        with self._changed:
            return start if sum(line.startswith(start) for line in self._lines) > after else end

    def tell(self, line: str) -> None:
        """Write a line to its standard input."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def close_stdin(self) -> None:
        """Close its standard input."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self._process.send_signal(number)

    def finish(self, timeout_s: float = 60) -> int:
        """Wait for its end and that of its output, so that all it has said is there; return the exit code."""
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._abort()
            raise AssertionError(f"it still runs after {timeout_s} s; it said:\n{self.output}") from None
        self._wait(lambda: self._ended, 60, "did not end its output")
        return code

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._changed:
                self._lines.append(line.rstrip("\n"))
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _wait(self, condition: Callable[[], bool], timeout_s: float, failure: str) -> None:
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while not condition():
                left = deadline - time.monotonic()
                if left <= 0 or self._ended:
                    self._abort()
                    why = f"not within {timeout_s} s" if left <= 0 else f"ended with {self._process.poll()}"
                    raise AssertionError(f"the target {failure} ({why}); it said:\n" + "\n".join(self._lines))
                self._changed.wait(left)

    def _abort(self) -> None:
        """End it and its children so that `faulthandler` says what their threads do."""
        with self._changed, contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGABRT)
            self._changed.wait_for(lambda: self._ended, 5)

    def __enter__(self) -> Target:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close_stdin()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()
        if error is not None:
            print(self.output)
