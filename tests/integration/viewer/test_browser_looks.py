"""How the page looks in a real browser: sizes, colours, times, texts and errors. Pictures are in build/screens."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from browser import Page
from saved_samples import TRACE, append, sample_line
from viewer_page import (
    CHECKOUT,
    IN_BROWSER,
    SCREENS,
    START_NS,
    act,
    broken_rules,
    click_frame,
    colour_parts,
    contrast,
    frame_at,
    names_in,
    serve,
    shown,
    shown_on,
)

pytestmark = IN_BROWSER
FAILED = "!document.querySelector('#problem').hidden"


LOOKS: dict[str, dict[str, Any]] = {"light": {}, "dark": {"dark": True}, "phone": {"width": 390}}
VIEWS = {
    "flame": "by=span",
    "sandwich": "view=sandwich&function=shop.app.search&file=/srv/shop/app.py&q=rank",
    "inverted": "view=inverted",
    "top": "view=top",
    "source": "view=source&function=shop.ranking.rank&file=/srv/shop/ranking.py",
    "compared": "view=top&compare=share&b.f.service=shop",
    "trace": f"view=trace&f.trace={TRACE}&f.span_id={CHECKOUT}",
    "empty": "f.service=none",
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("look", LOOKS)
def test_each_view_fits_and_keeps_the_rules_of_accessibility(page: Page, address: str, look: str, view: str) -> None:
    page.open(f"{address}#{VIEWS[view]}", **LOOKS[look])
    assert page.value("document.documentElement.scrollWidth <= innerWidth")
    assert page.value("(({ scrollHeight, clientHeight }) => scrollHeight <= clientHeight)(byId('legend'))")
    assert not broken_rules(page)
    assert not page.shifts()
    page.keep_picture(SCREENS / f"{view}_{look}.png")


def test_colours_that_say_something_stay_where_a_reader_forces_others(page: Page, address: str) -> None:
    page.open(f"{address}#{VIEWS['trace']}")
    coloured = ["#legend .key", "#flame .key.library", "#spans .track > .span", "button[aria-pressed=true]"]
    colour = "getComputedStyle(document.querySelector(each)).backgroundColor"
    ask = f"{json.dumps(coloured)}.map((each) => {colour})"
    expected = page.value(ask)
    page.do("Emulation.setEmulatedMedia", features=[{"name": "forced-colors", "value": "active"}])
    assert page.value("matchMedia('(forced-colors: active)').matches")
    assert page.value(ask) == expected


@pytest.mark.parametrize("look", ["light", "dark"])
def test_colours_of_the_timeline_are_seen_on_what_is_behind(page: Page, address: str, look: str) -> None:
    page.open(address, **LOOKS[look])
    behind = colour_parts(page.value("getComputedStyle(document.documentElement).getPropertyValue('--back')"))
    for colour in page.value("SERIES"):
        assert contrast(behind, colour_parts(colour)) >= 3, colour


def test_large_numbers_have_digits_and_the_unit_they_round_to(page: Page, address: str) -> None:
    page.open(address)
    second, gib = 10**9, 2**30
    texts = {
        ("nanoseconds", 10_000_000 * second): "116 d",
        ("nanoseconds", 200_000_000 * second): "2,315 d",
        ("nanoseconds", 86_390 * second): "1.00 d",
        ("nanoseconds", 999_700_000): "1.00 s",
        ("nanoseconds", 59_999_000_000): "1.00 min",
        ("nanoseconds", 0): "0 ns",
        ("nanoseconds", 7): "7 ns",
        ("bytes", gib - 1): "1.00 GiB",
        ("bytes", 1000 * gib): "1,000 GiB",
        ("bytes", 2**62): "4,194,304 TiB",
        ("count", 12_345_678): "12,345,678",
    }
    found = page.value(f"{[[weight, unit] for unit, weight in texts]}.map(([weight, unit]) => amount(weight, unit))")
    assert found == list(texts.values())
    assert page.value("change(50000, 3, 'count')") == "+1,666,567 %, was 3"


@pytest.mark.parametrize("view", ["flame", "sandwich"])
def test_pictures_are_sharp_after_each_move_to_another_screen(page: Page, address: str, view: str) -> None:
    page.open(f"{address}#{VIEWS[view]}")
    canvases = "[byId('timeline'), graph.canvas, callers.canvas].filter((each) => each.checkVisibility())"
    for height, ratio in ((861, 2), (860, 1.5), (861, 1)):  # without another size the browser does not tell
        page.do("Emulation.setDeviceMetricsOverride", width=1280, height=height, deviceScaleFactor=ratio, mobile=False)
        page.wait(f"devicePixelRatio === {ratio}")
        page.wait(f"{canvases}.every((each) => each.width === Math.round(each.clientWidth * {ratio}))")


def test_times_have_the_readers_days_and_zone(page: Page, address: str) -> None:
    selection = f"since={START_NS - 86_400 * 10**9}&until={START_NS}"
    for zone, expected in {
        "Asia/Kolkata": "Sep 20, 2026, 19:43:20 \N{EN DASH} Sep 21, 2026, 19:43:20 GMT+5:30",
        "America/New_York": "Sep 20, 2026, 10:13:20 \N{EN DASH} Sep 21, 2026, 10:13:20 EDT",
    }.items():
        page.open(f"{address}#{selection}&compare=time&b.{selection.replace('&', '&b.')}", zone=zone)
        assert shown(page, "#period") == expected
        assert f"Compared with {expected}" in shown(page, "#compared")
    page.open(address, zone="America/New_York")
    page.value("byId('note').hidden = false; sayMessage(byId('note'), 'Before 2026-09-21T14:13:20Z there is none.')")
    assert shown(page, "#note") == "Before Sep 21, 2026, 10:13:20 EDT there is none."
    assert shown(page, "#period") == "Sep 21, 2026, 10:13:20 \N{EN DASH} 10:15:19 EDT"
    assert shown(page, "#axis").split() == ["10:13:30", "10:14:00", "10:14:30", "10:15:00"]
    times = "ticks('{}', '{}', 2026).map(([, text]) => text)"
    day_ns = 86_400 * 10**9
    in_a_week = page.value(times.format(START_NS, START_NS + 7 * day_ns))
    assert in_a_week == [f"Sep {day}" for day in range(22, 29)]
    in_a_day = page.value(times.format(START_NS, START_NS + day_ns))
    assert in_a_day == ["12:00", "18:00", "Sep 22", "06:00"]
    changed_ns = 1_793_505_600 * 10**9  # two days about the end of summer time
    assert page.value(times.format(changed_ns, changed_ns + 20 * day_ns))[:2] == ["Nov 1", "Nov 4"]
    assert page.value(f"period('{changed_ns}', '{changed_ns + 2 * day_ns}')").endswith("EDT/EST")
    for seconds in (0.05, 1, 9, 60, 600, 4000, 86_400, 3e5, 7e5, 3e6):
        assert 2 < len(page.value(times.format(START_NS, START_NS + int(seconds * 1e9)))) < 9, seconds


def test_times_are_round_also_where_clocks_are_changed(page: Page, address: str) -> None:
    page.open(address, zone="Europe/Berlin")
    times = "ticks(...['{}', '{}'].map((time) => `${{Date.parse(time)}}000000`), 2026).map(([, text]) => text)"
    autumn = page.value(times.format("2026-10-24T09:00", "2026-10-26T18:00"))
    assert autumn == ["12:00", "Oct 25", "12:00", "Oct 26", "12:00"]
    assert page.value(times.format("2026-10-25T00:30", "2026-10-25T05:30")) == [
        "01:00",
        "02:00",
        "03:00",
        "04:00",
        "05:00",
    ]
    spring = page.value(times.format("2026-03-29T00:00", "2026-03-29T06:00"))
    assert spring == ["Mar 29", "01:00", "03:00", "04:00", "05:00", "06:00"]
    new_year = page.value(times.format("2026-12-30T00:00", "2027-01-01T18:00"))
    assert new_year == ["Dec 30", "12:00", "Dec 31", "12:00", "Jan 1, 2027", "12:00"]
    second_hour = page.value(times.format("2026-10-25T01:05Z", "2026-10-25T01:55Z"))  # 2 o'clock is twice
    assert second_hour == ["02:10", "02:20", "02:30", "02:40", "02:50"]


def test_new_data_appears_and_an_empty_directory_says_what_to_do(page: Page, tmp_path: Path) -> None:
    (tmp_path / "logs.jsonl").touch()
    with shown_on(page, tmp_path) as address:
        page.open(address)
        assert "No samples yet" in shown(page, "#empty")
        controls = page.value(
            "[...document.querySelectorAll('button, select, input')].filter((each) => each.checkVisibility())"
        )
        assert len(controls) == 1  # there is nothing to choose but to follow
        assert not broken_rules(page)
        page.keep_picture(SCREENS / "empty.png")
        append(tmp_path / "logs.jsonl", sample_line())
        page.wait("document.querySelector('#total').innerText === '1.00 s'")
        assert names_in(page) == ["all", "shop.rank"]


def test_a_server_that_ended_is_said(page: Page, tmp_path: Path) -> None:
    (tmp_path / "logs.jsonl").write_text(sample_line(), "utf-8")
    with serve(tmp_path) as address:
        page.open(address)
    page.wait(FAILED)
    assert "is the command still running" in shown(page, "#problem")
    assert not broken_rules(page)
    page.keep_picture(SCREENS / "ended.png")
    page.problems.clear()  # the browser itself logs that nobody answers
    page.do("Page.navigate", url="about:blank")
    page.problems.clear()


def test_one_answer_that_fails_leaves_the_others_on_the_page(page: Page, address: str) -> None:
    page.open(f"{address}#compare=colour", until=FAILED)
    assert "there is no comparison by colour" in shown(page, "#problem")
    assert "POST /checkout" in shown(page, "#facets")
    assert "shop" in shown(page, "#legend")
    page.value(
        """globalThis.requests = [];
        const askOnce = globalThis.fetch;
        globalThis.fetch = (address, ...more) => {
            requests.push(address);
            return askOnce(address, ...more);
        };
        follow()"""
    )
    assert set(page.value("requests")) == {"api/overview?"}  # the answer to all else would be the same
    page.problems.clear()  # the browser itself logs the status


class Proxy(BaseHTTPRequestHandler):
    """Has the files of the page, and does not reach its server."""

    def do_GET(self) -> None:
        """Answer a request."""
        name = self.path.strip("/") or "index.html"
        is_api = name.startswith("api")
        content = b"no server" if is_api else (files("splunk_profiler.viewer") / "page" / name).read_bytes()
        kind = {"css": "text/css", "js": "text/javascript"}.get(name.rpartition(".")[2], "text/html")
        self.send_response(502 if is_api else 200)
        self.send_header("Content-Type", kind)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def test_an_answer_that_is_not_the_viewers_is_explained(page: Page) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        page.open(f"http://127.0.0.1:{server.server_port}", until=FAILED)
        page.value("document.querySelector('#follow').checked = false")
        assert "could not answer (HTTP status 502)" in shown(page, "#problem")
        assert page.value("document.querySelector('main').getAttribute('aria-busy')") == "false"
        page.do("Page.navigate", url="about:blank")
        server.shutdown()
        thread.join()
    page.problems.clear()  # the browser itself logs the status


def test_the_page_is_busy_until_it_has_the_answer(page: Page, address: str) -> None:
    page.open(address)
    busy = "document.querySelector('main').getAttribute('aria-busy')"
    assert page.value(busy) == "false"
    assert page.value(f"show(); {busy}") == "true"
    page.wait(f"{busy} === 'false'")


def test_a_finger_zooms_and_selects_on_a_phone(page: Page, address: str) -> None:
    page.open(address, width=390)
    page.value("graph.canvas.scrollIntoView({ block: 'center' })")
    page.touch(frame_at(page, "shop.ranking.rank"))
    page.wait("graph.zoomed.name === 'shop.ranking.rank'")
    page.value("scrollTo(0, 0)")
    left, top, width, height = page.box("#timeline")
    page.touch((left + 2, top + height / 2), (left + width * 0.45, top + height / 2))
    page.wait("state.has('since') && document.querySelector('main').getAttribute('aria-busy') === 'false'")
    assert "billing.pay" not in names_in(page)


def test_a_long_table_goes_on_when_its_end_comes_near(page: Page, tmp_path: Path) -> None:
    source = tmp_path / "logs.jsonl"
    source.write_text("".join(sample_line(f"shop.step_{number}(/srv/shop.py:1)") for number in range(150)))
    with shown_on(page, source) as address:
        page.open(f"{address}#view=top")
        rows = "document.querySelectorAll('#top tbody tr').length"
        assert page.value(rows) == 100
        page.value("scrollTo(0, document.body.scrollHeight)")
        page.wait(f"{rows} === 150")
        act(page, "show()")  # as new data does: the reader stays where he is
        assert page.value(rows) == 150


def test_what_sums_up_frames_is_not_searched_and_is_no_function(page: Page, address: str) -> None:
    page.open(address)
    page.value(
        """const askOnce = globalThis.fetch;
        globalThis.fetch = async (address, ...more) => {
            const answer = await askOnce(address, ...more), content = await answer.json();
            if (!address.startsWith("api/flame")) return Response.json(content);
            const { functions, frames } = content, { function: places } = unpack(frames);
            places[places.indexOf(functions.findIndex(([name]) => name === "shop.ranking.trigrams"))] = 0; // as root
            frames.function = btoa(String.fromCharCode(...new Uint8Array(places.buffer)));
            return Response.json(content);
        };"""
    )
    act(page, "show()")
    page.value("byId('search').focus()")
    page.write("shop.database")
    assert shown(page, "#found") == "at least 9.5 % found"
    act(page, "set({ q: 'shop.ranking' }); show()")
    assert shown(page, "#found") == "47.6 % found"  # all that is summed up is below what is found
    for name, is_hidden in (("shop.ranking.rank", False), ("(small)", True)):
        click_frame(page, name)
        assert page.value("graph.zoomed.name") == name
        assert page.value("byId('focus').hidden") is is_hidden


def test_a_click_on_the_deepest_of_thousands_of_frames_zooms(page: Page, tmp_path: Path) -> None:
    calls = [f"deep.f{depth}(/srv/deep.py:1)" for depth in range(6000)]
    (tmp_path / "logs.jsonl").write_text(sample_line(*calls), "utf-8")
    with shown_on(page, tmp_path) as address:
        page.open(address)
        page.value("graph.scroller.scrollTop = 1e9; new Promise(requestAnimationFrame)")
        click_frame(page, "deep.f0")
        assert page.value("graph.zoomed.name") == "deep.f0"
        page.open(page.value("location.href"))
        assert page.value("graph.zoomed.depth") == len(calls)
