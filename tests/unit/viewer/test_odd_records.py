"""Tests of records that are not as they should be, among others: these are read, and those are counted."""

from __future__ import annotations

import base64
import gzip
from pathlib import Path

import pytest
from sample_stores import NOON_NS, put, writing
from saved_samples import allocation_line, profile_line, sample_line, span_line

from splunk_profiler.cli.memory_profiles import MemoryProfiles
from splunk_profiler.cli.profiles import Profiles
from splunk_profiler.formats.profile_proto import ProfileMessage
from splunk_profiler.viewer.live_files import LiveFiles
from splunk_profiler.viewer.live_store import LiveStore
from splunk_profiler.viewer.model import DAY_NS, HOUR_NS, Selection
from splunk_profiler.viewer.profile_messages import MAX_ITEMS, MAX_MESSAGE_BYTES, ProfileError
from splunk_profiler.viewer.recording import Recording


def profile(
    value: str = "samples", unit: str = "count", *, time_ns: int = 5, duration_ns: int = 1, weight: int = 1
) -> ProfileMessage:
    """A profile of a sample in `main`, with one value."""
    message = ProfileMessage(
        string_table=["", value, unit, "main", "main.py"], time_nanos=time_ns, duration_nanos=duration_ns
    )
    message.sample_type.add(type=1, unit=2)
    message.function.add(id=1, name=3, filename=4)
    message.location.add(id=1).line.add(function_id=1, line=7)
    message.sample.add(location_id=[1], value=[weight])
    return message


def commented(comment: str, time_ns: int = 5) -> ProfileMessage:
    """A profile with a comment."""
    message = profile(time_ns=time_ns)
    message.string_table.append(comment)
    message.comment.append(len(message.string_table) - 1)
    return message


def line_of(message: ProfileMessage) -> str:
    return profile_line(base64.b64encode(gzip.compress(message.SerializeToString())).decode())


def joined_lines(*lines: str) -> str:
    """Return one request with the resources of all."""
    begins, ends = '{"resourceLogs": [', "]}\n"
    return begins + ", ".join(line.removeprefix(begins).removesuffix(ends) for line in lines) + ends


@pytest.mark.parametrize("where", ["location", "function"])
def test_a_profile_that_names_what_it_has_not_is_one_unread_record(tmp_path: Path, where: str) -> None:
    odd = profile()
    if where == "location":
        odd.sample.add(location_id=[1, 9], value=[1])
    else:
        odd.location[0].line[0].function_id = 9
    (tmp_path / "odd.pprof").write_bytes(odd.SerializeToString())
    (tmp_path / "whole.pprof").write_bytes(profile().SerializeToString())
    request = joined_lines(sample_line(), line_of(odd), sample_line(), line_of(profile()))
    (tmp_path / "logs.jsonl").write_text(request, "utf-8")
    files = LiveFiles(tmp_path)
    files.refresh()
    assert files.unread == 2
    assert files.recording.weights(Selection("samples")).sum() == 4


def deep(lines: int, depth: int, samples: int) -> ProfileMessage:
    """A small profile of large stacks: each is so many times the same location, which has so many inlined lines."""
    message = profile()
    for _ in range(lines - 1):
        message.location[0].line.add(function_id=1, line=7)
    message.sample[0].location_id[:] = depth * [1]
    for _ in range(samples - 1):
        message.sample.append(message.sample[0])
    return message


@pytest.mark.parametrize(("lines", "depth", "samples"), [(2500, 2500, 1), (1, 150_000, 1), (1000, 100, 500)])
def test_a_profile_whose_stacks_are_too_large_is_one_unread_record(
    tmp_path: Path, lines: int, depth: int, samples: int
) -> None:
    odd = deep(lines, depth, samples)
    (tmp_path / "odd.pprof").write_bytes(odd.SerializeToString())
    (tmp_path / "logs.jsonl").write_text(line_of(odd) + line_of(profile()), "utf-8")
    files = LiveFiles(tmp_path)
    files.refresh()
    assert files.unread == 2
    assert files.recording.weights(Selection("samples")).sum() == 1
    body = base64.b64encode(odd.SerializeToString()).decode()
    for read in (Profiles().add, MemoryProfiles().add):
        with pytest.raises(ProfileError, match="frames"):
            read(body, "shop")


@pytest.mark.parametrize("item", [b"\x12\x00", b"\x12\x02\x1a\x00", b"\x32\x00"])
def test_a_small_profile_of_too_many_items_is_an_unread_record(tmp_path: Path, item: bytes) -> None:
    packed = gzip.compress(profile().SerializeToString() + MAX_ITEMS * item)
    assert len(packed) < 20_000
    (tmp_path / "odd.pprof").write_bytes(packed)
    (tmp_path / "whole.pprof").write_bytes(profile().SerializeToString())
    files = LiveFiles(tmp_path)
    files.refresh()
    assert (files.unread, files.recording.count()) == (1, 1)


def test_profiles_are_unread_once_those_before_them_held_too_much(tmp_path: Path) -> None:
    bomb = profile_line(base64.b64encode(gzip.compress(bytes(MAX_MESSAGE_BYTES + 1), 1)).decode())
    whole = line_of(profile(time_ns=NOON_NS))
    lines = joined_lines(whole, *2 * [bomb], whole), whole
    (tmp_path / "logs.jsonl").write_text("".join(lines), "utf-8")
    files = LiveFiles(tmp_path)
    files.refresh()
    with writing(tmp_path / "store.db") as writer:
        put(writer, *lines)
        writer.run_maintenance(NOON_NS, hold_ns=0)
    for source in (files, LiveStore(tmp_path / "store.db")):
        assert (source.unread, source.recording.count()) == (3, 2)


def test_samples_of_a_profile_that_are_alike_are_one(tmp_path: Path) -> None:
    message = profile(weight=1 << 62)
    message.sample.add(location_id=[1], value=[(1 << 62) - 1]).label.add(key=3, num=7)
    message.sample.add(location_id=[1], value=[3]).label.add(key=3, str=4)
    (tmp_path / "whole.pprof").write_bytes(message.SerializeToString())
    message.sample[0].value[0] += 1
    (tmp_path / "beyond_64_bits.pprof").write_bytes(message.SerializeToString())
    files = LiveFiles(tmp_path)
    files.refresh()
    assert (files.unread, files.recording.count()) == (1, 2)
    (columns,) = files.recording.columns()
    assert columns.weights["samples"].tolist() == [(1 << 63) - 1, 3]


def test_the_deepest_stack_that_is_captured_is_read(tmp_path: Path) -> None:
    (tmp_path / "deep.pprof").write_bytes(deep(1, 65_536, 1).SerializeToString())
    files = LiveFiles(tmp_path)
    files.refresh()
    assert len(files.recording.stacks.frames(0)) == 65_536


@pytest.mark.parametrize("time_ns", [2**63 - 1, 2**62, -1])
def test_records_of_impossible_times_are_unread_in_files_and_stores(tmp_path: Path, time_ns: int) -> None:
    odd = [sample_line(time_ns=time_ns), line_of(profile(time_ns=time_ns)), span_line("GET /", times_ns=(0, time_ns))]
    lines = [joined_lines(*odd[:2], sample_line(time_ns=NOON_NS)), odd[2]]
    (tmp_path / "logs.jsonl").write_text("".join(lines), "utf-8")
    files = LiveFiles(tmp_path)
    files.refresh()
    path = tmp_path / "store.db"
    with writing(path) as writer:
        put(writer, *lines)
        waiting = LiveStore(path)
        writer.run_maintenance(NOON_NS, hold_ns=0)
    for source in (files, waiting, LiveStore(path)):
        assert source.unread == 3
        assert source.recording.period_ns() == (NOON_NS, NOON_NS + 1)


def test_a_profile_that_says_it_lasted_for_ever_leaves_what_is_in_use(tmp_path: Path) -> None:
    in_use = Selection("inuse_space")
    for name, duration_ns in (("odd", 2**63 - 1), ("whole", 10)):
        message = profile("inuse_space", time_ns=NOON_NS, duration_ns=duration_ns, weight=5)
        (tmp_path / f"{name}.pprof").write_bytes(message.SerializeToString())
    files = LiveFiles(tmp_path)
    files.refresh()
    assert files.recording.weights(in_use).sum() == 10
    assert files.recording.timeline(in_use, "service", 10).series[0].weights == [5]


def sums_by_unit(recording: Recording) -> dict[tuple[str, str], int]:
    """Return the sum of each value, by its name and its unit."""
    return {(name, recording.units[name]): recording.weights(Selection(name)).sum() for name in recording.values}


def test_values_of_one_name_with_other_units_are_kept_apart(tmp_path: Path) -> None:
    given = [("delay", "nanoseconds", 500), ("delay", "microseconds", 7), ("wall", "milliseconds", 3)]
    lines = [line_of(profile(*described, weight=weight, time_ns=NOON_NS)) for *described, weight in given]
    lines += [sample_line(time_ns=NOON_NS), joined_lines(lines[1], lines[0])]
    expected = {
        ("delay", "nanoseconds"): 1000,
        ("delay (microseconds)", "microseconds"): 14,
        ("wall (milliseconds)", "milliseconds"): 3,
        ("wall", "nanoseconds"): 10**9,
        ("samples", "count"): 1,
    }
    (tmp_path / "logs.jsonl").write_text("".join(lines), "utf-8")
    files = LiveFiles(tmp_path)
    files.refresh()
    assert sums_by_unit(files.recording) == expected
    path = tmp_path / "store.db"
    with writing(path) as writer:
        for line in lines:  # each is a batch of its own
            put(writer, line)
            waiting = sums_by_unit(LiveStore(path).recording)
            writer.run_maintenance(NOON_NS, hold_ns=0)
            assert sums_by_unit(LiveStore(path).recording) == waiting
        assert waiting == expected
        writer.run_maintenance(NOON_NS + 2 * HOUR_NS)
    assert sums_by_unit(LiveStore(path).recording) == expected


def test_files_with_another_unit_are_kept_apart_in_their_store(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with writing(path) as writer:
        for unit in ("nanoseconds", "microseconds", "nanoseconds"):
            (tmp_path / "delay.pprof").write_bytes(profile("delay", unit, time_ns=NOON_NS).SerializeToString())
            files = LiveFiles(tmp_path)
            files.refresh()
            writer.add(files.recording)
    expected = {("delay", "nanoseconds"): 2, ("delay (microseconds)", "microseconds"): 1}
    assert sums_by_unit(LiveStore(path).recording) == expected


def test_a_profile_with_one_value_twice_is_an_unread_record(tmp_path: Path) -> None:
    odd = profile()
    odd.sample_type.add(type=1, unit=2)
    odd.sample[0].value.append(1)
    (tmp_path / "odd.pprof").write_bytes(odd.SerializeToString())
    files = LiveFiles(tmp_path)
    files.refresh()
    assert (files.unread, files.recording.values) == (1, set())


def test_a_profile_with_a_negative_value_is_an_unread_record(tmp_path: Path) -> None:
    odd = profile()
    odd.sample.add(location_id=[1], value=[-3])  # `go tool pprof -proto -diff_base` writes such
    (tmp_path / "odd.pprof").write_bytes(odd.SerializeToString())
    (tmp_path / "logs.jsonl").write_text(line_of(odd) + line_of(profile()), "utf-8")
    files = LiveFiles(tmp_path)
    files.refresh()
    assert files.note.startswith("2 records could not be read. odd.pprof: the profile is not consistent")
    assert files.recording.weights(Selection("samples")).sum() == 1


def test_waits_for_the_gil_are_values_in_files_and_stores(tmp_path: Path) -> None:
    said = ("other", "gil.wait: mean 1.500 ms, max 9.000 ms, 1 of 10 over 5 ms")
    lines = [line_of(commented(each, time_ns=NOON_NS + at)) for at, each in enumerate(2 * said)]
    (tmp_path / "logs.jsonl").write_text("".join(lines), "utf-8")
    files = LiveFiles(tmp_path)
    files.refresh()
    expected = {("gil_wait", "nanoseconds"): 30_000_000, ("gil_long_waits", "count"): 2, ("gil_snapshots", "count"): 20}
    assert sums_by_unit(files.recording) == {**expected, ("samples", "count"): 4}
    assert files.recording.facet_values(Selection("gil_wait"))["process"].values == [("shop", 30_000_000)]
    path = tmp_path / "store.db"
    with writing(path) as writer:
        put(writer, *lines)
        for now_ns in (NOON_NS, NOON_NS + 2 * HOUR_NS, NOON_NS + 2 * DAY_NS):  # a part, joined, and sums by minute
            writer.run_maintenance(now_ns, hold_ns=0)
            assert sums_by_unit(LiveStore(path).recording) == {**expected, ("samples", "count"): 4}


def test_waits_for_the_gil_beyond_64_bits_make_a_profile_unread(tmp_path: Path) -> None:
    odd = commented("gil.wait: mean 999999999.000 ms, max 1.000 ms, 1 of 999999999 over 5 ms")
    (tmp_path / "odd.pprof").write_bytes(odd.SerializeToString())
    files = LiveFiles(tmp_path)
    files.refresh()
    assert (files.unread, files.recording.values) == (1, set())


def test_samples_as_text_have_no_negative_weights(tmp_path: Path) -> None:
    odd = sample_line().replace('"1000"', '"-1000"')
    (tmp_path / "logs.jsonl").write_text(odd + sample_line() + allocation_line(-5) + allocation_line(7), "utf-8")
    files = LiveFiles(tmp_path)
    files.refresh()
    found = {value: files.recording.weights(Selection(value)).sum() for value in ("samples", "wall", "alloc_space")}
    assert found == {"samples": 2, "wall": 10**9, "alloc_space": 7}
