"""The page in a real browser: what a reader sees and does. Pictures of it are kept in build/screens."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from browser import Page
from saved_samples import TRACE, sample_line
from viewer_page import (
    IN_BROWSER,
    SCREENS,
    START_NS,
    act,
    click,
    click_frame,
    names_in,
    shown,
    shown_on,
)

pytestmark = IN_BROWSER


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
                const [left, room] = graph.place(frame, width), y = Math.floor(((frame.depth + 1) * ROW - 4) * ratio);
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
    assert page.value("getComputedStyle(graph.scroller).outlineStyle") == "solid"  # its own is cut off
    assert page.value("byId('frame').ariaLive") == "polite"
    assert "threading.Condition.wait 2.00 min" in shown(page, "#frame")
    for name in ("altKey", "ctrlKey", "metaKey"):  # nothing prevents what they do in the browser
        key = f"new KeyboardEvent('keydown', {{ key: 'ArrowLeft', {name}: true, cancelable: true }})"
        assert page.value(f"[graph.canvas, byId('timeline')].map((at) => at.dispatchEvent({key}))") == [True, True]


@pytest.fixture(scope="module")
def deep(page: Page, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serve the page of one stack of 300 functions, in 130 services."""
    directory = tmp_path_factory.mktemp("deep")
    stack = [f"deep.f{depth}(/srv/deep.py:{depth})" for depth in range(300)]
    others = "".join(sample_line(*stack, service=f"service-{number}") for number in range(130))
    (directory / "logs.jsonl").write_text(others, "utf-8")
    with shown_on(page, directory) as found:
        yield found


def test_a_deep_graph_can_be_scrolled_to_its_end(page: Page, deep: str) -> None:
    page.open(deep)
    page.value("graph.scroller.scrollTop = 1e9; new Promise(requestAnimationFrame)")
    click_frame(page, "deep.f0")
    assert page.value("graph.zoomed.name") == "deep.f0"
    assert page.value("graph.scroller.scrollHeight") == 301 * page.value("ROW")
    page.keep_picture(SCREENS / "deep.png")


def test_a_long_list_of_values_can_be_searched(page: Page, deep: str) -> None:
    page.open(deep)
    page.click_on("(document.querySelector('#facets input[type=search]'))")
    assert shown(page, "#facets section p") == "and 30 more"
    page.write("SERVICE-12")
    page.wait("byId('facets').querySelector('p').hidden")
    listed = "[...document.querySelector('#facets ul').querySelectorAll('label span:first-of-type')]"
    names = page.value(f"{listed}.map((each) => each.innerText)")
    assert names == [f"service-{number}" for number in (12, *range(120, 130))]
    click(page, "[data-choice='service service-121']")
    assert page.value("document.querySelector('#facets input[type=search]').value") == "SERVICE-12"
    assert shown(page, "#total") == "1.00 s"


def test_an_address_may_have_one_end_of_a_stretch(page: Page, address: str) -> None:
    page.open(f"{address}#since={START_NS + 60 * 10**9}")
    assert "billing.pay" in names_in(page)
    page.open(f"{address}#until={START_NS + 60 * 10**9}")
    assert "billing.pay" not in names_in(page)
    assert page.value("chosenBuckets()[1]") == pytest.approx(60, abs=1)
    click(page, "#whole")
    assert "billing.pay" in names_in(page)
    assert page.value("document.querySelector('#whole').hidden")


def test_an_address_with_a_view_that_is_none_shows_the_flame_graph(page: Page, address: str) -> None:
    page.open(f"{address}#view=none")
    assert shown(page, "[data-view][aria-pressed=true]") == "Flame graph"


def test_a_slash_leads_to_the_search(page: Page, address: str) -> None:
    page.open(address)
    key = "new KeyboardEvent('keydown', { key: '/', ctrlKey: true, bubbles: true, cancelable: true })"
    assert page.value(f"document.body.dispatchEvent({key})")  # nothing prevents what it does in the browser
    assert page.value("document.activeElement.id") != "search"
    page.press("/")
    assert page.value("document.activeElement.id") == "search"


def test_back_undoes_a_step_and_a_search_is_one(page: Page, address: str) -> None:
    page.open(address)
    click(page, "[data-view=inverted]")
    page.value("document.querySelector('#search').focus()")
    page.write("rank")
    act(page, "history.back()")
    assert page.value("view()") == "flame"
    assert shown(page, "#found") == ""


def test_a_function_leads_to_its_callers_and_its_callees(page: Page, address: str) -> None:
    page.open(f"{address}#view=top&q=ranking.rank")
    click(page, "#top tbody button")
    callees, callers = (
        ["shop.ranking.rank", "shop.ranking.trigrams"],
        ["shop.app.search", "uvicorn.server.Server.serve"],
    )
    assert names_in(page) == ["all", *callees]
    assert names_in(page, "callers") == ["all", "shop.ranking.rank", *callers]
    assert shown(page, "#total") == "3.33 min"
    assert shown(page, "#found") == "100.0 % of callers, 100.0 % of callees found"
    rows = "[graph, callers].map((g) => [g.frames[1].depth, g.frames.at(-1).depth].map((depth) => g.rowOf(depth)))"
    assert page.value(rows) == [[0, 1], [11, 9]]  # callees go down, callers up, in a room of twelve rows
    click_frame(page, "shop.app.search", "callers")
    assert "shop.app.search 3.33 min (100.0 %)" in shown(page, "#frame")
    page.open(page.value("location.href"))
    assert page.value("callers.zoomed.name") == "shop.app.search"
    click(page, "[data-view=inverted]")
    assert names_in(page) == ["all", "shop.ranking.rank", *callers]
    assert "Who calls shop.ranking.rank" in shown(page, "#only")
    click(page, "[data-view=source]")
    assert "/srv/shop/ranking.py: this file is not on the machine" in shown(page, "#source-lines")
    assert shown(page, "#source-lines tbody tr").split("\t")[0::3] == ["31", "3.33 min"]
    page.open(f"{address}#view=source&function=shop.app.search&file=/srv/shop/app.py")  # it has no own time
    assert (shown(page, "#total"), page.value("byId('empty').hidden")) == ("4.00 min", True)
    click(page, "#all")
    assert page.value("view()") == "flame"
    assert page.value("document.querySelector('#only').hidden")
    click_frame(page, "shop.database.candidates")
    click(page, "#focus")
    assert names_in(page) == ["all", "shop.database.candidates"]


def test_the_root_can_be_at_the_bottom(page: Page, deep: str) -> None:
    page.open(deep)
    assert page.value("graph.scroller.scrollTop") == 0
    click(page, "#up")
    assert "up=1" in page.value("location.hash")
    assert page.value("graph.scroller.scrollTop + graph.scroller.clientHeight") == 301 * page.value("ROW")
    click_frame(page, "deep.f299")  # the root's child
    assert page.value("graph.zoomed.name") == "deep.f299"
    page.value("graph.canvas.focus()")
    for key in ("ArrowUp", "ArrowUp", "ArrowDown", "Enter"):
        page.press(key)
    assert page.value("graph.zoomed.name") == "deep.f298"
    assert shown(page, "#frame") == "deep.f298 2.17 min (100.0 %) /srv/deep.py:298, zoomed"
    page.keep_picture(SCREENS / "up.png")


# Names of the frames that have more than one colour above their name.
HATCHED = """(() => {
    graph.drawNow();
    const { width, height } = graph.canvas, image = graph.canvas.getContext("2d").getImageData(0, 0, width, height);
    const pixels = new Uint32Array(image.data.buffer);
    return graph.frames.filter((frame) => {
        const [left, room] = graph.place(frame, width), start = (graph.rowOf(frame.depth) * ROW + 1) * width;
        return new Set(pixels.slice(start + left + 2, start + left + room - 4)).size > 1;
    }).map((frame) => frame.name);
})()"""


def test_two_stretches_are_compared_at_the_same_time_or_the_same_total(page: Page, address: str) -> None:
    middle, end = START_NS + 60 * 10**9, START_NS + 90 * 10**9
    page.open(f"{address}#until={middle}")
    click(page, "#compare")
    assert "Compared with" in shown(page, "#compared")
    act(page, f"set({{ since: '{middle}', until: '{end}' }}); show()")
    frames = "Object.fromEntries(graph.frames.map((f) => [f.name, [f.total / 1e9, f.before / 1e9]]))"
    by_time = page.value(frames)
    assert by_time["billing.pay"] == [30, 0]  # of the second half only
    assert by_time["shop.app.search"] == [60, 60]  # 120 s in a minute before, scaled to half a minute
    assert shown(page, "#frame").endswith("+33 %, was 1.50 min")
    page.keep_picture(SCREENS / "compared.png")
    click(page, "[data-view=top]")
    rows = page.value("[...document.querySelectorAll('#top tbody tr')].map((row) => row.innerText.split('\\t'))")
    assert [cell.strip() for cell in rows[0]][0::4] == ["billing.pay", "new"]
    page.keep_picture(SCREENS / "compared_top.png")
    act(page, "set({ view: 'flame', compare: 'share' }); show()")
    assert page.value(HATCHED) == ["billing.pay"]
    assert page.value("graph.frames[0].before") == page.value("graph.frames[0].total")
    click(page, "#swap")
    assert "billing.pay" not in names_in(page)
    assert page.value("['since', 'until', 'b.since', 'b.until'].map((name) => state.get(name))") == [
        None,
        *map(str, (middle, middle, end)),
    ]
    assert shown(page, "#gone") == "1 function gone, 45.0 s"  # half a minute, scaled to the same total
    click(page, "#gone")
    assert [cell.strip() for cell in shown(page, "#top tbody").split("\t")][0::4] == ["billing.pay", "gone, was 45.0 s"]
    click(page, "#gone")
    assert "shop.app.search" in shown(page, "#top tbody")
    click(page, "#uncompare")
    assert page.value("document.querySelector('#compared').hidden")
    assert "b.since" not in page.value("location.hash")


def test_a_trace_is_a_waterfall_and_a_span_leads_to_its_stacks(page: Page, address: str) -> None:
    page.open(f"{address}#view=trace")
    assert "Choose one trace" in shown(page, "#trace")
    page.click_on("#trace-id")
    page.write(f" {TRACE.upper()}")
    click(page, "#open-trace button")
    assert page.value("document.querySelectorAll('#spans li').length") == 2
    page.open(f"{address}#view=trace")
    click(page, f"[data-choice='trace {TRACE}']")
    rows = [
        line.split("\n") for line in page.value("[...document.querySelectorAll('#spans li')].map((li) => li.innerText)")
    ]
    assert [(row[0].split()[0:2], row[-1]) for row in rows] == [
        (["GET", "/search"], "4.00 min"),
        (["POST", "/checkout"], "1.00 min, 3 on host"),
    ]
    assert page.value("document.querySelectorAll('#spans .span')[1].style.left") == "50%"
    assert "2 spans, 2.00 min" in shown(page, "#trace")
    assert "2.00 min outside of these spans" in shown(page, "#trace")
    click(page, "#spans li:last-child button")
    assert names_in(page) == ["all", "uvicorn.server.Server.serve", "billing.pay"]
    assert shown(page, "#host").split("\n")[1:] == ["q83vEg== 3"]
    page.keep_picture(SCREENS / "trace.png")
    click(page, "#spans li:last-child button")
    assert shown(page, "#total") == "7.00 min"


def test_search_marks_what_it_finds_and_says_how_much_it_is(page: Page, address: str) -> None:
    page.open(address)
    page.value("document.querySelector('#search').focus()")
    page.write("RANKING")
    assert shown(page, "#found") == "47.6 % found"  # 120 + 80 of 420
    page.keep_picture(SCREENS / "search.png")
    click(page, "[data-view=top]")
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
    click(page, "[data-view=flame]")
    assert page.value("graph.frames[0].children.map((frame) => frame.name)") == ["uvicorn.server.Server.serve"]


def test_the_table_is_sorted_by_own_or_total(page: Page, address: str) -> None:
    page.open(f"{address}#view=top")
    first = '[...document.querySelectorAll("#top tbody tr")][0].innerText'
    sorted_by = """document.querySelector("th[aria-sort=descending]").innerText"""
    assert page.value(first).startswith("shop.ranking.trigrams")
    assert page.value(sorted_by) == "Own"
    click(page, "[data-sort=total]")
    assert page.value(first).startswith("uvicorn.server.Server.serve")
    assert page.value(sorted_by) == "Total"


def test_a_stretch_of_the_timeline_is_selected_by_dragging(page: Page, address: str) -> None:
    page.open(address)
    assert "billing.pay" in names_in(page)
    left, top, width, height = page.box("#timeline")
    before, whole = page.value("document.body.dataset.shown"), shown(page, "#period")
    page.drag((left + 1, top + height / 2), (left + width * 0.45, top + height / 2), release=False)
    assert page.value("[marked[0], marked[1]]") == [0, 53]
    marked = shown(page, "#period")
    assert marked != whole
    page.release((left + width * 0.45, top + height / 2))
    page.wait(f"document.body.dataset.shown !== {before!r}")
    assert shown(page, "#period") == marked
    assert "billing.pay" not in names_in(page)
    assert "since=" in page.value("location.hash")
    page.keep_picture(SCREENS / "stretch.png")
    click(page, "#whole")
    assert "billing.pay" in names_in(page)


def test_the_timeline_can_be_used_with_keys(page: Page, address: str) -> None:
    page.open(address)
    page.value("byId('timeline').focus()")
    page.press("ArrowRight")
    assert shown(page, "#period") == page.value("period(bucketStart(1), bucketStart(2))")
    assert page.value("byId('period').ariaLive") == "polite"
    act(page, "byId('timeline').dispatchEvent(new KeyboardEvent('keydown', { key: 'Enter' }))")
    assert shown(page, "#total") == "3.00 s"
    act(page, "byId('timeline').dispatchEvent(new KeyboardEvent('keydown', { key: 'Escape' }))")
    assert shown(page, "#total") == "7.00 min"


def test_facets_narrow_down_and_the_address_keeps_them(page: Page, address: str) -> None:
    page.open(address)
    click(page, "[data-choice='endpoint POST /checkout']")
    assert names_in(page) == ["all", "uvicorn.server.Server.serve", "billing.pay"]
    page.open(page.value("location.href"))
    assert names_in(page) == ["all", "uvicorn.server.Server.serve", "billing.pay"]
    act(
        page,
        "document.querySelector('#by').value = 'endpoint';"
        "document.querySelector('#by').dispatchEvent(new Event('change'))",
    )
    assert "POST /checkout" in shown(page, "#legend")
    for choice in ("endpoint GET /search", "service shop"):
        click(page, f"[data-choice='{choice}']")
    click(page, "#unfilter")
    assert shown(page, "#total") == "7.00 min"
    assert page.value("location.hash") == "#value=wall&by=endpoint"
    assert page.value("byId('unfilter').hidden")
