"""Tests of the two libraries, and of the process storage behind one of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("splunk_profiler._context", reason="the native publisher is not built for this interpreter")

from own_memory import ELASTIC_PATH, LABELS_PATH, InstalledPublisher, OwnMemory, storage_of

from splunk_profiler import _context

FIRST, SECOND = storage_of("shop", "production", "/run/a.sock"), storage_of("shop", "", "/run/b.sock")
LOADERS: dict[str, Any] = {
    "labels": _context.load_labels_library,
    "elastic": lambda path: _context.load_elastic_library(path, FIRST),
}
LOAD = pytest.mark.parametrize("load", LOADERS.values(), ids=LOADERS.keys())


def test_libraries_report_their_path_and_that_readers_can_follow_them(publishing: InstalledPublisher) -> None:
    assert _context.load_labels_library(LABELS_PATH) == "static"
    assert _context.load_elastic_library(str(ELASTIC_PATH), FIRST) == "static"
    publishing.uninstall()


def test_the_storage_is_what_was_given_last(publishing: InstalledPublisher, memory: OwnMemory) -> None:
    _context.load_elastic_library(ELASTIC_PATH, FIRST)
    assert memory.storage(len(FIRST)) == FIRST
    for content in (SECOND, FIRST, SECOND):
        _context.replace_storage(content)
        assert memory.storage(len(content)) == content
    publishing.uninstall()


def test_a_withdrawn_storage_is_gone_until_the_library_is_loaded_again(
    publishing: InstalledPublisher, memory: OwnMemory
) -> None:
    _context.clear_storage()
    _context.clear_storage()
    assert memory.storage(1) is None
    publishing.install()
    assert memory.storage(2) == FIRST[:2]


@LOAD
def test_a_library_that_is_not_there_is_named(load: Any, tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"absent\.so cannot be loaded: .*No such file"):
        load(tmp_path / "absent.so")


@LOAD
def test_file_that_is_no_library_is_named_with_the_loaders_error(load: Any, tmp_path: Path) -> None:
    (tmp_path / "text.so").write_text("text")
    with pytest.raises(OSError, match=r"text\.so cannot be loaded: .*(file too short|invalid ELF header)"):
        load(tmp_path / "text.so")


@pytest.mark.parametrize(("load", "other"), [(LOADERS["labels"], ELASTIC_PATH), (LOADERS["elastic"], LABELS_PATH)])
def test_another_library_is_refused(load: Any, other: Path) -> None:
    with pytest.raises(OSError, match=rf"{other.name} is not the profiler's library: it has no "):
        load(other)


@LOAD
def test_library_without_an_absolute_path_is_refused(load: Any) -> None:
    with pytest.raises(ValueError, match="the path of a library must be absolute, not libc"):
        load("libc.so.6")


@LOAD
@pytest.mark.parametrize("path", [None, 7, ["x"]])
def test_library_that_is_not_a_path_is_refused(load: Any, path: Any) -> None:
    with pytest.raises(TypeError):
        load(path)


@pytest.mark.parametrize("storage", [None, "text", bytearray(b"x")])
def test_storage_that_is_not_bytes_is_refused(storage: Any) -> None:
    with pytest.raises(TypeError):
        _context.load_elastic_library(ELASTIC_PATH, storage)
    with pytest.raises(TypeError):
        _context.replace_storage(storage)
