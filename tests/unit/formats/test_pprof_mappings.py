"""The origins of code in a profile: a mapping for each distribution, and Datadog's attachment."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st
from profile_factory import large_profile, message, origin_in_shop, small_profile
from profile_schema import decode

from splunk_profiler.formats import code_provenance
from splunk_profiler.formats.pprof import parts
from splunk_profiler.model import Frame, Stack
from splunk_profiler.samples import Aggregate, CodeOrigin, OriginKind, Profile

GOLDEN = Path(__file__).parents[2] / "golden"
ORIGINS = st.builds(
    CodeOrigin,
    st.sampled_from(OriginKind),
    st.sampled_from(["", "shop", "requests"]) | st.text(max_size=5),
    st.sampled_from(["", "1.0"]) | st.text(max_size=5),
)


def by_location(decoded: Any) -> dict[tuple[str, int], tuple[str, str]]:
    """Return the mapping's name and build id of each location, by (file, line)."""
    text = decoded.string_table
    mappings = {row.id: (text[row.filename], text[row.build_id]) for row in decoded.mapping}
    functions = {row.id: text[row.filename] for row in decoded.function}
    return {
        (functions[row.line[0].function_id], row.line[0].line): mappings[row.mapping_id] for row in decoded.location
    }


def test_each_place_is_in_the_mapping_of_its_distribution() -> None:
    decoded = decode(message(small_profile(), origin_in_shop))
    assert by_location(decoded) == {
        ("/srv/shop/app.py", 88): ("application/shop", "shop==1.4"),
        ("/srv/shop/cart.py", 41): ("application/shop", "shop==1.4"),
        ("/srv/shop/cart.py", 38): ("application/shop", "shop==1.4"),
        ("/usr/lib/python3.12/threading.py", 355): ("standard-library/python", "python==3.12.1"),
        ("<string>", 0): ("python", ""),
    }


def test_a_message_with_provenance_is_what_the_golden_file_says() -> None:
    decoded = decode(message(small_profile(), origin_in_shop))
    shown = text_format.MessageToString(decoded)
    assert shown == (GOLDEN / "profile_origins.textproto").read_text()


@given(st.lists(ORIGINS, min_size=1, max_size=6))
def test_mappings_are_numbered_without_gaps_and_have_known_names(origins: list[CodeOrigin]) -> None:
    frames = tuple(Frame("m", "f", f"/{number}.py", 1) for number in range(len(origins)))
    profile = Profile(1, 1, 1, (Aggregate(Stack(frames, truncated=False), (), 1, 1, 1),))
    decoded = decode(message(profile, lambda file, _: origins[int(file[1:-3])]))
    text = decoded.string_table
    assert [row.id for row in decoded.mapping] == list(range(1, len(decoded.mapping) + 1))
    assert text[decoded.mapping[0].filename] == "python"
    assert all(row.has_functions and row.has_filenames and row.has_line_numbers for row in decoded.mapping)
    assert len(decoded.mapping) == len({*origins, CodeOrigin(OriginKind.UNKNOWN)})
    for row in decoded.mapping:
        assert len(text[row.build_id]) != 1, "readers take a build id's first two characters for a folder"
    places = by_location(decoded)
    for frame, origin in zip(frames, origins, strict=True):
        name, _ = places[frame.file, 1]
        assert name.startswith("python" if origin.kind is OriginKind.UNKNOWN else origin.kind.value.replace(" ", "-"))


def test_each_part_of_a_large_profile_has_the_mappings_that_it_needs() -> None:
    found = parts(large_profile(400), max_body_bytes=20_000, origin_of=origin_in_shop)
    assert len(found) > 1
    for part in found:
        decoded = decode(gzip.decompress(part.gzipped))
        assert {name for name, _ in by_location(decoded).values()} == {"application/shop"}


def test_datadog_attachment_lists_library_files_and_no_application_files() -> None:
    requests = Frame("requests.api", "get", "/venv/site-packages/requests/api.py", 1)
    stray = Frame("stray", "f", "/venv/site-packages/stray.py", 1)
    more = Aggregate(Stack((requests, stray), truncated=False), (), 1, 1, 1)
    profile = replace(small_profile(), aggregates=(*small_profile().aggregates, more, more))
    assert json.loads(code_provenance.message(profile, origin_in_shop)) == {
        "v1": [
            {"kind": "library", "name": "unknown", "version": "", "paths": [stray.file]},
            {"kind": "library", "name": "requests", "version": "2.32", "paths": [requests.file]},
            {
                "kind": "standard library",
                "name": "stdlib",
                "version": "3.12.1",
                "paths": ["/usr/lib/python3.12/threading.py"],
            },
        ]
    }


def test_datadogs_attachment_of_nothing_is_complete() -> None:
    assert json.loads(code_provenance.message(Profile(1, 1, 1, ()), origin_in_shop)) == {"v1": []}
