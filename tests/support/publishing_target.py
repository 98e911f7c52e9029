"""Targets that publish to host profilers, and their settings."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from target_process import Target

SERVICE = "switching"
_PREFIX = "ELASTIC_OTEL_UNIVERSAL_PROFILING_INTEGRATION_"


@contextmanager
def socket_folder() -> Iterator[Path]:
    """Make a folder with a path short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="spl-") as folder:
        yield Path(folder)


def publishing_settings(folder: Path, **more: str) -> dict[str, str]:
    """Return settings that publish both ABIs and do nothing else; the socket is in `folder`."""
    return {
        "OTEL_SERVICE_NAME": SERVICE,
        f"{_PREFIX}ENABLED": "true",
        f"{_PREFIX}SOCKET_DIR": str(folder),
        "SPLUNK_PROFILER_CUSTOM_LABELS_ENABLED": "true",
        **more,
    }


@contextmanager
def publishing_target(*command: str, **more: str) -> Iterator[Target]:
    """Run a target that publishes, with these further settings."""
    with socket_folder() as folder, Target(*command, env=publishing_settings(folder, **more)) as target:
        yield target


def iter_moments(target: Target) -> Iterator[Any]:
    """Yield the expected values at each moment at which a target stands; the next request resumes it."""
    count = 0
    while target.wait_for_either("at ", "end", count) == "at ":
        count += 1
        yield json.loads(target.lines(count, "at ")[-1])
        target.tell("on")
