"""A program that embeds Python may finalize the interpreter and initialize it again in the same process."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest
from c_library import compile_library
from target_process import Target

pytest.importorskip("splunk_profiler._context")


def test_extensions_work_in_a_second_initialization(tmp_path: Path) -> None:
    library = compile_library("second_initialization.c", tmp_path, f"-I{sysconfig.get_path('include')}")
    env = {"REINITIALIZER": str(library), "PYTHONMALLOC": "malloc"}  # memory that is freed is used again
    with Target("second_initialization.py", env=env) as target:
        target.lines(2, "right")
        assert target.line("second initialization") == "0"
        assert target.finish() == 0
