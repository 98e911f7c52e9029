"""Tests of reading files that grow."""

from __future__ import annotations

from pathlib import Path

import pytest
from saved_samples import append, sample_line, span_line

from splunk_profiler.viewer.model import Selection
from splunk_profiler.viewer.otlp_files import SourceError
from splunk_profiler.viewer.reading import LiveFiles


def endpoints(files: LiveFiles) -> dict[str, int]:
    files.refresh()
    return dict(files.recording.facet_weights(Selection("samples"))["endpoint"])


def test_what_is_appended_is_read_and_a_part_of_a_line_only_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "logs.jsonl"
    line = sample_line()
    path.write_text(line + line[:50], "utf-8")
    files = LiveFiles(tmp_path)
    assert sum(endpoints(files).values()) == 1
    version = files.version
    assert sum(endpoints(files).values()) == 1
    assert files.version == version
    append(path, line[50:])
    assert sum(endpoints(files).values()) == 2
    assert files.version > version
    assert files.unread == 0


def test_a_sample_gets_the_name_of_its_span_when_that_is_written(tmp_path: Path) -> None:
    (tmp_path / "logs.jsonl").write_text(sample_line() + sample_line(span=""), "utf-8")
    files = LiveFiles(tmp_path)
    assert endpoints(files) == {"(span not received)": 1, "(outside of spans)": 1}
    (tmp_path / "traces.jsonl").write_text(span_line("GET /search"), "utf-8")
    assert endpoints(files) == {"GET /search": 1, "(outside of spans)": 1}


def test_a_file_that_was_replaced_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "logs.jsonl"
    path.write_text(2 * sample_line(), "utf-8")
    files = LiveFiles(path)
    assert sum(endpoints(files).values()) == 2
    version = files.version
    path.write_text(sample_line(), "utf-8")
    assert sum(endpoints(files).values()) == 1
    assert files.version > version


def test_no_line_is_read_twice_whatever_is_in_it(tmp_path: Path) -> None:
    hostile = sample_line().replace("main", r"\\Uffffffff").replace('"shop"', r'"\udcff"')
    (tmp_path / "logs.jsonl").write_text(sample_line() + hostile, "utf-8")
    files = LiveFiles(tmp_path)
    for _ in range(2):
        assert sum(endpoints(files).values()) == 2
    assert {facets.thread for facets in files.recording.facets} == {"main", r"\Uffffffff"}
    assert files.unread == 0


def test_what_is_no_record_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "logs.jsonl"
    path.write_text('no json\n[]\n{"resourceLogs": 7}\n' + sample_line().replace("#1", ""), "utf-8")
    files = LiveFiles(path)
    assert not endpoints(files)
    assert files.unread == 4


def test_a_source_without_files_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"holds no \.jsonl files"):
        LiveFiles(tmp_path)
    with pytest.raises(SourceError, match="does not exist"):
        LiveFiles(tmp_path / "nothing")
