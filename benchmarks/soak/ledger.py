"""Counters of the profilers of a scenario: each writes a line to a file when it stops.

Imported by scenarios before the profiler starts; `read` is the runner's. Lines of forked children are in it as well.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

LEDGER = "SOAK_LEDGER"  # the variable that names the file


def install() -> None:
    """Make each profiler of this process and of its forked children write a line."""
    from splunk_profiler.exporter_process import pipelines  # noqa: PLC0415  # the runner has no need of it
    from splunk_profiler.pipeline.batch_exporter import BatchExporter  # noqa: PLC0415

    descriptor = os.open(os.environ[LEDGER], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    class LedgerExporter(BatchExporter[Any]):
        """A batch exporter that writes its counters when it stops."""

        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            _CURRENT[:] = [self]

        def stop(self, timeout_s: float) -> None:
            """Stop, and write the counters."""
            super().stop(timeout_s)
            line = {"pid": os.getpid(), "timeout_s": timeout_s, **asdict(self.counters())}
            os.write(descriptor, (json.dumps(line) + "\n").encode())

    setattr(pipelines, "BatchExporter", LedgerExporter)  # noqa: B010  # a name of the module, which mypy takes for a constant


def delivered() -> int:
    """Return the number of delivered records of this process."""
    return sum(recorder.counters().delivered for recorder in _CURRENT)


def waiting() -> int:
    """Return the number of records of this process that wait for delivery."""
    return sum(recorder.counters().waiting for recorder in _CURRENT)


def read(file: Path) -> Iterator[dict[str, Any]]:
    """Return the lines."""
    if file.exists():
        for line in file.read_text("utf-8").splitlines():
            yield json.loads(line)


_CURRENT: list[Any] = []
