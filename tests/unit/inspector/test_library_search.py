"""Tests of the search for libraries in files that the process has prepared."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from inspected_process import LABELS_NAME, MACHINE, TargetBuilder
from target_process import Target

from splunk_profiler.inspector.architecture import ARCHITECTURES
from splunk_profiler.inspector.library_search import LibrarySearch
from splunk_profiler.inspector.maps import Mapping
from splunk_profiler.inspector.memory import Memory
from splunk_profiler.inspector.model import Interface
from splunk_profiler.inspector.process import Process

MAP_PROGRAM = """
import mmap, sys
with open(sys.argv[1], "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ):
    print("ready", flush=True)
    input()
"""
ARCHITECTURE = next(one for one in ARCHITECTURES if one.name == MACHINE)


def make_endless(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


def search(folder: Path) -> LibrarySearch:
    """Return a search in a process that has mapped the library which `folder` has as its root directory's."""
    done = LibrarySearch(folder, Memory(os.getpid()), ARCHITECTURE, [Interface.LABELS])
    done.run([Mapping(0x1000, 0x2000, True, 0, f"/{LABELS_NAME}", False)], "/usr/bin/python3")
    return done


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, make_endless])
def test_what_is_no_file_of_a_librarys_size_is_not_read(tmp_path: Path, make: Callable[[Path], None]) -> None:
    (tmp_path / "root").mkdir()
    make(tmp_path / "root" / LABELS_NAME)
    (problem,) = search(tmp_path).problems
    assert problem.code == "file-unreadable"


def test_a_file_that_is_a_library_is_read(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / LABELS_NAME).symlink_to(TargetBuilder(tmp_path).labels())
    assert "file-unreadable" not in [problem.code for problem in search(tmp_path).problems]


def test_a_mapped_path_with_a_carriage_return_is_one_path(tmp_path: Path) -> None:
    path = tmp_path / "a\r1000-2000 r-xp 00000000 00:00 1"
    path.write_text("content")
    with Target(sys.executable, "-c", MAP_PROGRAM, str(path)) as target:
        target.line("ready")
        assert str(path) in {mapping.path for mapping in Process(target.pid).mappings()}
