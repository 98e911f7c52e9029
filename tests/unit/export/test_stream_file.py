"""The file that keeps a stream."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from splunk_profiler.export.stream_file import StreamFile


def open_files() -> set[str]:
    """Return what the descriptors of this process lead to."""
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        if entry.is_symlink():
            found.add(str(entry.readlink()))
    return found


def test_stream_is_appended_and_no_descriptor_stays_open(tmp_path: Path) -> None:
    output = StreamFile(tmp_path)
    for piece in (b"one ", b"two ", b"three"):
        assert output.send(piece)
        assert output.path is not None
        assert str(output.path) not in open_files()
    output.stop(0)
    assert output.path is not None
    assert output.path.read_bytes() == b"one two three"


def test_data_after_the_stop_is_ignored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    output = StreamFile(tmp_path)
    assert output.send(b"one")
    output.stop(0)
    assert output.send(b"two")
    assert output.path is not None
    assert output.path.read_bytes() == b"one"
    assert not caplog.records


def test_full_file_does_not_have_the_stream_begin_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    output = StreamFile(tmp_path, max_bytes=5)
    for piece in (b"one", b"two", b"2"):
        assert output.send(piece)
    assert output.path is not None
    assert output.path.read_bytes() == b"one"
    assert caplog.messages == ["the stream has 0 MiB, and more is not kept (SPLUNK_PROFILER_OUTPUT)"]


def test_stream_whose_file_was_removed_begins_anew_in_another_one(tmp_path: Path) -> None:
    output = StreamFile(tmp_path / "streams")
    assert output.send(b"one")
    removed = output.path
    assert removed is not None
    shutil.rmtree(tmp_path / "streams")
    assert not output.send(b"two")  # which would not be the beginning of a stream
    assert not list(tmp_path.iterdir())
    assert output.send(b"three")
    assert output.path not in (None, removed)
    assert [path.read_bytes() for path in (tmp_path / "streams").iterdir()] == [b"three"]


def test_stream_whose_file_was_truncated_begins_anew_in_another_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    output = StreamFile(tmp_path)
    assert output.send(b"one")
    truncated = output.path
    assert truncated is not None
    os.truncate(truncated, 0)
    assert not output.send(b"two")
    assert output.send(b"three")
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == {truncated: b"", output.path: b"three"}
    (line,) = caplog.messages
    assert "the beginning of the file was removed; a new file is begun" in line
