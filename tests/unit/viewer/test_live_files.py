"""Tests of reading files that grow."""

from __future__ import annotations

import gzip
import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from profile_factory import SPAN_ID, TRACE_ID, record_body, small_profile
from saved_samples import SPAN, TRACE, allocation_line, append, profile_line, sample_line, span_line

from splunk_profiler.formats.pprof import encode_whole
from splunk_profiler.pipeline.pseudo_stacks import UNATTRIBUTED_STACKS
from splunk_profiler.samples import Aggregate, UnattributedReason
from splunk_profiler.viewer.live_files import LiveFiles
from splunk_profiler.viewer.model import Selection
from splunk_profiler.viewer.otlp_files import SourceError
from splunk_profiler.viewer.profile_messages import MAX_ITEMS


def endpoints(files: LiveFiles) -> dict[str, int]:
    files.refresh()
    return dict(files.recording.facet_values(Selection("samples"))["endpoint"].values)


def test_what_is_appended_is_read_when_its_line_is_whole(tmp_path: Path) -> None:
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


def test_the_endpoint_of_a_text_is_the_first_span_of_its_service(tmp_path: Path) -> None:
    (tmp_path / "logs.jsonl").write_text(sample_line() + sample_line(span="4" * 16), "utf-8")
    path = tmp_path / "traces.jsonl"
    path.touch()
    files = LiveFiles(tmp_path)
    for span, expected in (
        (span_line("scan", parent="2" * 16, service="shop"), {"scan": 1, "(span not received)": 1}),
        (span_line("handle", "4" * 16, "2" * 16, service="shop"), {"scan": 1, "handle": 1}),
        (span_line("GET /search", "3" * 16, "1" * 16, service="shop"), {"scan": 1, "handle": 1}),
        (span_line("route", "2" * 16, "3" * 16, service="shop"), {"GET /search": 2}),
        (span_line("click", "1" * 16, service="browser"), {"GET /search": 2}),
    ):
        append(path, span)
        assert endpoints(files) == expected
    append(tmp_path / "logs.jsonl", sample_line())
    assert endpoints(files) == {"GET /search": 3}
    assert dict(files.recording.facet_values(Selection("samples"))["span"].values) == {"scan": 2, "handle": 1}


def test_spans_that_are_their_own_parents_are_no_endless_way(tmp_path: Path) -> None:
    spans = span_line("one", parent="2" * 16, service="shop") + span_line("two", "2" * 16, SPAN, service="shop")
    (tmp_path / "logs.jsonl").write_text(sample_line() + spans, "utf-8")
    assert sum(endpoints(LiveFiles(tmp_path)).values()) == 1


def test_a_profile_has_endpoints_and_gets_the_names_of_its_spans(tmp_path: Path) -> None:
    def facet(name: str) -> set[str]:
        files.refresh()
        return set(dict(files.recording.facet_values(Selection("samples"))[name].values))

    (tmp_path / "logs.jsonl").write_text(profile_line(record_body(small_profile())), "utf-8")
    files = LiveFiles(tmp_path)
    known = facet("endpoint")
    assert "(span not received)" not in known
    assert facet("span") == {"(span not received)", "(outside of spans)"}
    (tmp_path / "traces.jsonl").write_text(span_line("SELECT", SPAN_ID).replace(TRACE, TRACE_ID), "utf-8")
    assert facet("span") == {"SELECT", "(outside of spans)"}
    assert facet("endpoint") == known


def test_time_without_a_stack_is_neither_in_a_span_nor_outside(tmp_path: Path) -> None:
    stack = UNATTRIBUTED_STACKS[UnattributedReason.UNSAMPLED]
    profile = small_profile()
    profile = replace(profile, aggregates=(*profile.aggregates, Aggregate(stack, (), 0, 0, 5_000)))
    (tmp_path / "cpu.pprof").write_bytes(encode_whole(profile).gzipped)
    files = LiveFiles(tmp_path)
    files.refresh()
    weights = files.recording.facet_values(Selection("cpu"))
    assert dict(weights["span"].values)["(not sampled)"] == dict(weights["endpoint"].values)["(not sampled)"] == 5_000


def test_a_file_that_was_replaced_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "logs.jsonl"
    path.write_text(2 * sample_line(), "utf-8")
    files = LiveFiles(path)
    assert sum(endpoints(files).values()) == 2
    version = files.version
    path.write_text(sample_line(), "utf-8")
    assert sum(endpoints(files).values()) == 1
    assert files.version > version


class ReplacedPath(type(Path())):  # type: ignore[misc]
    """A path whose file is replaced as soon as it has been opened, if there is another one beside it."""

    def open(self, *arguments: Any, **options: Any) -> Any:
        file = super().open(*arguments, **options)
        with suppress(FileNotFoundError):
            self.with_suffix(".new").replace(self)
        return file


def test_a_file_that_is_replaced_while_it_is_opened_is_read_next(tmp_path: Path) -> None:
    path = ReplacedPath(tmp_path / "logs.jsonl")
    path.write_text(sample_line(service="old"), "utf-8")
    path.with_suffix(".new").write_text(2 * sample_line(service="new"), "utf-8")
    files = LiveFiles(path)
    for service, count in (("old", 1), ("new", 2)):
        files.refresh()
        assert dict(files.recording.facet_values(Selection("samples"))["service"].values) == {service: count}


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
    others = 'no json\n[]\n"abc"\n["a"]\n{"resourceLogs": 7}\n{"profiles": []}\n'
    path.write_text(f'{others}{{}}\n{{"resourceMetrics": []}}\n' + sample_line().replace("#1", ""), "utf-8")
    files = LiveFiles(path)
    assert not endpoints(files)
    assert files.unread == 7


def test_a_profile_that_cannot_be_read_is_named_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "heap.pprof").write_bytes(encode_whole(small_profile()).gzipped)
    (tmp_path / "large.pprof").write_bytes((MAX_ITEMS + 1) * b"\x12\x00")  # a sample each
    files = LiveFiles(tmp_path)
    files.refresh()
    assert files.note.startswith(
        "1 record could not be read. large.pprof: the profile is larger than 64 MiB, or has over"
    )
    assert "`go tool pprof` reads it; save less at once: a filter, a shorter time" in files.note
    for number in range(5):
        (tmp_path / f"cut{number}.pprof").write_bytes(b"\x12")
    files.refresh()
    assert files.note.startswith("6 records could not be read. large.pprof: ")
    assert files.note.endswith("; 5 other files could not be read either.")


def test_a_profile_that_could_not_be_read_is_forgotten_when_removed(tmp_path: Path) -> None:
    path = tmp_path / "cut.pprof"
    path.write_bytes(b"\x12")
    (tmp_path / "other.jsonl").touch()
    files = LiveFiles(tmp_path)
    files.refresh()
    version = files.version
    path.unlink()
    files.refresh()
    assert not files.note
    assert files.version > version  # which has an open page ask
    path.write_bytes(b"\x12")
    files.refresh()
    assert files.unread == 1


@pytest.mark.parametrize("name", ["profile.speedscope.json", "profile.html", "profile.folded"])
def test_of_what_the_page_saves_only_pprof_is_read(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text('{"shared": {}}' if name.endswith("json") else "<html>", "utf-8")
    with pytest.raises(SourceError, match=r"is neither a store .* of what the page saves, only pprof is read"):
        LiveFiles(tmp_path / name)


def test_processes_of_two_containers_with_the_same_id_are_two(tmp_path: Path) -> None:
    names = ("service.name", "process.pid", "runtime-id")
    for number in "12":
        values = {"service.name": "shop", "process.pid": "1", "runtime-id": number * 36}
        described = [{"key": name, "value": {"stringValue": values[name]}} for name in names]
        line = json.loads(sample_line())
        line["resourceLogs"][0]["resource"] = {"attributes": described}
        (tmp_path / f"{number}.jsonl").write_text(json.dumps(line) + "\n", "utf-8")
    found = LiveFiles(tmp_path)
    found.refresh()
    assert {facets.process for facets in found.recording.facets} == {"shop 1 11111111", "shop 1 22222222"}


def test_profiles_in_files_are_read_once_and_those_of_selected_traces_not(tmp_path: Path) -> None:
    whole = encode_whole(small_profile()).gzipped
    written = "-20261123T101112131Z-77-0a1b2c3d-1"
    (tmp_path / f"shop-eu{written}.pprof").write_bytes(whole)
    (tmp_path / f"shop-eu{written}-snapshot.pprof").write_bytes(whole)
    (tmp_path / "by_hand.pprof").write_bytes(gzip.decompress(whole))
    (tmp_path / "cut.pprof").write_bytes(whole[:-9])
    (tmp_path / ".being_written.pprof").write_bytes(whole)
    files = LiveFiles(tmp_path)
    files.refresh()
    wall = sum(each.wall_ns for each in small_profile().aggregates)
    assert dict(files.recording.facet_values(Selection("wall"))["process"].values) == {
        "shop-eu 77 0a1b2c3d": wall,
        "by_hand": wall,
    }
    assert files.unread == 1
    version = files.version
    (tmp_path / "by_hand.pprof").unlink()
    files.refresh()
    assert files.version == version


def test_a_profile_that_was_half_there_is_read_when_it_is_whole(tmp_path: Path) -> None:
    whole = encode_whole(small_profile()).gzipped
    (tmp_path / "logs.jsonl").write_text(sample_line(), "utf-8")
    files = LiveFiles(tmp_path)
    seen = []
    for length in (0, len(whole) // 3, len(whole) // 2, len(whole)):
        (tmp_path / "heap.pb.gz").write_bytes(whole[:length])
        files.refresh()
        version = files.version
        files.refresh()
        assert files.version == version
        seen.append((files.unread, files.recording.count()))
    assert seen == [(0, 1), (1, 1), (1, 1), (0, 1 + len(small_profile().aggregates))]


def test_a_profile_that_is_written_anew_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "cpu.pprof"
    path.write_bytes(encode_whole(small_profile()).gzipped)
    files = LiveFiles(path)
    files.refresh()
    version = files.version
    shorter = replace(small_profile(), aggregates=small_profile().aggregates[:1])
    path.write_bytes(encode_whole(shorter).gzipped)
    files.refresh()
    assert (files.recording.count(), files.unread) == (1, 0)
    assert files.version > version


def test_allocations_as_text_are_shown_by_the_bytes_they_stand_for(tmp_path: Path) -> None:
    (tmp_path / "logs.jsonl").write_text(allocation_line(700) + sample_line() + allocation_line(4096), "utf-8")
    files = LiveFiles(tmp_path)
    files.refresh()
    assert files.recording.values == {"samples", "wall", "alloc_space"}
    assert files.recording.units["alloc_space"] == "bytes"
    assert files.recording.weights(Selection("alloc_space")).sum() == 4796
    assert sum(endpoints(files).values()) == 1
    assert (files.unread, files.note) == (0, "")


def test_a_source_without_files_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"holds no \.jsonl or \.json or \.pprof or \.pb\.gz files"):
        LiveFiles(tmp_path)
    with pytest.raises(SourceError, match="does not exist"):
        LiveFiles(tmp_path / "nothing")


def test_only_files_of_a_directory_are_read(tmp_path: Path) -> None:
    (tmp_path / "logs.jsonl").write_text(sample_line(), "utf-8")
    (tmp_path / "old.json").mkdir()
    (tmp_path / "dangling.jsonl").symlink_to("nothing")
    assert sum(endpoints(LiveFiles(tmp_path)).values()) == 1
    (tmp_path / "logs.jsonl").unlink()
    with pytest.raises(SourceError, match=r"holds no \.jsonl"):
        LiveFiles(tmp_path)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "logs.jsonl").write_text(sample_line(), "utf-8")
    files = LiveFiles(tmp_path)
    (tmp_path / "memory.json").symlink_to("/proc/self/mem")  # nothing is at its beginning
    with pytest.raises(SourceError, match=r"memory\.json cannot be read: Input/output error"):
        files.refresh()
