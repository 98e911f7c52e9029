"""Exports of the page, and the file that needs no server, in a real browser."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import CHROMIUM, Page
from command_line import splunk_profiler
from saved_samples import TRACE, sample_line
from viewer_page import CHECKOUT, SCREENS, START_NS, act, lines, names_in, shown, shown_on

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
MIDDLE_NS, END_NS = START_NS + 60 * 10**9, START_NS + 90 * 10**9
RANK = "function=shop.ranking.rank&file=%2Fsrv%2Fshop%2Franking.py"
VIEWS = {
    "comparison": f"compare=time&b.until={MIDDLE_NS}&since={MIDDLE_NS}&until={END_NS}",
    "comparison of two services": "compare=share&b.f.service=shop&b.f.service=billing&f.service=billing&view=top",
    "trace": f"view=trace&f.trace={TRACE}&f.span_id={CHECKOUT}",
    "callers": f"view=inverted&{RANK}",
    "source": f"view=source&{RANK}",
    "top": "view=top&value=samples&f.service=shop",
}
CONTENT = """JSON.stringify([
    ["#total", "#compared span", "#only span", "#frame", "#trace li", "#trace p", "#top tbody", "#source-lines tbody"]
        .map((each) => [...document.querySelectorAll(each)].map((at) => at.checkVisibility() ? at.innerText : "")),
    graph.frames.map((frame) => [frame.name, frame.total, frame.before, frame.own])])"""


@pytest.fixture(autouse=True)
def _no_error_on_the_console(page: Page) -> Iterator[None]:
    page.problems.clear()
    yield
    assert not page.problems


def test_exports_follow_the_selection(page: Page, address: str) -> None:
    page.open(f"{address}#f.endpoint=POST+%2Fcheckout")
    with urllib.request.urlopen(
        page.value("document.querySelector('[data-format=folded]').href"), timeout=30
    ) as answer:
        assert answer.read().decode() == "uvicorn.server.Server.serve;billing.pay 60000000000\n"


def test_the_exported_file_works_without_a_server(page: Page, tmp_path: Path) -> None:
    (tmp_path / "logs.jsonl").write_text("".join(lines()), "utf-8")
    file = tmp_path / "profile.html"
    done = splunk_profiler("view", tmp_path, "--html", file)
    assert done.returncode == 0, done.stderr
    page.open(file.as_uri())
    assert shown(page, "#total") == "7.00 min"
    assert "shop.ranking.rank" in names_in(page)
    act(page, "document.querySelector('[data-view=top]').click()")
    assert "shop.ranking.trigrams" in shown(page, "#top tbody tr")
    page.keep_picture(SCREENS / "file.png")
    act(page, "document.querySelector('[data-sort=total]').click()")
    assert "uvicorn.server.Server.serve" in shown(page, "#top tbody tr")


@pytest.mark.parametrize("view", VIEWS)
def test_each_view_can_be_saved_and_shows_the_same_without_a_server(
    page: Page, address: str, tmp_path: Path, view: str
) -> None:
    page.open(f"{address}#{VIEWS[view]}")
    expected = page.value(CONTENT).replace(": now choose another time or other filters.", ".")
    link = page.value("document.querySelector('[data-format=html]').href")
    with urllib.request.urlopen(link, timeout=30) as answer:
        (tmp_path / "saved.html").write_bytes(answer.read())
    page.open((tmp_path / "saved.html").as_uri())
    assert page.value(CONTENT) == expected
    page.keep_picture(SCREENS / f"saved-{view.replace(' ', '-')}.png")
    if view == "comparison":
        act(page, "document.querySelector('[data-view=top]').click()")
        assert "billing.pay" in shown(page, "#top tbody")
    if view == "trace":
        assert page.value("document.querySelector('#trace button').disabled")


def test_what_could_not_be_read_is_said(page: Page, tmp_path: Path) -> None:
    (tmp_path / "logs.jsonl").write_text(sample_line() + "no json\n" + sample_line().replace("#1", ""), "utf-8")
    with shown_on(page, tmp_path) as address:
        page.open(address)
        assert shown(page, "#note") == "2 records could not be read."
