"""A copy of the package with its extensions, which an editable installation has in two places."""

from __future__ import annotations

import shutil
from pathlib import Path

import splunk_profiler
from splunk_profiler import _walker


def copy_package(folder: Path) -> Path:
    """Copy it into `folder`, from where it can be imported; return its directory."""
    copy = folder / "splunk_profiler"
    shutil.copytree(Path(splunk_profiler.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for built in Path(_walker.__file__).parent.glob("*.so"):
        shutil.copy(built, copy)
    return copy
