"""Counters of the profilers of a scenario: each writes a line to a file when it stops.

Imported by scenarios before the profiler starts; `read` is the runner's. Lines of forked children are in it as well.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from typing import Any

LEDGER = "SOAK_LEDGER"  # the variable that names the file


def install() -> None:
    """Make each profiler of this process and of its forked children write a line."""
    from splunk_profiler.lifecycle.local_export import LocalExport  # noqa: PLC0415  # the runner has no need of it
    from splunk_profiler.lifecycle.process_export import ProcessExport  # noqa: PLC0415

    descriptor = os.open(os.environ[LEDGER], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for owner in (LocalExport, ProcessExport):
        setattr(owner, "start", _noting(owner.start))  # noqa: B010  # a method, which mypy takes for a constant
        setattr(owner, "stop", _writing(owner.stop, descriptor))  # noqa: B010


def delivered() -> int:
    """Return the number of delivered records of this process."""
    return sum(output.counters().delivered for output in _CURRENT)


def waiting() -> int:
    """Return the number of records of this process that wait for delivery."""
    return sum(output.counters().waiting for output in _CURRENT)


def read(file: Path) -> Iterator[dict[str, Any]]:
    """Return the lines."""
    if file.exists():
        for line in file.read_text("utf-8").splitlines():
            yield json.loads(line)


def _noting(start: Callable[[Any], None]) -> Callable[[Any], None]:
    """Wrap the start of an output: it is the current one."""

    @wraps(start)
    def wrapper(output: Any) -> None:
        _CURRENT[:] = [output]
        start(output)

    return wrapper


def _writing(stop: Callable[[Any, float], None], descriptor: int) -> Callable[[Any, float], None]:
    """Wrap the stop of an output: the first one writes its counters."""

    @wraps(stop)
    def wrapper(output: Any, timeout_s: float) -> None:
        stop(output, timeout_s)
        if output in _CURRENT:
            _CURRENT.clear()
            line = {"pid": os.getpid(), "timeout_s": timeout_s, **output.counters()._asdict()}
            os.write(descriptor, (json.dumps(line) + "\n").encode())

    return wrapper


_CURRENT: list[Any] = []
