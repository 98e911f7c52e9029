"""The page while new data comes: the place of the reader, on the keyboard and with the pointer, is kept."""

from __future__ import annotations

import base64
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from browser import Page
from profile_factory import record_body, small_profile
from saved_samples import TRACE, append, profile_line, sample_line, span_line
from viewer_page import IN_BROWSER, act, click_frame, names_in, serve, shown, shown_on

from splunk_profiler.viewer.profile_messages import decode_body

pytestmark = IN_BROWSER
RANK = ("shop.rank(/srv/shop.py:7)", "shop.search(/srv/shop.py:3)", "shop.serve(/srv/shop.py:1)")
PAY = ("billing.pay(/srv/billing.py:9)", "shop.serve(/srv/shop.py:1)")
FOCUSED = "document.activeElement"


@pytest.fixture
def growing(tmp_path: Path) -> Path:
    path = tmp_path / "logs.jsonl"
    path.write_text(sample_line(*RANK) + sample_line(*PAY, time_ns=9_000_000_000), "utf-8")
    return path


def add_sample(page: Page, path: Path) -> None:
    """Let another sample of a payment come, and wait until the page has it."""
    before = page.value("document.body.dataset.shown")
    append(path, sample_line(*PAY, time_ns=7_000_000_000))
    page.wait(f"document.body.dataset.shown !== {before!r}")


def test_new_data_leaves_the_focus_on_the_row_of_a_function(page: Page, growing: Path) -> None:
    with shown_on(page, growing) as address:
        page.open(f"{address}#view=top")
        page.value("document.querySelectorAll('#top tbody button')[1].focus()")
        name = page.value(f"{FOCUSED}.innerText")
        add_sample(page, growing)
        assert shown(page, "#total") == "3.00 s"
        assert page.value(f"{FOCUSED}.innerText") == name


def test_a_row_that_is_gone_leaves_the_focus_on_its_table(page: Page, growing: Path) -> None:
    with shown_on(page, growing) as address:
        page.open(f"{address}#view=top")
        page.value("document.querySelector('#top tbody button').focus()")
        act(page, "set({ q: 'nothing has this name' }); show()")
        assert page.value(f"{FOCUSED}.id") == "top"


def test_new_data_leaves_a_walk_with_keys_where_it_was(page: Page, growing: Path) -> None:
    with shown_on(page, growing) as address:
        page.open(address)
        page.value("graph.canvas.focus()")
        for key in ("ArrowDown", "ArrowDown", "ArrowRight"):
            page.press(key)
        name = page.value("graph.pointed.name")
        assert name in ("shop.search", "billing.pay")
        add_sample(page, growing)
        assert page.value("graph.pointed.name") == name
        assert shown(page, "#frame").startswith(name)
        act(page, "set({ view: 'sandwich', function: 'shop.rank', file: '/srv/shop.py' }); show()")
        page.value("callers.canvas.focus()")
        page.press("ArrowUp")
        page.press("ArrowUp")
        assert page.value("callers.pointed.name") == "shop.serve"
        add_sample(page, growing)
        assert page.value("callers.pointed.name") == "shop.serve"
        assert shown(page, "#frame").startswith("shop.serve")


def test_new_data_leaves_the_frame_that_was_zoomed_last(page: Page, growing: Path) -> None:
    with shown_on(page, growing) as address:
        page.open(f"{address}#view=sandwich&function=shop.search&file=%2Fsrv%2Fshop.py")
        click_frame(page, "shop.rank")
        click_frame(page, "shop.serve", "callers")
        add_sample(page, growing)
        assert page.value("[zoomedLast.zoomed.name, byId('focus').hidden]") == ["shop.serve", False]
        page.value(
            "globalThis.steps = 0; history.pushState = (...all) => { steps++; history.replaceState(...all); }; 0"
        )
        page.click_on("#out")
        assert page.value("[graph, callers].map(isZoomed)") == [False, False]
        assert page.value("steps") == 1
        assert "zoom" not in page.value("location.hash")


def test_a_marked_stretch_that_was_left_does_not_stop_new_data(page: Page, growing: Path) -> None:
    with shown_on(page, growing) as address:
        page.open(address)
        whole = shown(page, "#period")
        page.value("byId('timeline').focus()")
        page.press("ArrowRight")
        assert shown(page, "#period") != whole
        page.value("byId('search').focus()")
        assert page.value("marked") is None
        assert shown(page, "#period") == whole
        add_sample(page, growing)
        assert shown(page, "#total") == "3.00 s"


def test_a_drag_marks_what_was_there_when_it_began(page: Page, growing: Path) -> None:
    with shown_on(page, growing) as address:
        page.open(address)
        page.value("globalThis.first = timeline")
        left, top, width, height = page.box("#timeline")
        start = left + width / 4, top + height / 2
        page.drag(start, start, release=False)
        append(growing, sample_line(*PAY, time_ns=100_000_000_000))
        page.value("follow()")
        assert page.value("overview.samples") == 2
        act(page, "show()")  # as one does that had begun before
        assert page.value("overview.samples === 3 && timeline === first")
        before = page.value("document.body.dataset.shown")
        page.release(start)
        page.wait(f"document.body.dataset.shown !== {before!r}")
        chosen = "[state.get('since'), state.get('until')].map(Number).map((ns) => ns / 1e9)"
        assert page.value(chosen) == [pytest.approx(6, abs=0.1)] * 2
        assert page.value("timeline !== first")


@pytest.mark.parametrize("button", ["left", "right"])
def test_a_drag_ends_where_its_button_is_not_pressed(page: Page, address: str, button: str) -> None:
    page.open(address)
    left, top, width, height = page.box("#timeline")
    places = [(left + width * part, top + height / 2) for part in (0.2, 0.4, 0.6)]
    page.drag(places[0], places[1], release=False, button=button)
    assert page.value("marked !== null") is (button == "left")
    page.move(places[2])
    assert page.value("marked") is None
    page.drag(places[0], places[1], button="right")
    assert page.value("isWhole()")


def test_a_click_ends_what_was_marked_with_keys(page: Page, address: str) -> None:
    page.open(address)
    page.value("byId('timeline').focus()")
    page.press("ArrowRight")
    left, top, width, height = page.box("#timeline")
    for kind in ("mousePressed", "mouseReleased"):
        place = {"x": left + width / 2, "y": top + height / 2}
        page.do("Input.dispatchMouseEvent", type=kind, **place, button="left", buttons=1, clickCount=1)
    assert page.value("marked") is None
    assert page.value("isWhole()")


def test_a_view_that_opens_takes_the_focus_of_what_opened_it(page: Page, growing: Path) -> None:
    with shown_on(page, growing) as address:
        page.open(f"{address}#view=top&q=shop.rank")
        page.value("document.querySelector('#top tbody button').focus()")
        act(page, f"{FOCUSED}.click()")
        assert names_in(page) == ["all", "shop.rank"]
        assert page.value(f"{FOCUSED}.id") == "graph"
        page.value("byId('all').focus()")
        act(page, f"{FOCUSED}.click()")
        assert page.value("view()") == "flame"
        assert page.value(f"{FOCUSED}.id") == "graph"
        page.press("ArrowDown")
        page.press("Enter")
        page.value("byId('out').focus(); byId('out').click()")
        assert page.value(f"{FOCUSED}.id") == "graph"
        page.press("ArrowDown")
        page.press("Enter")
        page.value("byId('focus').focus()")
        act(page, f"{FOCUSED}.click()")
        assert names_in(page)[1] == "shop.serve"
        assert page.value(f"{FOCUSED}.id") == "graph"
        page.value("document.querySelector('[data-view=top]').focus()")
        act(page, f"{FOCUSED}.click()")
        assert page.value(f"{FOCUSED}.dataset.view") == "top"


def labelled(*labels: str) -> str:
    """Return a profile of two samples of each label, with different values."""
    message = decode_body(record_body(small_profile()))
    sample = message.sample[0]
    del message.sample[:], sample.label[:]
    for label in labels:
        message.string_table.append(label)
        for value in (1, 2):
            one = message.sample.add()
            one.CopyFrom(sample)
            one.label.add(key=len(message.string_table) - 1, str=value)
    return profile_line(base64.b64encode(message.SerializeToString()).decode())


def test_filters_that_change_places_leave_the_focus_where_it_was(page: Page, growing: Path) -> None:
    append(growing, labelled("one", "one", "two", "three"))
    with shown_on(page, growing) as address:
        page.open(address)
        headings = "[...document.querySelectorAll('#facets h2')].map((each) => each.innerText).slice(-3)"
        page.value("document.querySelector('#facets section:nth-last-child(3) input[type=checkbox]').focus()")
        choice = page.value(f"{FOCUSED}.dataset.choice")
        assert choice.startswith("label:one ")
        for more in ("two", "three"):
            before = page.value(headings)
            append(growing, labelled(*[more] * 5))
            act(page, "show()")
            assert page.value(headings) != before
            assert page.value(f"{FOCUSED}.dataset.choice") == choice


def test_a_choice_that_goes_leaves_the_focus_among_the_filters(page: Page, growing: Path) -> None:
    with shown_on(page, growing) as address:
        for choice in ("version gone", "service gone"):
            page.open(f"{address}#f.{choice.replace(' ', '=')}")
            page.value(f"document.querySelector('[data-choice=\"{choice}\"]').focus()")
            act(page, f"{FOCUSED}.click()")
            assert page.value(f"{FOCUSED}.id") == "facets"


def test_an_address_keeps_its_value_when_another_comes_first(page: Page, growing: Path) -> None:
    with shown_on(page, growing) as address:
        page.open(address)
        assert page.value("location.hash") == "#value=wall"
        profile = replace(small_profile(), time_ns=6_000_000_000)
        append(growing, profile_line(record_body(profile)))
        page.wait("overview.values[0].name === 'cpu'")
        assert page.value("[location.hash, byId('value').value]") == ["#value=wall", "wall"]
        page.open(address)
        assert page.value("location.hash") == "#value=cpu"


def test_data_that_does_not_grow_is_not_asked_for_again(page: Page, growing: Path) -> None:
    with shown_on(page, growing) as address:
        page.open(address)
        assert page.value("byId('follow-label').checkVisibility()")
        page.value(
            """globalThis.asks = 0;
            const askOnce = globalThis.fetch;
            globalThis.fetch = async (address) => {
                const answer = await askOnce(address);
                if (!address.startsWith("api/overview")) return answer;
                asks += 1;
                return Response.json({ ...await answer.json(), follows: false });
            };"""
        )
        act(page, "show()")
        assert not page.value("byId('follow-label').checkVisibility()")
        asks = page.value("asks")
        page.value("follow()")
        assert page.value("asks") == asks


def test_a_viewer_that_starts_again_leaves_nothing_of_other_data(page: Page, tmp_path: Path) -> None:
    for service in ("old", "new"):
        (tmp_path / f"{service}.jsonl").write_text(sample_line(service=service) + sample_line(service="both"), "utf-8")
    with serve(tmp_path / "old.jsonl") as address:
        page.open(address)
        assert "old" in shown(page, "#facets")
    page.wait("!byId('problem').hidden")
    with serve(tmp_path / "new.jsonl", "--port", str(urlsplit(address).port)):
        page.wait("byId('problem').hidden")
        assert shown(page, "#source").endswith("new.jsonl")
        for part in ("#facets", "#legend"):
            assert "new" in shown(page, part)
            assert "old" not in shown(page, part)
        page.do("Page.navigate", url="about:blank")
    page.problems.clear()  # the browser itself logs that nobody answers


def test_a_late_answer_about_older_data_is_not_given_again(page: Page, growing: Path) -> None:
    with shown_on(page, growing) as address:
        page.open(address)
        page.value(
            """globalThis.late = [];
            const askOnce = globalThis.fetch;
            globalThis.fetch = async (...all) => {
                const answer = await askOnce(...all), content = await answer.text();
                if (all[0].startsWith("api/facets") && !late.length) await new Promise((come) => late.push(come));
                return new Response(content);
            };
            set({ "f.state": "running" });
            show();
            0"""
        )
        page.wait("late.length")
        append(growing, sample_line(service="billing"))
        page.wait("overview.samples === 3 && document.body.dataset.shown === String(asked)")
        page.value("late[0](); new Promise(setTimeout)")
        act(page, "show()")
        assert "billing" in shown(page, "#facets")


@pytest.mark.parametrize("late", ["overview", "top", "trace"])
def test_data_that_comes_between_two_answers_is_in_the_view(page: Page, growing: Path, late: str) -> None:
    append(growing, span_line("GET /search"))
    with shown_on(page, growing) as address:
        page.open(f"{address}#view={'trace' if late == 'trace' else 'top'}&f.trace={TRACE}")
        page.value(
            """byId("follow").checked = false;
            globalThis.answered = 0;
            const askOnce = globalThis.fetch;
            globalThis.fetch = async (...all) => {
                const isLate = all[0].startsWith("api/LATE?") && !globalThis.goOn;
                if (isLate) await new Promise((come) => { globalThis.goOn = come; });
                const answer = await askOnce(...all);
                answered += 1;
                return answer;
            };
            show();
            0""".replace("LATE", late)
        )
        page.wait(f"answered === {2 if late == 'trace' else 1} && globalThis.goOn")
        append(growing, sample_line(*PAY))
        act(page, "goOn()")
        assert shown(page, "#total") == "3.00 s"
        assert late != "trace" or "3.00 s" in shown(page, "#spans")


def test_a_question_cancels_the_one_before_and_letters_are_one(page: Page, address: str) -> None:
    page.open(f"{address}#view=top")
    page.value(
        """globalThis.requests = [];
        const askOnce = globalThis.fetch;
        globalThis.fetch = (address, options) => {
            requests.push([address.split("?")[0], options.signal]);
            return askOnce(address, options);
        };"""
    )
    act(page, "set({ 'f.state': 'running' }); show(); set({ 'f.state': '' }); show()")
    asked = page.value("requests.map(([address, { aborted }]) => `${address} ${aborted}`)")
    assert asked[:4] == ["api/overview true", "api/top true", "api/overview false", "api/top false"]
    assert not any(each.endswith("true") for each in asked[4:])
    assert page.value("byId('problem').hidden")
    act(
        page,
        """requests.length = 0;
        for (const text of ["r", "ra", "ran", "rank"]) {
            byId("search").value = text;
            byId("search").dispatchEvent(new Event("input"));
        }""",
    )
    assert page.value("requests.filter(([address]) => address === 'api/top').length") == 1
    assert shown(page, "#found") == "2 functions found"
