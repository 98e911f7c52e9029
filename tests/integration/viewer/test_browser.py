"""The page in a real browser: what a reader sees and does. Pictures of it are kept in build/screens."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from browser import CHROMIUM, Page
from command_line import splunk_profiler
from saved_samples import TRACE, append, sample_line
from viewer_page import (
    CHECKOUT,
    SCREENS,
    START_NS,
    act,
    click_frame,
    names_in,
    serve,
    shown,
    shown_on,
)

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")

AXE = (files("axe_core_python") / "axe.min.js").read_text("utf-8")
HOSTILE = [
    "<script>document.title='harmed'</script><img src=x onerror=\"document.title='harmed'\">.f",
    "</script><script>document.title='harmed'</script>.f",
    "'\"`${alert`1`}&amp;<!--.f",
    "\u202egnp.exe.f",
    "\U0001f525" * 40 + ".f",
    "javascript:document.title='harmed'.f",
    "x" * 10_000 + ".f",
    "shop.f\\x1b[31m",
]


@pytest.fixture(autouse=True)
def _no_error_on_the_console(page: Page) -> Iterator[None]:
    page.problems.clear()
    yield
    assert not page.problems


def test_the_page_shows_what_was_recorded_and_a_click_zooms(page: Page, address: str) -> None:
    page.open(address)
    assert shown(page, "#total") == "7.00 min"  # 240 samples of searches, 120 of waits, 60 of payments; a second each
    assert page.value("document.querySelector('#value').value") == "wall"
    page.keep_picture(SCREENS / "light.png")
    click_frame(page, "shop.ranking.rank")
    assert page.value("graph.zoomed.name") == "shop.ranking.rank"
    assert "shop.ranking.rank" in shown(page, "#frame")
    assert "/srv/shop/ranking.py:31" in shown(page, "#frame")
    page.keep_picture(SCREENS / "zoomed.png")
    zoomed = page.value("location.href")
    page.press("Escape")
    assert page.value("graph.zoomed.name") == "shop.app.search"
    page.open(zoomed)
    assert page.value("graph.zoomed.name") == "shop.ranking.rank"


def test_own_time_is_underlined_in_the_graph(page: Page, address: str) -> None:
    page.open(address)
    drawn = page.value(
        """(() => {
            const { width, height } = graph.canvas, ratio = width / graph.canvas.clientWidth;
            const pixels = graph.canvas.getContext("2d").getImageData(0, 0, width, height).data;
            return Object.fromEntries(graph.frames.map((frame) => {
                const [left, room] = graph.place(frame, width), y = Math.floor(((frame.depth + 1) * ROW - 3) * ratio);
                let dark = 0;
                for (let x = Math.ceil(left); x < left + room - 1; x++) dark += pixels[4 * (y * width + x)] < 60;
                return [frame.name, Math.round(10 * dark / room)];
            }));
        })()"""
    )
    assert drawn == {
        "all": 0,
        "uvicorn.server.Server.serve": 0,
        "shop.app.search": 0,
        "shop.ranking.rank": 4,  # 80 of its 200 samples
        "shop.ranking.trigrams": 10,
        "shop.database.candidates": 10,
        "threading.Condition.wait": 10,
        "billing.pay": 10,
    }
    click_frame(page, "shop.ranking.rank")
    assert "shop.ranking.rank 3.33 min (47.6 %), own 1.33 min (19.0 %)" in shown(page, "#frame")


def test_keys_move_through_the_graph(page: Page, address: str) -> None:
    page.open(address)
    page.value("document.querySelector('#graph').focus()")
    for key in ("ArrowDown", "ArrowDown", "ArrowRight", "Enter"):
        page.press(key)
    assert page.value("graph.zoomed.name") == "threading.Condition.wait"
    assert "threading.Condition.wait 2.00 min" in shown(page, "#frame")


def test_a_deep_graph_can_be_scrolled_to_its_end(page: Page, tmp_path: Path) -> None:
    stack = [f"deep.f{depth}(/srv/deep.py:{depth})" for depth in range(300)]
    (tmp_path / "logs.jsonl").write_text(sample_line(*stack), "utf-8")
    with shown_on(page, tmp_path) as address:
        page.open(address)
        page.value("graph.scroller.scrollTop = 1e9; new Promise(requestAnimationFrame)")
        click_frame(page, "deep.f0")
        assert page.value("graph.zoomed.name") == "deep.f0"
        assert page.value("graph.scroller.scrollHeight") == 301 * page.value("ROW")
        page.keep_picture(SCREENS / "deep.png")


def test_an_address_with_only_a_beginning_is_shown(page: Page, address: str) -> None:
    page.open(f"{address}#since={START_NS + 60 * 10**9}")
    assert "billing.pay" in names_in(page)
    assert page.value("document.querySelector('#problem').hidden")


def test_a_slash_leads_to_the_search(page: Page, address: str) -> None:
    page.open(address)
    page.press("/")
    assert page.value("document.activeElement.id") == "search"


def test_back_undoes_a_step_and_a_search_is_one(page: Page, address: str) -> None:
    page.open(address)
    act(page, "document.querySelector('[data-view=inverted]').click()")
    page.value("document.querySelector('#search').focus()")
    page.write("rank")
    act(page, "history.back()")
    assert page.value("view()") == "flame"
    assert shown(page, "#found") == ""


def test_a_function_leads_to_its_callees_and_its_callers(page: Page, address: str) -> None:
    page.open(f"{address}#view=top&q=ranking.rank")
    act(page, "document.querySelector('#top tbody button').click()")
    assert names_in(page) == ["all", "shop.ranking.rank", "shop.ranking.trigrams"]
    assert shown(page, "#total") == "3.33 min"
    act(page, "document.querySelector('[data-view=inverted]').click()")
    assert names_in(page) == ["all", "shop.ranking.rank", "shop.app.search", "uvicorn.server.Server.serve"]
    assert "Who calls shop.ranking.rank" in shown(page, "#only")
    act(page, "document.querySelector('[data-view=source]').click()")
    assert "/srv/shop/ranking.py: this file is not on the machine" in shown(page, "#source-lines")
    assert shown(page, "#source-lines tbody tr").split("\t")[0::3] == ["31", "3.33 min"]
    act(page, "document.querySelector('#all').click()")
    assert page.value("view()") == "flame"
    assert page.value("document.querySelector('#only').hidden")
    click_frame(page, "shop.database.candidates")
    act(page, "document.querySelector('#focus').click()")
    assert names_in(page) == ["all", "shop.database.candidates"]


def test_two_stretches_are_compared_at_the_same_time_or_the_same_total(page: Page, address: str) -> None:
    middle, end = START_NS + 60 * 10**9, START_NS + 90 * 10**9
    page.open(f"{address}#until={middle}")
    act(page, "document.querySelector('#compare').click()")
    assert "Compared with" in shown(page, "#compared")
    act(page, f"set({{ since: '{middle}', until: '{end}' }}); show()")
    frames = "Object.fromEntries(graph.frames.map((f) => [f.name, [f.total / 1e9, f.before / 1e9]]))"
    by_time = page.value(frames)
    assert by_time["billing.pay"] == [30, 0]  # of the second half only
    assert by_time["shop.app.search"] == [60, 60]  # 120 s in a minute before, scaled to half a minute
    assert shown(page, "#frame").endswith("+33 %, was 1.50 min")
    page.keep_picture(SCREENS / "compared.png")
    act(page, "document.querySelector('[data-view=top]').click()")
    rows = page.value("[...document.querySelectorAll('#top tbody tr')].map((row) => row.innerText.split('\\t'))")
    assert [cell.strip() for cell in rows[0]][0::4] == ["billing.pay", "new"]
    page.keep_picture(SCREENS / "compared_top.png")
    act(page, "set({ view: 'flame', compare: 'share' }); show()")
    assert page.value("graph.frames[0].before") == page.value("graph.frames[0].total")
    act(page, f"set({{ 'b.since': '{middle}', 'b.until': '{end}', since: '', until: '{middle}' }}); show()")
    act(page, "document.querySelector('[data-view=top]').click()")
    assert "gone, was" in shown(page, "#top tbody")
    act(page, "document.querySelector('#uncompare').click()")
    assert page.value("document.querySelector('#compared').hidden")
    assert "b.since" not in page.value("location.hash")


def test_a_trace_is_a_waterfall_and_a_span_leads_to_its_stacks(page: Page, address: str) -> None:
    page.open(f"{address}#view=trace")
    assert "Choose one trace" in shown(page, "#trace")
    act(page, f"document.querySelector('[data-choice=\"trace {TRACE}\"]').click()")
    rows = [
        line.split("\n") for line in page.value("[...document.querySelectorAll('#trace li')].map((li) => li.innerText)")
    ]
    assert [(row[0].split()[0:2], row[-1]) for row in rows] == [
        (["GET", "/search"], "4.00 min"),
        (["POST", "/checkout"], "1.00 min, 3 on host"),
    ]
    assert page.value("document.querySelectorAll('#trace .span')[1].style.left") == "50%"
    assert "2 spans, 2.00 min" in shown(page, "#trace")
    assert "2.00 min outside of these spans" in shown(page, "#trace")
    act(page, "document.querySelectorAll('#trace button')[1].click()")
    assert names_in(page) == ["all", "uvicorn.server.Server.serve", "billing.pay"]
    page.keep_picture(SCREENS / "trace.png")
    act(page, "document.querySelectorAll('#trace button')[1].click()")
    assert shown(page, "#total") == "7.00 min"


LOOKS: dict[str, dict[str, Any]] = {"light": {}, "dark": {"dark": True}, "phone": {"width": 390}}
VIEWS = {
    "flame": "",
    "zoomed": "function=shop.app.search&file=/srv/shop/app.py&q=rank",
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
    page.value(AXE)
    found = page.value("axe.run().then((result) => result.violations)")
    assert not [(rule["id"], [node["html"] for node in rule["nodes"]]) for rule in found]
    page.keep_picture(SCREENS / f"{view}_{look}.png")


def test_search_marks_what_it_finds_and_says_how_much_it_is(page: Page, address: str) -> None:
    page.open(address)
    page.value("document.querySelector('#search').focus()")
    page.write("RANKING")
    assert shown(page, "#found") == "47.6 % found"  # 120 + 80 of 420
    page.keep_picture(SCREENS / "search.png")
    act(page, "document.querySelector('[data-view=top]').click()")
    assert shown(page, "#found") == "2 functions found"
    assert [cell.strip() for cell in shown(page, "#top tbody tr").split("\t")] == [
        "shop.ranking.trigrams",
        "/srv/shop/ranking.py:44",
        "2.00 min 28.6 %",
        "2.00 min 28.6 %",
    ]


def test_the_inverted_graph_begins_with_what_ran(page: Page, address: str) -> None:
    page.open(f"{address}#view=inverted")
    assert page.value("graph.frames[0].children.map((frame) => frame.name)")[0] == "shop.ranking.trigrams"
    own = page.value("graph.frames.filter((frame) => frame.own).map((frame) => [frame.depth, frame.own / frame.total])")
    assert own == [[1, 1]] * 5  # each function that ran; its callers did not
    act(page, "document.querySelector('[data-view=flame]').click()")
    assert page.value("graph.frames[0].children.map((frame) => frame.name)") == ["uvicorn.server.Server.serve"]


def test_the_table_is_sorted_by_own_or_total(page: Page, address: str) -> None:
    page.open(f"{address}#view=top")
    first = '[...document.querySelectorAll("#top tbody tr")][0].innerText'
    sorted_by = """document.querySelector("th[aria-sort=descending]").innerText"""
    assert page.value(first).startswith("shop.ranking.trigrams")
    assert page.value(sorted_by) == "Own"
    act(page, "document.querySelector('[data-sort=total]').click()")
    assert page.value(first).startswith("uvicorn.server.Server.serve")
    assert page.value(sorted_by) == "Total"


def test_a_stretch_of_the_timeline_is_selected_by_dragging(page: Page, address: str) -> None:
    page.open(address)
    assert "billing.pay" in names_in(page)
    left, top, width, height = page.box("#timeline")
    before = page.value("document.body.dataset.shown")
    page.drag((left + 1, top + height / 2), (left + width * 0.45, top + height / 2))
    page.wait(f"document.body.dataset.shown !== {before!r}")
    assert "billing.pay" not in names_in(page)
    assert "since=" in page.value("location.hash")
    page.keep_picture(SCREENS / "stretch.png")
    act(page, "document.querySelector('#whole').click()")
    assert "billing.pay" in names_in(page)


def test_the_timeline_can_be_used_with_keys(page: Page, address: str) -> None:
    page.open(address)
    act(
        page,
        "document.querySelector('#timeline').focus();"
        "for (const key of ['ArrowRight', 'Enter']) document.querySelector('#timeline')"
        ".dispatchEvent(new KeyboardEvent('keydown', {key, bubbles: true}))",
    )
    assert shown(page, "#total") == "3.00 s"
    act(page, "document.querySelector('#timeline').dispatchEvent(new KeyboardEvent('keydown', {key: 'Escape'}))")
    assert shown(page, "#total") == "7.00 min"


def test_facets_narrow_down_and_the_address_keeps_them(page: Page, address: str) -> None:
    page.open(address)
    act(
        page,
        "[...document.querySelectorAll('#facets label')].find((label) =>"
        " label.innerText.includes('POST /checkout')).click()",
    )
    assert names_in(page) == ["all", "uvicorn.server.Server.serve", "billing.pay"]
    page.open(page.value("location.href"))
    assert names_in(page) == ["all", "uvicorn.server.Server.serve", "billing.pay"]
    act(
        page,
        "document.querySelector('#by').value = 'endpoint';"
        "document.querySelector('#by').dispatchEvent(new Event('change'))",
    )
    assert "POST /checkout" in shown(page, "#legend")


def test_new_data_appears_and_an_empty_directory_says_what_to_do(page: Page, tmp_path: Path) -> None:
    (tmp_path / "logs.jsonl").touch()
    with shown_on(page, tmp_path) as address:
        page.open(address)
        assert "No samples yet" in shown(page, "#empty")
        page.keep_picture(SCREENS / "empty.png")
        append(tmp_path / "logs.jsonl", sample_line())
        page.wait("document.querySelector('#total').innerText === '1.00 s'")
        assert names_in(page) == ["all", "shop.rank"]


def test_a_server_that_ended_is_said(page: Page, tmp_path: Path) -> None:
    (tmp_path / "logs.jsonl").write_text(sample_line(), "utf-8")
    with serve(tmp_path) as address:
        page.open(address)
    page.wait("!document.querySelector('#problem').hidden")
    assert "is the command still running" in shown(page, "#problem")
    page.problems.clear()  # the browser itself logs that nobody answers
    page.do("Page.navigate", url="about:blank")
    page.problems.clear()


def test_hostile_names_do_no_harm(page: Page, tmp_path: Path) -> None:
    samples = [sample_line(f"{name}(/srv/{name[:200]}:1)", service=name) for name in HOSTILE]
    (tmp_path / "logs.jsonl").write_text("".join(samples), "utf-8")
    file = tmp_path / "profile.html"
    assert splunk_profiler("view", tmp_path / "logs.jsonl", "--html", file).returncode == 0
    with serve(tmp_path / "logs.jsonl") as address:
        for place in (address, f"{address}#view=top", file.as_uri()):
            page.open(place)
            assert page.value("document.title") == "splunk-profiler"
            assert page.value("document.querySelectorAll('img').length") == 0
            assert page.value("document.querySelectorAll('#facets label').length") >= len(HOSTILE)
            assert r"\u{202e}gnp.exe.f" in shown(page, "#facets")
            page.keep_picture(SCREENS / f"hostile-{'top' if 'top' in place else place[:4]}.png")
            assert page.value("document.documentElement.scrollWidth") <= 1280
