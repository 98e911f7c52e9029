"""``go tool pprof``: what it prints of files in a folder. Imports nothing of the package."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path


def run_pprof(folder: Path, *arguments: str, said: str = "") -> str:
    """Run the tool, check what it has said on stderr, and return its output."""
    done = subprocess.run(
        ["go", "tool", "pprof", *arguments],
        cwd=folder,
        # Without C the tool is compiled a fifth faster. Another environment would compile it once more.
        env={**os.environ, "GOTOOLCHAIN": "local", "CGO_ENABLED": "0", "PPROF_TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert done.stderr == said
    return done.stdout


def pprof_top(printed: str) -> dict[str, tuple[int, int]]:
    """Function → (flat, cumulative), of ``-top`` with ``-unit=ns`` or ``-unit=B``."""
    rows = re.findall(r"^ *(\d+)(?:ns|B)? +\S+ +\S+ +(\d+)(?:ns|B)? +\S+  (.+)$", printed, re.M)
    return {name: (int(flat), int(cumulative)) for flat, cumulative, name in rows}
