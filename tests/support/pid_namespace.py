"""A command as process 1 of a namespace of process ids, as in a container. Imports nothing of the package."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

NAMESPACE = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]


def skip_without_namespace(*more: str) -> None:
    """Skip the test where the kernel refuses the namespaces, those of the options `more` included."""
    if subprocess.run([*NAMESPACE, *more, "true"], capture_output=True, check=False).returncode:
        pytest.skip(f"the kernel refuses a namespace ({' '.join(NAMESPACE[1:])} {' '.join(more)})")


def process_1(outer: int) -> int:
    """Return the process id, seen from here, of the namespace's process 1; `outer` is the process of `NAMESPACE`."""
    return children(outer)[0]


def children(pid: int) -> list[int]:
    """Return the children of a process that has one thread, the oldest first."""
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text("utf-8").split()]
