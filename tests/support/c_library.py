"""Libraries of C code that tests load, compiled when they are needed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from target_process import TESTS

NEEDS_COMPILER = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")


def compile_library(source: str, folder: Path, *options: str, name: str = "") -> Path:
    """Compile a file of `tests/targets` and return the library in the folder, of that name unless it gets another."""
    library = folder / (name or f"lib{Path(source).stem}.so")
    flags = ("-shared", "-fPIC", "-O1", "-pthread", *options)
    subprocess.run(["cc", *flags, "-o", library, TESTS / "targets" / source, "-ldl"], check=True)
    return library
