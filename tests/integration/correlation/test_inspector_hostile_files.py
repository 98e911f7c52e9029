"""Files that a process has made to cost its inspector much: the work for each is bounded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from inspected_process import LABELS_NAME, import_path
from sparse_elf import (
    DYNAMIC_SYMBOLS,
    FILE_BYTES,
    GNU_HASH,
    NAMES,
    RELOCATIONS,
    STRING_TABLE,
    STRINGS_OFFSET,
    SYMBOLS,
    Section,
    write_elf,
)
from target_process import Target

_MAP = """
import mmap, sys
with open(sys.argv[1], "rb") as file, mmap.mmap(file.fileno(), 4096, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC):
    print("ready", flush=True)
    input()
"""
_INSPECT = """
import resource, sys
from splunk_profiler.inspector import Reader
for limit, value in ((resource.RLIMIT_CPU, 30), (resource.RLIMIT_AS, 1 << 30)):
    resource.setrlimit(limit, (value, value))
with Reader(int(sys.argv[1])) as reader:
    print(*(reason.code for reason in reader.reasons() if reason.code != "library-not-loaded"))
"""

_FILES: dict[str, tuple[Section, ...]] = {
    "symbols": (NAMES, Section(DYNAMIC_SYMBOLS, 0, FILE_BYTES // 24 * 24)),
    "names": (Section(STRING_TABLE, 0, FILE_BYTES), Section(DYNAMIC_SYMBOLS, 0, 24)),
    "relocations": (NAMES, Section(DYNAMIC_SYMBOLS, 0, 24), Section(RELOCATIONS, 0, FILE_BYTES // 24 * 24, link=1)),
    "overlapping symbols": (NAMES, *[Section(SYMBOLS, 0, 24 << 16)] * 4000),
    "sections": (NAMES, *[Section(DYNAMIC_SYMBOLS, 0, 24)] * 65_000),
}


def _find_reasons(path: Path) -> str:
    """Return the codes that an inspector with little time and memory gives for a process which maps the file."""
    with Target(sys.executable, "-c", _MAP, str(path)) as target:
        target.line("ready")
        command = (sys.executable, "-c", _INSPECT, str(target.pid))
        done = subprocess.run(command, env={"PYTHONPATH": import_path()}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done
    return done.stdout.strip()


@pytest.mark.parametrize("sections", _FILES.values(), ids=_FILES)
def test_tables_of_any_size_are_refused(tmp_path: Path, sections: tuple[Section, ...]) -> None:
    write_elf(tmp_path / LABELS_NAME, *sections)
    assert _find_reasons(tmp_path / LABELS_NAME) == "file-malformed"


@pytest.mark.parametrize("segments", [(0, 65_535), (56, 65_534)])
def test_any_number_of_segments_is_refused(tmp_path: Path, segments: tuple[int, int]) -> None:
    write_elf(tmp_path / LABELS_NAME, NAMES, segments=segments)
    assert _find_reasons(tmp_path / LABELS_NAME) == "file-malformed"


def test_sections_that_are_not_needed_are_not_parsed(tmp_path: Path) -> None:
    hash_table = Section(GNU_HASH, STRINGS_OFFSET + 1, FILE_BYTES)  # it states two thousand million buckets
    write_elf(tmp_path / LABELS_NAME, NAMES, *[hash_table] * 4000, Section(DYNAMIC_SYMBOLS, 0, 24))
    assert _find_reasons(tmp_path / LABELS_NAME) == "symbol-missing symbol-missing"
