"""Tests of the search for libraries in files that the process has prepared."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from inspected_process import LABELS_NAME, MACHINE, TargetBuilder
from sparse_elf import DYNAMIC_SYMBOLS, STRING_TABLE, Section, write_elf
from target_process import Target

from splunk_profiler.inspector.architecture import ARCHITECTURES
from splunk_profiler.inspector.elf import Image
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
FILE_PROBLEMS = {"file-gone", "file-malformed", "file-unreadable"}


def find_images() -> list[Image]:
    """Return what is remembered of files in this process."""
    return [one for one in gc.get_objects() if type(one) is Image]  # `isinstance` would run code of other classes


def make_endless(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


def make_search(folder: Path, *interfaces: Interface) -> LibrarySearch:
    """Return a search in a process whose root directory is in `folder`."""
    return LibrarySearch(folder, Memory(os.getpid()), ARCHITECTURE, interfaces)


def find_problems(search: LibrarySearch, *names: str) -> list[str]:
    """Search the files of the root directory; return the codes for labels."""
    search.run([Mapping(0x1000, 0x2000, True, 0, f"/{name}", False) for name in names], "/usr/bin/python3")
    return [problem.code for problem in search.problems if problem.interface is Interface.LABELS]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


@pytest.mark.parametrize(
    ("make", "code"),
    [(os.mkfifo, "file-unreadable"), (Path.mkdir, "file-unreadable"), (make_endless, "file-malformed")],
)
def test_what_is_no_library_is_not_read(root: Path, make: Callable[[Path], None], code: str) -> None:
    make(root / LABELS_NAME)
    assert find_problems(make_search(root.parent, Interface.LABELS), LABELS_NAME) == [code]


def test_a_file_that_is_a_library_is_read(root: Path) -> None:
    (root / LABELS_NAME).symlink_to(TargetBuilder(root).labels())
    assert not set(find_problems(make_search(root.parent, Interface.LABELS), LABELS_NAME)) & FILE_PROBLEMS


def test_large_files_do_not_keep_a_library_from_being_read(root: Path) -> None:
    (root / LABELS_NAME).symlink_to(TargetBuilder(root).labels())
    write_elf(root / "large.so", Section(STRING_TABLE, 0, 1 << 27), Section(DYNAMIC_SYMBOLS, 0, 24))
    search = make_search(root.parent, *Interface)
    assert not set(find_problems(search, "large.so", LABELS_NAME)) & FILE_PROBLEMS


def test_a_malformed_file_is_not_read_again_until_it_changes(root: Path) -> None:
    good, path = TargetBuilder(root).labels().read_bytes(), root / LABELS_NAME
    search = make_search(root.parent, Interface.LABELS)

    def problems_of(content: bytes, time_ns: int) -> set[str]:
        path.write_bytes(content)
        os.utime(path, ns=(time_ns, time_ns))
        return set(find_problems(search, LABELS_NAME)) & FILE_PROBLEMS

    assert problems_of(bytes(len(good)), 0) == problems_of(good, 0) == {"file-malformed"}
    assert not problems_of(good, 1)


def test_only_files_of_the_last_searches_are_remembered(root: Path) -> None:
    (root / LABELS_NAME).write_bytes(TargetBuilder(root).labels().read_bytes())
    search = make_search(root.parent, Interface.LABELS)
    earlier = find_images()  # of other tests; held, so that they stay
    for _ in range(2):
        find_problems(search, LABELS_NAME)
        assert len(find_images()) == len(earlier) + 1
    for time_ns in range(5):
        os.utime(root / LABELS_NAME, ns=(time_ns, time_ns))
        find_problems(search, LABELS_NAME)
    assert len(find_images()) <= len(earlier) + 2, "of this search and of the one before"


def test_a_mapped_path_with_a_carriage_return_is_one_path(tmp_path: Path) -> None:
    path = tmp_path / "a\r1000-2000 r-xp 00000000 00:00 1"
    path.write_text("content")
    with Target(sys.executable, "-c", MAP_PROGRAM, str(path)) as target:
        target.line("ready")
        assert str(path) in {mapping.path for mapping in Process(target.pid).mappings()}
