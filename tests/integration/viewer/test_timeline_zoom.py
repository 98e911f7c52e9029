"""The timeline of a part of the time, in a real browser: five minutes of a week are seen and selected."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Page
from saved_samples import append, sample_line
from viewer_page import IN_BROWSER, SCREENS, act, broken_rules, click, shown, shown_on

from splunk_profiler.viewer.model import DAY_NS, HOUR_NS, MINUTE_NS, Facets, Sample
from splunk_profiler.viewer.recording import Recording
from splunk_profiler.viewer.store_writer import StoreWriter

pytestmark = IN_BROWSER

SECOND_NS = 10**9
WEEK_NS = 7 * DAY_NS
START_NS = 20_000 * DAY_NS
INCIDENT_NS = START_NS + 3 * DAY_NS + 7 * HOUR_NS + 14 * MINUTE_NS  # at a step
QUIET, BUSY = "shop.search", "shop.retry"


@pytest.fixture(scope="module")
def week(page: Page, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serve a week with a profile of a second's work each five minutes, and five minutes with one each ten seconds."""
    recording = Recording()
    recording.units["wall"] = "nanoseconds"
    facets = recording.facets_id(Facets("shop", "", "", "", "", "", ""))
    times_ns = {
        QUIET: range(START_NS, START_NS + WEEK_NS, 5 * MINUTE_NS),
        BUSY: range(INCIDENT_NS, INCIDENT_NS + 5 * MINUTE_NS, 10 * SECOND_NS),
    }
    for name, times in times_ns.items():
        frames = [recording.function_id(name, "/srv/shop.py", "application"), 1]
        stack = recording.stacks.index(b"".join(each.to_bytes(4, "little") for each in frames))
        for time_ns in times:
            recording.add(Sample(time_ns, stack, facets, {"wall": SECOND_NS}, duration_ns=10 * SECOND_NS))
    path = tmp_path_factory.mktemp("week") / "store.db"
    writer = StoreWriter(path)
    writer.add(recording)
    writer.close()
    with shown_on(page, path) as address:
        yield address


def drag_over(page: Page, first: int, last: int) -> None:
    """Drag over steps of the timeline, and wait until what they have is shown."""
    left, top, width, height = page.box("#timeline")
    step = width / page.value("timeline.series[0][1].length")
    places = [(left + (bucket + 0.5) * step, top + height / 2) for bucket in (first, last)]
    before = page.value("document.body.dataset.shown")
    page.drag(places[0], places[1], release=False)
    page.release(places[1])
    page.wait(f"document.body.dataset.shown !== {before!r}")


def times_of(page: Page, *names: str) -> list[int | None]:
    return [None if text is None else int(text) for text in page.value(f"{json.dumps(names)}.map((n) => state.get(n))")]


def weights_of(page: Page) -> list[int]:
    return [round(weight / SECOND_NS) for weight in page.value("timeline.series[0][1]")]


def test_five_minutes_of_a_week_are_found_and_selected(page: Page, week: str) -> None:
    page.open(week)
    assert page.value("timeline.step") == str(84 * MINUTE_NS)
    assert page.value("[byId('enlarge').hidden, byId('shrink').hidden]") == [True, True]
    whole = weights_of(page)
    highest = whole.index(max(whole))
    drag_over(page, highest, highest)
    since_ns, until_ns = times_of(page, "since", "until")
    click(page, "#enlarge")
    assert page.value("document.activeElement.id") == "timeline"
    assert times_of(page, "from", "to") == times_of(page, "since", "until") == [since_ns, until_ns]
    assert page.value("[byId('enlarge').hidden, byId('shrink').hidden]") == [True, False]
    assert page.value("[timeline.start, timeline.series[0][1].length]") == [str(since_ns), 101]
    page.keep_picture(SCREENS / "timeline.png")
    assert not broken_rules(page)
    high = [bucket for bucket, weight in enumerate(weights_of(page)) if weight > 1]
    assert len(high) == high[-1] - high[0] + 1 == 6  # of 50 s, five profiles
    drag_over(page, high[0], high[-1])
    found = times_of(page, "since", "until")
    assert found == [INCIDENT_NS, INCIDENT_NS + 5 * MINUTE_NS]
    assert page.value("graph.frames.find(({ name }) => name === 'shop.retry').total") == 30 * SECOND_NS
    sent = page.value("location.href")
    page.open("about:blank", until="true")
    page.open(sent)
    assert times_of(page, "since", "until", "from", "to") == [*found, since_ns, until_ns]
    assert page.value("timeline.start") == str(since_ns)
    assert page.value("chosenBuckets()") == [high[0], high[-1]]
    click(page, "#shrink")
    assert weights_of(page) == whole
    assert times_of(page, "since", "until", "from", "to") == [*found, None, None]
    assert page.value("chosenBuckets()") == [highest, highest]


def test_the_timeline_of_a_part_can_be_used_with_keys(page: Page, week: str) -> None:
    until_ns = START_NS + DAY_NS
    page.open(f"{week}#since={START_NS}&until={until_ns}&from={START_NS}&to={until_ns}")
    page.value("byId('timeline').focus()")
    for key in ("ArrowRight", "ArrowLeft", "ArrowLeft"):
        page.press(key)
    assert page.value("marked") == [117, 117]
    act(page, "byId('timeline').dispatchEvent(new KeyboardEvent('keydown', { key: 'Enter' }))")
    step_ns = DAY_NS // 120
    assert times_of(page, "since", "until") == [START_NS + 117 * step_ns, START_NS + 118 * step_ns]
    act(page, "byId('timeline').dispatchEvent(new KeyboardEvent('keydown', { key: 'Escape' }))")
    assert times_of(page, "since", "until", "from", "to") == [None] * 4
    assert page.value("byId('shrink').hidden")


def test_a_selection_outside_of_what_the_timeline_shows_is_marked_nowhere(page: Page, week: str) -> None:
    shown_part = f"from={START_NS + DAY_NS}&to={START_NS + 2 * DAY_NS}"
    for since_ns, buckets in ((START_NS, [0, -1]), (START_NS + 3 * DAY_NS, [240, 119])):
        page.open(f"{week}#since={since_ns}&until={since_ns + HOUR_NS}&{shown_part}")
        assert page.value("chosenBuckets()") == buckets
        assert shown(page, "#total") == "12.0 s"
        page.value("byId('timeline').focus()")
        page.do("Input.dispatchKeyEvent", type="keyDown", key="ArrowRight", modifiers=8)
        assert page.value("marked.every((bucket) => bucket >= 0 && bucket < 120)")


def test_the_last_step_of_a_part_ends_with_it(page: Page, week: str) -> None:
    until_ns = INCIDENT_NS + 25 * SECOND_NS  # two and a half profiles
    page.open(f"{week}#from={INCIDENT_NS}&to={until_ns}")
    assert weights_of(page) == [1, 1, 1]
    drag_over(page, 2, 2)
    assert times_of(page, "since", "until") == [INCIDENT_NS + 20 * SECOND_NS, until_ns]


@pytest.mark.parametrize("part", ["from=1&to=9223372036854775807", "from=9&to=1", "from=1&to=9", "from=none&to=-1"])
def test_a_part_without_samples_or_end_is_shown(page: Page, week: str, part: str) -> None:
    page.open(f"{week}#{part}")
    assert page.value("byId('problem').hidden")
    assert shown(page, "#period") == page.value("period(overview.since, overview.until)")


def test_a_saved_file_has_the_timeline_of_the_part(page: Page, week: str, tmp_path: Path) -> None:
    page.open(f"{week}#from={INCIDENT_NS}&to={INCIDENT_NS + HOUR_NS}")
    expected = page.value("JSON.stringify([timeline.start, timeline.step, timeline.series])")
    page.open(page.save("[data-format=html]", tmp_path).as_uri())
    assert page.value("JSON.stringify([timeline.start, timeline.step, timeline.series])") == expected
    assert page.value("['enlarge', 'shrink', 'whole'].every((id) => byId(id).hidden)")


def test_the_timeline_of_a_part_stays_when_new_data_comes(page: Page, tmp_path: Path) -> None:
    file = tmp_path / "logs.jsonl"
    append(file, "".join(sample_line(time_ns=second * SECOND_NS) for second in range(100, 200)))
    with shown_on(page, tmp_path) as address:
        page.open(f"{address}#from={110 * SECOND_NS}&to={130 * SECOND_NS}")
        assert sum(weights_of(page)) == 20
        append(file, sample_line(time_ns=115 * SECOND_NS) + sample_line(time_ns=300 * SECOND_NS))
        page.value("follow()")
        page.wait("overview.samples === 102 && byId('total').innerText === '1.70 min'")
        page.wait("timeline.version === overview.version")
        assert sum(weights_of(page)) == 21
        assert times_of(page, "from", "to") == [110 * SECOND_NS, 130 * SECOND_NS]
        click(page, "#shrink")
        assert sum(weights_of(page)) == 102
