"""The collector's store of samples: requests are appended at once, and a thread keeps the file small.

Only `collect --store` imports this module, which needs the packages of the extra `view`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from splunk_profiler.cli.store import StoreError
from splunk_profiler.system.threads import Worker
from splunk_profiler.viewer.otlp_files import SourceError
from splunk_profiler.viewer.store_writer import Limits, StoreWriter


class StoreFile:
    """A store at `path`, on which a thread works every `interval_s`.

    `on_problem` is called with a sentence when it cannot be kept small, once for each reason; it must not raise.

    Raises:
        SourceError: it is something else, cannot be written, or another process writes it.
    """

    def __init__(
        self,
        path: Path,
        limits: Limits,
        on_problem: Callable[[str], None],
        *,
        sync: bool,
        interval_s: float = 15.0,
    ) -> None:
        self.path = path
        self._interval_s = interval_s
        self._writer = StoreWriter(path, limits, sync=sync)
        self._on_problem = on_problem
        self._problem = ""
        self._ended = threading.Event()
        self._worker = Worker("store", self._run_maintenance)
        self._worker.start()

    def append(self, request: Any, *, is_traces: bool) -> None:
        """Add a request of spans or logs; `StoreError` if it could not be written: the store is as before."""
        try:
            self._writer.append(request, is_traces=is_traces, received_ns=time.time_ns())
        except SourceError as error:
            raise StoreError(str(error)) from None

    @property
    def size(self) -> int:
        """Bytes in use."""
        return self._writer.size

    def close(self) -> None:
        """End the thread after its step, and close the file."""
        self._ended.set()
        self._worker.join(threading.TIMEOUT_MAX)
        self._writer.close()

    def _run_maintenance(self) -> None:
        while not self._ended.wait(self._interval_s):
            try:
                self._writer.run_maintenance(time.time_ns())
                self._problem = ""
            except Exception as error:  # whatever it is, the store must not grow for ever
                is_known = isinstance(error, SourceError)
                problem = str(error) if is_known else f"{self.path} is not kept small: {error!r}"
                if problem != self._problem:
                    self._problem = problem
                    self._on_problem(problem)
