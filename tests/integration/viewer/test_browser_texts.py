"""Texts of the page with names that are long, or of letters that are read from right to left."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pytest
from browser import Page
from command_line import splunk_profiler
from profile_factory import record_body, small_profile
from saved_samples import TRACE, profile_line, sample_line, span_line
from viewer_page import IN_BROWSER, RIGHT_TO_LEFT, SCREENS, act, shown, shown_on

from splunk_profiler.viewer.profile_messages import decode_body

pytestmark = IN_BROWSER
FIRST, LAST = RIGHT_TO_LEFT.split(".")
FILE = f"/srv/{FIRST}/{LAST}"
HOSTILE = [
    "<script>document.title='harmed'</script><img src=x onerror=\"document.title='harmed'\">.f",
    "</script><script>document.title='harmed'</script>.f",
    "'\"`${alert`1`}&amp;<!--.f",
    "\u202egnp.exe.f",
    "\U0001f525" * 40 + ".f",
    "javascript:document.title='harmed'.f",
    "x" * 10_000 + ".f",
    "shop.f\\x1b[31m",
    RIGHT_TO_LEFT,
]


@pytest.fixture(scope="module")
def hebrew(page: Page, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serve the page of a function, a file, a service and a span with names in Hebrew."""
    directory = tmp_path_factory.mktemp("hebrew")
    samples = [
        sample_line(f"{RIGHT_TO_LEFT}({FILE}:7)", service=FIRST, time_ns=5 * 10**9),
        sample_line("shop.rank(/srv/shop.py:7)", service=LAST, time_ns=6 * 10**9),
        span_line(RIGHT_TO_LEFT, times_ns=(5 * 10**9, 7 * 10**9), service=FIRST),
    ]
    (directory / "logs.jsonl").write_text("".join(samples), "utf-8")
    with shown_on(page, directory) as found:
        yield found


def from_left(page: Page, element: str, *parts: str) -> list[str]:
    """Return parts of a text, as they stand from left to right in an element."""
    places = page.value(
        f"""(() => {{
            const nodes = [], walk = document.createTreeWalker(document.querySelector({json.dumps(element)}), 4);
            while (walk.nextNode()) nodes.push(walk.currentNode);
            return {json.dumps(parts)}.map((part) => {{
                const node = nodes.find((each) => each.data.includes(part)), range = document.createRange();
                range.setStart(node, node.data.indexOf(part));
                range.setEnd(node, node.data.indexOf(part) + part.length);
                return range.getBoundingClientRect().left;
            }});
        }})()"""
    )
    return [part for _, part in sorted(zip(places, parts, strict=True))]


def test_names_from_right_to_left_leave_numbers_in_their_places(page: Page, hebrew: str) -> None:
    page.open(hebrew)
    page.value(f"graph.point(graph.frames.find((frame) => frame.name === {json.dumps(RIGHT_TO_LEFT)}))")
    parts = (LAST, FIRST, "1.00", " s (", "50.0", " %)", "own", "/srv/", ":7")
    assert shown(page, "#frame") == f"{RIGHT_TO_LEFT} 1.00 s (50.0 %), own 1.00 s (50.0 %) {FILE}:7"
    assert from_left(page, "#frame", *parts) == list(parts)
    page.keep_picture(SCREENS / "right-to-left.png")
    page.open(f"{hebrew}#view=top&q={quote(FIRST)}")
    assert from_left(page, "#top tbody td:nth-child(2)", ":7", FIRST, "srv/") == ["srv/", FIRST, ":7"]
    page.open(f"{hebrew}#view=trace&f.trace={TRACE}")
    row = "#spans li:first-child button"
    assert (
        page.value(f"document.querySelector({row!r}).title")
        == f"\u2066{RIGHT_TO_LEFT}\u2069 of \u2066{FIRST}\u2069, 2.00 s"
    )
    assert from_left(page, f"{row} span", FIRST, LAST) == [LAST, FIRST]
    assert page.value(f"getComputedStyle(document.querySelector({f'{row} .quiet'!r})).unicodeBidi") == "isolate"


def test_names_from_right_to_left_stand_apart_in_notices(page: Page, hebrew: str) -> None:
    function = f"function={quote(RIGHT_TO_LEFT)}&file={quote(FILE)}"
    apart = "[...document.querySelectorAll('{} bdi')].map((each) => each.innerText).filter((each) => each)"
    page.open(f"{hebrew}#view=sandwich&{function}&compare=share&b.f.service={quote(FIRST)}&b.f.service={quote(LAST)}")
    assert page.value(apart.format("#only")) == [RIGHT_TO_LEFT]
    assert page.value(apart.format("#compared")) == [FIRST, LAST]
    assert f", service {FIRST}, service {LAST}: now choose" in shown(page, "#compared")
    assert shown(page, "#only span") == f"Who calls {RIGHT_TO_LEFT}, and below what it calls."
    page.open(f"{hebrew}#view=source&{function}")
    assert shown(page, "#source-lines p").startswith(f"{FILE}: this file is not")
    assert page.value(apart.format("#source-lines p")) == [FILE]


def test_a_time_in_the_address_that_is_none_is_left_out(page: Page, address: str) -> None:
    page.open(f"{address}#until=1e9&since=abc&compare=time&b.since={1 << 63}&b.until={'9' * 20}")
    assert page.value("byId('problem').hidden")
    assert shown(page, "#total") == "7.00 min"
    assert page.value("[...state.keys()]") == ["compare", "value"]
    act(page, "location.hash = '#since=-5&view=top'")
    assert page.value("String(state)") == "view=top&value=wall"
    page.open(f"{address}#since={(1 << 63) - 1}&until=1")
    assert page.value("byId('problem').hidden")
    assert page.value("byId('empty').hidden") is False


def test_a_long_name_leaves_room_in_a_notice(page: Page, address: str) -> None:
    name = "x" * 10_000
    page.open(f"{address}#view=inverted&function={name}&compare=time&b.f.service={name}")
    for notice in ("#only", "#compared"):
        assert "x" * 100 in shown(page, notice)
        assert "…" in shown(page, notice)
        assert page.box(notice)[3] < 150


def test_nothing_has_no_share_of_nothing(page: Page, address: str) -> None:
    page.open(f"{address}#view=trace&f.trace={'0' * 32}")
    assert shown(page, "#frame") == "all 0 ns"


def test_a_long_name_in_letters_of_many_bytes_can_be_chosen(page: Page, tmp_path: Path) -> None:
    name = FIRST * 2500
    sample = sample_line(f"{name}.f(/{name}.py:7)", service=name)
    (tmp_path / "logs.jsonl").write_text(sample, "utf-8")
    chosen = f"view=sandwich&function={name}.f&file=/{name}.py&f.service={name}&compare=share&b.f.service={name}"
    with shown_on(page, tmp_path) as found:
        page.open(f"{found}#{quote(chosen, '=&')}", until="(document.body.dataset.shown || !byId('problem').hidden)")
        assert shown(page, "#problem") == ""
        assert shown(page, "#total") == "1.00 s"


def hostile_lines() -> Iterator[str]:
    """Yield samples and spans with hostile names of functions, files, services, spans, threads and labels."""
    for place, name in enumerate(HOSTILE):
        span = f"{place + 1:016x}"
        yield sample_line(f"{name}(/srv/{name[:200]}:1)", service=name, span=span)
        yield span_line(name, span, times_ns=(5 * 10**9, 6 * 10**9), service=name)
    profile = small_profile()
    labels = [(("thread.name", name), (name, name), ("tenant", name)) for name in HOSTILE]
    aggregates = tuple(replace(profile.aggregates[0], labels=each) for each in labels)
    message = decode_body(record_body(replace(profile, time_ns=5 * 10**9, aggregates=aggregates)))
    message.string_table[:] = [text.replace(r"\u202e", "\u202e") for text in message.string_table]  # as others write it
    yield profile_line(base64.b64encode(message.SerializeToString()).decode())


def test_hostile_names_do_no_harm(page: Page, tmp_path: Path) -> None:
    (tmp_path / "logs.jsonl").write_text("".join(hostile_lines()), "utf-8")
    file = tmp_path / "profile.html"
    assert splunk_profiler("view", tmp_path / "logs.jsonl", "--html", file).returncode == 0
    lists = "[...document.querySelectorAll('#facets section')].map((each) => [each.ariaLabel, each])"
    list_of = f"Object.fromEntries({lists}.map(([name, each]) => [name.slice(1, -1), each.innerText]))"
    with shown_on(page, tmp_path / "logs.jsonl") as address:
        for place in (address, f"{address}#view=top", f"{address}#view=trace&f.trace={TRACE}", file.as_uri()):
            page.open(f"{place}{'&' if '#' in place else '#'}value=wall")
            assert page.value("document.title") == "splunk-profiler"
            assert page.value("document.querySelectorAll('img').length") == 0
            if "trace" not in place:
                found = page.value(list_of)
                for facet in ("service", "endpoint", "span name", "thread", "label tenant"):
                    assert r"\u{202e}gnp.exe.f" in found[facet], facet
                    assert "<img src=x" in found[facet], facet
                assert r"label \u{202e}gnp.exe.f" in found
            else:
                assert r"\u{202e}gnp.exe.f" in shown(page, "#spans")
            page.keep_picture(SCREENS / f"hostile-{'top' if 'top' in place else place[:4]}.png")
            assert page.value("document.documentElement.scrollWidth") <= 1280
