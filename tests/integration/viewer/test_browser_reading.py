"""The texts that a screen reader reads of the page, and the names in it that could do harm there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from browser import Page
from saved_samples import append, sample_line
from viewer_page import IN_BROWSER, RANK, RIGHT_TO_LEFT, TRIGRAMS, act, shown, shown_on

pytestmark = IN_BROWSER
_WATCH = """
    var heard = [];
    new MutationObserver((changes) => {
        const texts = [...new Set(changes.map(({ target }) => target))].map((each) => each.textContent);
        heard.push([byId("frame").ariaLive, ...texts.filter((each) => each)]);
    }).observe(byId("frame"), { childList: true, characterData: true, subtree: true });
"""


def heard(page: Page, action: str) -> list[Any]:
    """Do something and return what changed about the frame: if it is read aloud, and the texts."""
    page.value("heard.length = 0")
    page.value(f"{action}; 0")
    found: list[Any] = page.value("heard.flat()")
    return found


def point(function: str) -> str:
    return f"graph.point(graph.frames.find(({{ name }}) => name === {json.dumps(function.partition('(')[0])}))"


def test_a_move_in_the_graph_is_read_by_what_differs(page: Page, tmp_path: Path) -> None:
    (tmp_path / "logs.jsonl").write_text(sample_line(TRIGRAMS, RANK) + sample_line(RANK), "utf-8")
    with shown_on(page, tmp_path) as address:
        page.open(address)
        page.value("byId('follow').checked = false; graph.canvas.focus()")
        page.value(_WATCH)
        assert heard(page, point(RANK)) == [
            "polite",
            "shop.ranking.rank",
            "2.00 s (100.0 %), own 1.00 s (50.0 %)",
            " /srv/shop/ranking.py",
            ":31",
        ]
        assert heard(page, point(TRIGRAMS)) == [
            "polite",
            "shop.ranking.trigrams",
            "1.00 s (50.0 %), own 1.00 s (50.0 %)",
            ":44",
        ]
        assert heard(page, "show().then(() => 0)") == []
        append(tmp_path / "logs.jsonl", sample_line(TRIGRAMS, RANK))
        act(page, "show()")
        assert page.value("heard.flat()") == ["off", "2.00 s (66.7 %), own 2.00 s (66.7 %)"]


def test_new_data_does_not_repeat_how_many_functions_are_found(page: Page, address: str) -> None:
    page.open(f"{address}#view=top&q=rank")
    page.value(
        "var repeats = 0; new MutationObserver(() => repeats++)"
        ".observe(byId('found'), { childList: true, characterData: true, subtree: true })"
    )
    act(page, "show()")
    assert (shown(page, "#found"), page.value("repeats")) == ("2 functions found", 0)


def test_escape_says_which_frame_is_zoomed_then(page: Page, address: str) -> None:
    page.open(address)
    page.value("graph.canvas.focus()")
    for key in ("ArrowDown", "ArrowDown", "ArrowDown", "Enter"):
        page.press(key)
    assert shown(page, "#frame").startswith("shop.ranking.rank 3.33 min")
    page.press("Escape")
    assert shown(page, "#frame").startswith("shop.app.search 4.00 min")
    assert shown(page, "#frame").endswith(", zoomed")


def test_a_box_of_a_filter_says_of_which_it_is(page: Page, address: str) -> None:
    page.open(address)
    nodes = page.do("Accessibility.getFullAXTree")["nodes"]
    groups = {node["nodeId"]: node["name"]["value"] for node in nodes if node.get("role", {}).get("value") == "group"}
    assert {"View", "\u2066endpoint\u2069", "\u2066span name\u2069"} <= set(groups.values())


def test_filters_are_far_enough_apart_for_a_finger(page: Page, address: str) -> None:
    page.open(address, width=390)
    heights = page.value(
        "[...document.querySelectorAll('#facets label, nav a, main button')].filter((each) => each.checkVisibility())"
        ".map((each) => each.getBoundingClientRect().height)"
    )
    assert len(heights) > 20
    assert min(heights) >= 24  # WCAG 2.2, 2.5.8


def test_a_long_name_is_cut_where_it_is_read_aloud(page: Page, address: str) -> None:
    page.open(f"{address}#view=sandwich&function={'x' * 10_000}")
    for graph in ("graph", "callers-graph"):
        label = page.value(f"byId('{graph}').ariaLabel")
        assert "x" * 100 in label
        assert len(label) < 400


@pytest.mark.parametrize("name", [RIGHT_TO_LEFT, "\u05e9\u05dc\u05d5\u05dd \u05e8\u05d5\u05e5"])
def test_names_in_the_servers_messages_stand_apart(page: Page, address: str, name: str) -> None:
    page.open(address)
    message = json.dumps(f"no files in /srv/{name}: 2 were left out")
    page.value(f"sayMessage(byId('note'), {message}); byId('note').hidden = false")
    assert shown(page, "#note") == f"no files in /srv/{name}: 2 were left out"
    parts = page.value("[...byId('note').children].map(({ localName, textContent }) => [localName, textContent])")
    assert parts == [["span", "no files in "], ["bdi", f"/srv/{name}:"], ["span", " 2 were left out"]]


def test_an_error_with_a_hostile_name_fits_and_is_said_once(page: Page, address: str) -> None:
    failed = "!byId('problem').hidden"
    page.open(f"{address}#compare={'x' * 3000}%E2%80%AE{RIGHT_TO_LEFT}", width=390, until=failed)
    page.value("byId('follow').checked = false")
    assert page.value("document.documentElement.scrollWidth <= innerWidth")
    assert page.box("#problem")[3] < 300
    before = page.value("byId('problem').firstChild.dataset.same = '1'; byId('problem').textContent")
    page.value("show()")
    page.wait("document.querySelector('main').getAttribute('aria-busy') === 'false'")
    assert page.value("byId('problem').firstChild.dataset.same") == "1"
    assert page.value("byId('problem').textContent") == before
    page.problems.clear()  # the browser itself logs the status
