"""Tests of reading profiles of other tools: lines of inlined functions, and locations without a line."""

from __future__ import annotations

import pytest

from splunk_profiler.formats.profile_proto import ProfileMessage
from splunk_profiler.viewer.profile_messages import Place, iter_aggregates, kind_and_distribution, read_places
from splunk_profiler.viewer.recording import Recording
from splunk_profiler.viewer.records import RecordReader, Sender

TEXTS = ["", "cpu", "ns", "inner", "outer", "main", "/go/shop.go", "/lib/libc.so.6", "samples", "count", "wall"]


def profile() -> ProfileMessage:
    """A location of an inlined function in its caller, two without a symbol, and the stack of all in `main`."""
    message = ProfileMessage(string_table=TEXTS, time_nanos=5, duration_nanos=1)
    for kind, unit in ((1, 2), (8, 9), (10, 2)):
        message.sample_type.add(type=kind, unit=unit)
    message.mapping.add(id=1, filename=7)
    for function in (3, 4, 5):
        message.function.add(id=function, name=function, filename=6)
    for location, lines in ((1, [(3, 30), (4, 40)]), (2, []), (3, [(5, 50)]), (4, [(0, 7)])):
        each = message.location.add(id=location, mapping_id=1 if location == 2 else 0)
        for function, line in lines:
            each.line.add(function_id=function, line=line)
    message.sample.add(location_id=[2, 4, 1, 3], value=[7, 1, 7])
    return message


def test_all_lines_of_a_location_count_the_innermost_first() -> None:
    places = read_places(profile())
    assert [(place.function, place.line) for place in places[1]] == [("inner", 30), ("outer", 40)]
    assert [(place.function, place.line) for place in places[3]] == [("main", 50)]


def test_a_location_without_a_symbol_has_the_file_of_its_mapping() -> None:
    places = read_places(profile())
    assert places[2] == [Place("(unknown)", "/lib/libc.so.6", 0, "", "")]
    assert places[4] == [Place("(unknown)", "", 0, "", "")]


def test_the_stack_of_a_sample_has_the_frames_of_all_lines() -> None:
    (aggregate,) = iter_aggregates(profile())
    assert [place.function for place in aggregate.stack] == ["(unknown)", "(unknown)", "inner", "outer", "main"]
    recording = Recording()
    reader = RecordReader(recording)
    reader.add_message(Sender("shop", "", "shop"), profile())
    frames = recording.stacks.frames(next(iter(recording.columns())).stack[0])
    assert [(recording.functions[frame.function].name, frame.line) for frame in frames] == [
        ("main", 50),
        ("outer", 40),
        ("inner", 30),
        ("(unknown)", 0),
        ("(unknown)", 0),
    ]


@pytest.mark.parametrize(
    ("file", "kind"),
    [
        ("/usr/lib/python3.12/threading.py", "standard-library"),
        ("<frozen runpy>", "standard-library"),
        ("/venv/lib/python3.12/site-packages/anyio/_core.py", "library"),
        ("/usr/lib/python3/dist-packages/click/core.py", "library"),
        ("/srv/shop/app.py", "application"),
        ("<string>", ""),
    ],
)
def test_code_without_a_mapping_is_of_the_kind_of_its_path(file: str, kind: str) -> None:
    assert kind_and_distribution(file, "", "") == (kind, "")
