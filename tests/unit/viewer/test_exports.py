"""Tests of the formats of other tools, and of the one file for a browser."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from array import array
from collections.abc import Sequence

import numpy as np

from splunk_profiler.formats.profile_proto import ProfileMessage
from splunk_profiler.viewer.exports import PAGE_FILES, folded, html, pprof, speedscope
from splunk_profiler.viewer.model import Function
from splunk_profiler.viewer.profile_messages import decode_body, read_places
from splunk_profiler.viewer.stacks import Stacks, WeightedStacks

FUNCTIONS = [Function("shop.main", "/srv/main.py", "application"), Function("a;b\n\udc80", "<frozen>", "library")]


def weighted(*stacks: tuple[int, Sequence[int]]) -> WeightedStacks:
    """Return stacks, each a weight, and functions and lines by turns."""
    table = Stacks()
    for _, frames in stacks:
        table.index(array("i", frames).tobytes())
    return table.weighted(np.array([float(weight) for weight, _ in stacks]))


STACKS = weighted((5, (0, 3, 1, 7)), (2, (0, 3, 1, 8)), (1, (0, 3)), (4, ()))


def test_folded_stacks_are_one_line_each_whatever_the_names() -> None:
    assert folded(STACKS, FUNCTIONS) == "(no stack) 4\nshop.main 1\nshop.main;a:b\\n\\udc80 7\n"


def test_speedscope_has_each_stack_and_its_weight() -> None:
    document = json.loads(speedscope(STACKS, FUNCTIONS, "cpu", "nanoseconds"))
    (profile,) = document["profiles"]
    places = [(frame["name"], frame["file"], frame["line"]) for frame in document["shared"]["frames"]]
    assert places == [(FUNCTIONS[0].name, "/srv/main.py", 3), (FUNCTIONS[1].name, "<frozen>", 7)]  # of 7 and 8
    assert (profile["samples"], profile["weights"]) == ([[0, 1], [0, 1], [0], []], [5, 2, 1, 4])
    assert (profile["unit"], profile["endValue"]) == ("nanoseconds", 12)


def test_a_frame_of_speedscope_has_no_line_that_is_not_known() -> None:
    document = json.loads(speedscope(weighted((5, (0, 0))), FUNCTIONS, "cpu", "nanoseconds"))
    assert document["shared"]["frames"] == [{"name": FUNCTIONS[0].name, "file": FUNCTIONS[0].file}]


def test_speedscope_has_the_functions_of_its_stacks_alone() -> None:
    functions = [Function("other.first", "", ""), *FUNCTIONS, Function("other.last", "", "")]
    stacks = weighted((5, (1, 3, 2, 7)))
    expected = speedscope(weighted((5, (0, 3, 1, 7))), FUNCTIONS, "cpu", "nanoseconds")
    assert speedscope(stacks, functions, "cpu", "nanoseconds") == expected


def test_pprof_is_read_as_it_was_written() -> None:
    packed = pprof(STACKS, FUNCTIONS, "cpu", "nanoseconds", (5_000, 7_000))
    message = decode_body(base64.b64encode(packed).decode())
    assert ProfileMessage.FromString(gzip.decompress(packed)) == message
    places = read_places(message)
    found = [
        [(place.function, place.line) for each in sample.location_id for place in places[each]]
        for sample in message.sample
    ]
    assert found == [[("a;b\n?", 7), ("shop.main", 3)], [("a;b\n?", 8), ("shop.main", 3)], [("shop.main", 3)], []]
    assert [list(sample.value) for sample in message.sample] == [[5], [2], [1], [4]]
    assert places[1][0].kind == "application"
    assert (message.time_nanos, message.duration_nanos) == (5_000, 2_000)
    assert [message.string_table[each.type] for each in message.sample_type] == ["cpu"]


def test_pprof_has_each_line_of_a_function_once_however_far_apart() -> None:
    far = (1 << 31) - 1
    lines = [(1, far), (3, 0), (3, far), (1, 0), (3, 7), (1, far)]
    functions = [Function(name, f"/{name}.py", "application") for name in ("unused", "one", "unused too", "other")]
    stacks = weighted(
        (1, [each for line in lines[:4] for each in line]), (2, [each for line in lines for each in line])
    )
    message = ProfileMessage.FromString(gzip.decompress(pprof(stacks, functions, "cpu", "nanoseconds", (0, 0))))
    places = {place: (each.function, each.line) for place, (each,) in read_places(message).items()}
    assert sorted(places.values()) == sorted((functions[function].name, line) for function, line in set(lines))
    found = [[places[location] for location in reversed(sample.location_id)] for sample in message.sample]
    named = [(functions[function].name, line) for function, line in lines]
    assert found == [named[:4], named]


def test_one_file_has_all_in_it_and_allows_nothing_else() -> None:
    data = {"name": "</script><script>alert(1)</script><!--"}
    page = html(data)
    assert not re.search(r'(src|href)="(?!data:)', page)
    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    styles = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    names = [name for name, kind in PAGE_FILES.items() if kind == "text/javascript"]
    assert (len(scripts), len(styles)) == (len(names), 1) > (1, 0)
    policy = page.partition('content="')[2].partition('"')[0]
    assert policy.startswith("default-src 'none'")
    for text in scripts + styles:
        assert f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" in policy
    (saved,) = re.findall(r'<script type="application/json" id="saved">(.*?)</script>', page, re.DOTALL)
    assert json.loads(saved) == data
