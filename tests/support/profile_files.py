"""Profiles that a target has written to files: settings, whole files, who wrote them and what they were seen in.

Imports nothing of the package.
"""

from __future__ import annotations

import gzip
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from profile_schema import decode, function_names
from target_process import let_exporter_run, profiling_settings


def written_to(directory: Path) -> dict[str, str]:
    """The settings with which a target is profiled into files. The collector's endpoint must not matter."""
    return {
        **profiling_settings("http://127.0.0.1:9", 10),
        "SPLUNK_PROFILER_OUTPUT": f"file:{directory}",
        "SPLUNK_PROFILER_EXPORT_INTERVAL": "100",
        "OTEL_SERVICE_NAME": "shop",
    }


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait until `condition` holds, 60 seconds at most."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        let_exporter_run()


def profiles(directory: Path) -> dict[str, Any]:
    """File name → profile; each of them must be whole."""
    return {path.name: decode(gzip.decompress(path.read_bytes())) for path in directory.glob("*.pprof")}


def pids(directory: Path) -> set[int]:
    """The processes that have written there."""
    return {int(name.split("-")[2]) for name in profiles(directory)}


def functions(directory: Path, pid: int) -> set[str]:
    """Return the names of the functions in the profiles of one process."""
    found = (profile for name, profile in profiles(directory).items() if name.split("-")[2] == str(pid))
    return set().union(*map(function_names, found))
