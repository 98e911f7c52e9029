"""Starts `targets/exporting.py` and talks to it; see there for the commands.

    with ExportingProcess(SPLUNK_PROFILER_LOGS_ENDPOINT=receiver.url) as exporter:
        exporter.ask("record 5")
        assert exporter.ask("flush 10")

The environment holds no OTLP or profiler setting but those given. Imports nothing of the package.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

from forked_process import ForkedProcess

Log = dict[str, str]


class ExportingProcess:
    """A process that exports; at the end of the block it must exit within `exit_s` seconds.

    Attributes:
        logs: the log lines so far: ``log`` (the text), ``level`` and ``logger``.
    """

    def __init__(self, environment: Mapping[str, str] | None = None, *, exit_s: float = 60, **settings: str) -> None:
        env = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "SPLUNK_", "GRPC_"))}
        env.update(environment or {}, **settings)
        self._exit_s = exit_s
        self._arrived = threading.Condition()
        self._answers: list[Any] = []
        self._ended = False
        self.logs: list[Log] = []
        self._process = ForkedProcess("exporting.py", env=env)
        self._reader = threading.Thread(target=self._read, name="exporting-reader")
        self._reader.start()
        self.answer(60)

    def ask(self, command: str, timeout_s: float = 60) -> Any:
        """Send `command` and return the answer."""
        self.tell(command)
        return self.answer(timeout_s)

    def tell(self, command: str) -> None:
        """Send `command` without waiting for the `answer`."""
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()

    def log(self, where: Callable[[str], Any], timeout_s: float = 60) -> str:
        """Wait for a log line of the profiler for which `where` holds, and return it."""
        deadline = time.monotonic() + timeout_s
        with self._arrived:
            while True:
                for line in self.logs:
                    if line["logger"] == "splunk_profiler" and where(line["log"]):
                        return line["log"]
                left = deadline - time.monotonic()
                if left <= 0 or self._ended:
                    raise AssertionError(f"no such log line; there are {self.logs}")
                self._arrived.wait(left)

    def profiler_log(self) -> list[str]:
        """Return the log lines of the profiler so far."""
        with self._arrived:
            return [line["log"] for line in self.logs if line["logger"] == "splunk_profiler"]

    def leave(self) -> int:
        """Let it exit and return the exit status. Fails if that takes longer than `exit_s` seconds."""
        self._process.stdin.close()
        has_ended = self._process.wait(self._exit_s)
        self._process.kill()
        self._process.wait()
        self._reader.join(60)  # its forked children hold the output open
        assert not self._reader.is_alive(), f"a child of process {self._process.pid} did not end"
        status = self._process.close()
        assert has_ended, f"it did not exit within {self._exit_s} s; its log: {self.logs}"
        return status

    def _read(self) -> None:
        for line in self._process.stdout:
            found = json.loads(line)
            with self._arrived:
                if "log" in found:
                    self.logs.append(found)
                else:
                    self._answers.append(found.get("answer"))
                self._arrived.notify_all()
        with self._arrived:
            self._ended = True
            self._arrived.notify_all()

    def answer(self, timeout_s: float = 60) -> Any:
        """Wait for the next answer and return it."""
        with self._arrived:
            self._arrived.wait_for(lambda: self._answers or self._ended, timeout_s)
            assert self._answers, f"no answer; its log: {self.logs}"
            return self._answers.pop(0)

    def __enter__(self) -> ExportingProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        status = self.leave()
        assert kind is not None or status == 0, f"exit status {status}; its log: {self.logs}"
