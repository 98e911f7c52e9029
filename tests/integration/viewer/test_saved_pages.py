"""Exports of the page, and the file that needs no server, in a real browser."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from browser import Page
from command_line import splunk_profiler
from pprof_tool import pprof_top, run_pprof
from saved_samples import TRACE, sample_line, span_line
from viewer_page import (
    CHECKOUT,
    IN_BROWSER,
    SCREENS,
    START_NS,
    broken_rules,
    click,
    click_frame,
    lines,
    names_in,
    shown,
    shown_on,
)

pytestmark = IN_BROWSER
MIDDLE_NS, END_NS = START_NS + 60 * 10**9, START_NS + 90 * 10**9
RANK = "function=shop.ranking.rank&file=%2Fsrv%2Fshop%2Franking.py"
VIEWS = {
    "comparison": f"compare=time&b.until={MIDDLE_NS}&since={MIDDLE_NS}&until={END_NS}",
    "comparison of two services": "compare=share&b.f.service=shop&b.f.service=billing&f.service=billing&view=top",
    "trace": f"view=trace&f.trace={TRACE}&f.span_id={CHECKOUT}",
    "trace with a function": f"view=trace&f.trace={TRACE}&{RANK}",
    "callers": f"view=inverted&{RANK}",
    "callers and callees": f"view=sandwich&{RANK}",
    "source": f"view=source&{RANK}",
    "source compared": f"view=source&{RANK}&compare=time&b.until={MIDDLE_NS}&since={MIDDLE_NS}",
    "top": "view=top&value=samples&f.service=shop",
}
PARTS = ["#total", "#compared span", "#only span", "#gone", "#frame", "#spans li", "#spans-note", "#host", "#axis"]
CONTENT = f"""JSON.stringify([
    {PARTS}.concat(["#top tbody", "#source-lines tbody"])
        .map((each) => [...document.querySelectorAll(each)].map((at) => at.checkVisibility() ? at.innerText : "")),
    [graph, callers].map((each) => each.frames.map((frame) => [frame.name, frame.total, frame.before, frame.own]))])"""


def test_each_link_saves_the_selection(page: Page, address: str, tmp_path: Path) -> None:
    page.open(f"{address}#f.endpoint=POST+%2Fcheckout")
    folded = page.save("[data-format=folded]", tmp_path).read_text("utf-8")
    assert folded == "uvicorn.server.Server.serve;billing.pay 60000000000\n"
    speedscope = json.loads(page.save("[data-format=speedscope]", tmp_path).read_text("utf-8"))
    assert speedscope["profiles"][0]["endValue"] == 60_000_000_000
    page.open(f"{address}#view=inverted&{RANK}&compare=share&b.f.state=waiting")
    cut = page.save("[data-format=folded]", tmp_path).read_text("utf-8").split(" ")[0]
    assert cut == "uvicorn.server.Server.serve;shop.app.search;shop.ranking.rank"
    assert page.save("[data-baseline]", tmp_path).name == "baseline.pprof"
    page.open(f"{address}#view=source&{RANK}")
    cut = page.save("[data-format=folded]", tmp_path).read_text("utf-8")
    assert cut == "shop.ranking.rank 80000000000\nshop.ranking.rank;shop.ranking.trigrams 120000000000\n"


# Names, and own and total time in ns to the digits that are shown.
ROWS = """Object.fromEntries([...document.querySelectorAll("#top tbody tr")].map(({ cells }) => {
    const sums = [2, 3].map((at) => cells[at].innerText.split(" "));
    return [cells[0].innerText.trim(), sums.map(([number, unit]) => number * { ns: 1, s: 1e9, min: 6e10 }[unit])];
}))"""


def test_the_table_has_the_numbers_of_the_report(page: Page, address: str) -> None:
    page.open(f"{address}#view=top&f.endpoint=GET+%2Fsearch&f.endpoint=POST+%2Fcheckout")
    report = splunk_profiler("report", page.value("overview.source"), "--json")
    expected: dict[str, list[int]] = {}
    for tally in json.loads(report.stdout)["by_span"].values():
        for entry in tally["functions"] + tally["waiting_functions"]:
            sums = expected.setdefault(entry["function"], [0, 0])
            sums[:] = sums[0] + entry["own"] * 10**9, sums[1] + entry["total"] * 10**9
    found = page.value(ROWS)
    assert found == {name: pytest.approx(sums, rel=0.005) for name, sums in expected.items()}
    assert len(found) == 6


@pytest.mark.skipif(shutil.which("go") is None, reason="Go is not installed")
def test_the_table_has_the_numbers_of_pprofs_own_tool(page: Page, address: str, tmp_path: Path) -> None:
    page.open(f"{address}#view=top&f.service=shop")
    saved = page.save("[data-format=pprof]", tmp_path)
    everything = ("-top", "-unit=ns", "-nodecount=0", "-nodefraction=0")
    expected = pprof_top(run_pprof(tmp_path, *everything, saved.name))
    assert page.value(ROWS) == {name: pytest.approx(sums, rel=0.005) for name, sums in expected.items()}
    assert len(expected) == 6


def test_the_exported_file_works_without_a_server(page: Page, tmp_path: Path) -> None:
    (tmp_path / "logs.jsonl").write_text("".join(lines()), "utf-8")
    file = tmp_path / "profile.html"
    done = splunk_profiler("view", tmp_path, "--html", file)
    assert done.returncode == 0, done.stderr
    page.open(file.as_uri())
    assert shown(page, "#total") == "7.00 min"
    assert "shop.ranking.rank" in names_in(page)
    click(page, "[data-view=top]")
    assert "shop.ranking.trigrams" in shown(page, "#top tbody tr")
    page.keep_picture(SCREENS / "file.png")
    click(page, "[data-sort=total]")
    assert "uvicorn.server.Server.serve" in shown(page, "#top tbody tr")


def test_a_file_saved_with_a_value_that_is_none_shows_the_first(page: Page, address: str, tmp_path: Path) -> None:
    page.open(f"{address}#value=cpu&view=top")
    assert page.value("byId('empty').hidden") is False
    page.open(page.save("[data-format=html]", tmp_path).as_uri())
    assert page.value("byId('problem').hidden")
    assert (shown(page, "#total"), page.value("byId('value').value")) == ("7.00 min", "wall")


def test_a_saved_file_has_the_zoom_and_keeps_its_own_address(page: Page, address: str, tmp_path: Path) -> None:
    page.open(f"{address}#by=label:none&sort=none")
    click_frame(page, "shop.ranking.rank")
    page.open(page.save("[data-format=html]", tmp_path).as_uri())
    assert page.value("byId('problem').hidden")
    assert page.value("[byId('by').value, graph.zoomed.name]") == ["service", "shop.ranking.rank"]
    click(page, "[data-view=top]")
    click(page, "[data-sort=total]")
    page.open(page.value("location.href"))
    assert "uvicorn.server.Server.serve" in shown(page, "#top tbody tr")


@pytest.mark.parametrize("view", VIEWS)
def test_each_view_can_be_saved_and_shows_the_same_without_a_server(
    page: Page, address: str, tmp_path: Path, view: str
) -> None:
    page.open(f"{address}#{VIEWS[view]}")
    expected = page.value(CONTENT).replace(": now choose another time or other filters.", ".")
    page.open(page.save("[data-format=html]", tmp_path).as_uri())
    assert page.value(CONTENT) == expected
    assert not page.shifts()
    page.keep_picture(SCREENS / f"saved-{view.replace(' ', '-')}.png")
    if view == "comparison":
        assert not broken_rules(page)
        click(page, "[data-view=top]")
        assert "billing.pay" in shown(page, "#top tbody")
    if view == "trace":
        assert page.value("document.querySelector('#spans button').disabled")


def test_long_lists_of_a_saved_page_can_be_scrolled_with_keys(page: Page, tmp_path: Path) -> None:
    names = [f"{number:016x}" for number in range(1, 41)]
    times_ns = START_NS, START_NS + 10**9
    rows = [sample_line(service=name, time_ns=START_NS, span=name) for name in names]
    rows += [span_line(name, name, times_ns=times_ns) for name in names]
    (tmp_path / "logs.jsonl").write_text("".join(rows), "utf-8")
    with shown_on(page, tmp_path) as found:
        page.open(f"{found}#view=trace&f.trace={TRACE}")
        file = page.save("[data-format=html]", tmp_path)
    page.open(file.as_uri())
    assert page.value("byId('spans').scrollHeight > byId('spans').clientHeight")
    assert not broken_rules(page)


def test_what_could_not_be_read_is_said(page: Page, tmp_path: Path) -> None:
    (tmp_path / "logs.jsonl").write_text(sample_line() + "no json\n" + sample_line().replace("#1", ""), "utf-8")
    with shown_on(page, tmp_path) as address:
        page.open(address)
        assert shown(page, "#note") == "2 records could not be read."
        assert not page.shifts()
