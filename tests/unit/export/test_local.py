"""The sinks that stay on this machine."""

from __future__ import annotations

import json
from pathlib import Path

from modes import mode, umask_cleared
from sample_factory import make_sample

from splunk_profiler.export.local import FileSink, MemorySink
from splunk_profiler.formats.text import body
from splunk_profiler.model import Batch, ExportStatus, SpanRef


def test_a_file_that_is_made_is_its_owners_alone(tmp_path: Path) -> None:
    with umask_cleared():
        FileSink(tmp_path / "profiles.jsonl").export(Batch((make_sample(),), 0))
    assert mode(tmp_path / "profiles.jsonl") == 0o600


def test_a_file_holds_one_line_for_each_sample_of_every_batch(tmp_path: Path) -> None:
    path = tmp_path / "profiles.jsonl"
    sink = FileSink(path)
    first, second = make_sample(1, span=SpanRef(0xAB, 0xCD, 1)), make_sample(2, truncated=True)
    assert sink.export(Batch((first,), 0)).export_status is ExportStatus.DELIVERED
    assert sink.export(Batch((second,), 0)).export_status is ExportStatus.DELIVERED
    lines = [json.loads(line) for line in path.read_text("ascii").splitlines()]
    assert lines[0] == {
        "time_unix_nano": 1_000_000_000,
        "trace_id": "000000000000000000000000000000ab",
        "span_id": "00000000000000cd",
        "flags": 1,
        "source.event.period": 1000,
        "thread.stack.truncated": False,
        "body": body(first),
    }
    assert (lines[1]["trace_id"], lines[1]["thread.stack.truncated"]) == ("", True)


def test_a_file_that_cannot_be_written_is_named_and_the_batch_worth_another_try(tmp_path: Path) -> None:
    outcome = FileSink(tmp_path / "missing" / "profiles.jsonl").export(Batch((make_sample(),), 0))
    assert outcome.export_status is ExportStatus.RETRY
    assert "No such file or directory" in outcome.detail


def test_a_full_disk_is_survived() -> None:
    outcome = FileSink(Path("/dev/full")).export(Batch((make_sample(),), 0))
    assert outcome.export_status is ExportStatus.RETRY


def test_memory_keeps_the_batches_until_it_is_shut_down() -> None:
    sink, batch = MemorySink(), Batch((make_sample(),), 0)
    assert sink.export(batch).export_status is ExportStatus.DELIVERED
    sink.shutdown()
    assert sink.export(batch).export_status is ExportStatus.RETRY
    assert sink.batches == [batch]
