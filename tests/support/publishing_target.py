"""Targets that publish to host profilers, and the settings with which they do."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from target_process import Target

SERVICE = "switching"
_PREFIX = "ELASTIC_OTEL_UNIVERSAL_PROFILING_INTEGRATION_"


@contextmanager
def socket_folder() -> Iterator[Path]:
    """A folder whose path is short enough for the path of a socket in it."""
    with tempfile.TemporaryDirectory(prefix="spl-") as folder:
        yield Path(folder)


def publishing_settings(folder: Path, **more: str) -> dict[str, str]:
    """Settings to publish both ABIs and to do nothing else; the socket is made in `folder`."""
    return {
        "OTEL_SERVICE_NAME": SERVICE,
        f"{_PREFIX}ENABLED": "true",
        f"{_PREFIX}SOCKET_DIR": str(folder),
        "SPLUNK_PROFILER_CUSTOM_LABELS_ENABLED": "true",
        **more,
    }


@contextmanager
def publishing_target(*command: str, **more: str) -> Iterator[Target]:
    """A running target that publishes, with these settings besides."""
    with socket_folder() as folder, Target(*command, env=publishing_settings(folder, **more)) as target:
        yield target
