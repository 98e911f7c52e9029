"""Starts `targets/receiver.py` as a process and reads what it received; shared by the tests of export.

    with Receiver() as receiver:                       # or Receiver(port=4317, mode="refuse UNAVAILABLE")
        run_something(env={"SPLUNK_PROFILER_LOGS_ENDPOINT": receiver.url})
        record = receiver.record(lambda r: r["trace_id"])      # the first one for which the predicate holds

Every wait has a deadline and fails with what had arrived until then. Nothing is taken out: what one wait has
seen is there for the next one too. Imports nothing of the package.
"""

from __future__ import annotations

import contextlib
import json
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from forked_process import ForkedProcess

Record = dict[str, Any]
Export = dict[str, Any]
_T = TypeVar("_T")


class Receiver:
    """A running collector. `port` 0 takes a free one; the attribute has its number.

    With a `path` it listens at a Unix socket there, and at no port. Plaintext at a free port has a random loopback
    address: the exporter of a test that has ended may still send to a port that the kernel gives out again.

    Attributes:
        host, port: where it listens.
    """

    def __init__(
        self,
        *,
        port: int = 0,
        path: Path | None = None,
        mode: str = "ok",
        cert: Path | None = None,
        key: Path | None = None,
        client_ca: Path | None = None,
        start_timeout_s: float = 60,
    ) -> None:
        is_random = not port and path is None and cert is None
        self.host = f"127.{random.randint(1, 254)}.{random.randint(1, 254)}.1" if is_random else "127.0.0.1"
        arguments = ["--host", self.host, "--port", str(port), "--mode", mode]
        for option, file in (("--unix", path), ("--cert", cert), ("--key", key), ("--client-ca", client_ca)):
            arguments += [option, str(file)] if file is not None else []
        self._path = path
        self._secure = cert is not None
        self._process = ForkedProcess("receiver.py", *arguments)
        self._arrived = threading.Condition()
        self._ready: int | None = None
        self._ended = False
        self._modes: list[str] = []
        self._exports: list[Export] = []
        self._reader = threading.Thread(target=self._read, name="receiver-reader")
        self._reader.start()
        try:
            self._wait(lambda: self._ready is not None, start_timeout_s, "did not get ready")
        except BaseException:
            self.kill()
            raise
        assert self._ready is not None
        self.port: int = self._ready

    @property
    def address(self) -> str:
        """Its host and port."""
        return f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        """Its endpoint: ``http://127.x.y.1:PORT``, ``https://localhost:PORT`` with a certificate, or ``unix:PATH``."""
        if self._path is not None:
            return f"unix:{self._path}"
        return f"https://localhost:{self.port}" if self._secure else f"http://{self.address}"

    def switch(self, mode: str, timeout_s: float = 60) -> None:
        """Change its mode (see targets/receiver.py), unless it is empty, and wait until it is in force."""
        with self._arrived:
            before = len(self._modes)
        self._process.stdin.write(mode + "\n")
        self._process.stdin.flush()
        self._wait(lambda: len(self._modes) > before, timeout_s, f"did not switch to {mode!r}")

    def catch_up(self) -> None:
        """Read all it has said so far: every export that it has answered. Call it when the senders have ended."""
        self.switch("")

    def exports(self, count: int = 0, *, signal: str = "logs", answer: str = "", timeout_s: float = 60) -> list[Export]:
        """Wait for `count` exports of `signal` in mode `answer` (any, if empty), and return all of them."""
        return self._found(
            count,
            lambda export: [export] if export["signal"] == signal and export["answer"].startswith(answer) else [],
            timeout_s,
            f"did not get {count} exports of {signal}",
        )

    def records(self, count: int = 0, where: Callable[[Record], Any] = bool, timeout_s: float = 60) -> list[Record]:
        """Wait for `count` accepted log records for which `where` holds, and return all of them."""

        def accepted(export: Export) -> list[Record]:
            is_accepted = export["signal"] == "logs" and export["answer"] == "ok"
            return [record for record in export["records"] if where(record)] if is_accepted else []

        return self._found(count, accepted, timeout_s, f"did not get {count} such records")

    def record(self, where: Callable[[Record], Any] = bool, timeout_s: float = 60) -> Record:
        """Wait for an accepted log record for which `where` holds, and return it."""
        return self.records(1, where, timeout_s)[0]

    def spans(
        self, count: int = 0, where: Callable[[dict[str, Any]], Any] = bool, timeout_s: float = 60
    ) -> list[dict[str, Any]]:
        """Wait for `count` spans for which `where` holds, and return all of them."""

        def spans(export: Export) -> list[dict[str, Any]]:
            return [span for span in export["spans"] if where(span)] if export["signal"] == "traces" else []

        return self._found(count, spans, timeout_s, f"did not get {count} such spans")

    def kill(self) -> None:
        """Kill it; its port is free on return."""
        self._process.kill()
        self._leave()

    def stop(self) -> None:
        """Let it end in order."""
        if not self._process.stdin.closed:
            self._process.stdin.write("stop\n")
        self._leave()

    def _leave(self) -> None:
        if self._process.stdin.closed:
            return
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        if not self._process.wait(60):
            self._process.kill()
            self._process.wait()
        self._reader.join()
        self._process.close()

    def _read(self) -> None:
        for line in self._process.stdout:
            with self._arrived:
                if line.startswith("ready "):
                    self._ready = int(line.split()[1])
                else:
                    found = json.loads(line)
                    (self._modes if "mode" in found else self._exports).append(found.get("mode", found))
                self._arrived.notify_all()
        with self._arrived:
            self._ended = True
            self._arrived.notify_all()

    def _found(self, count: int, parts: Callable[[Export], list[_T]], timeout_s: float, failure: str) -> list[_T]:
        """Wait until the exports have so many parts; return all of them. Each export is looked at once."""
        found: list[_T] = []
        looked = 0

        def enough() -> bool:
            nonlocal looked
            for export in self._exports[looked:]:
                found.extend(parts(export))
            looked = len(self._exports)
            return len(found) >= count

        self._wait(enough, timeout_s, failure)
        return found

    def _wait(self, condition: Callable[[], bool], timeout_s: float, failure: str) -> None:
        deadline = time.monotonic() + timeout_s
        with self._arrived:
            while not condition():
                left = deadline - time.monotonic()
                if left <= 0 or self._ended:
                    reason = "it ended" if self._ended else f"not within {timeout_s} s"
                    seen = [(e["signal"], e["answer"], e["size"]) for e in self._exports]
                    raise AssertionError(f"the receiver {failure}: {reason}; exports so far: {seen[-50:]}")
                self._arrived.wait(left)

    def __enter__(self) -> Receiver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()
