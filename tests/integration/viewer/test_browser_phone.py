"""The page on a window as narrow as a phone's: numbers, the ends of files and the line about a frame can be read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Page
from saved_samples import TRACE, sample_line
from viewer_page import IN_BROWSER, SCREENS, broken_rules, shown, shown_on

pytestmark = IN_BROWSER
NAME = "uvicorn.protocols.http.httptools_impl.RequestResponseCycle.run_asgi"
FILE = "/usr/local/lib/python3.12/site-packages/uvicorn/protocols/http/httptools_impl.py"
DEEP_FILE = f"/srv/{'/'.join(f'folder_{number}' for number in range(40))}/app.py"


@pytest.fixture(scope="module")
def long(page: Page, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serve the page of functions with long names in files with long paths."""
    directory = tmp_path_factory.mktemp("long")
    stack = (f"shop.app.handle({DEEP_FILE}:1207)", f"{NAME}({FILE}:408)")
    samples = [sample_line(*stack, time_ns=5 * 10**9)] * 20 + [sample_line(stack[1], time_ns=7 * 10**9)] * 10
    (directory / "logs.jsonl").write_text("".join(samples), "utf-8")
    with shown_on(page, directory) as found:
        yield found


@pytest.mark.parametrize("more", ["", "&compare=time&b.until=6000000000"])
def test_the_numbers_of_the_table_are_on_a_narrow_page(page: Page, long: str, more: str) -> None:
    page.open(f"{long}#view=top{more}", width=390)
    assert page.value("byId('top').scrollWidth <= byId('top').clientWidth")
    ends = page.value(
        """[...document.querySelectorAll("#top tr :is(td, th).number")].filter((each) => each.checkVisibility())
            .map((each) => { const range = document.createRange();
                range.selectNodeContents(each);
                const { left, right } = range.getBoundingClientRect();
                return [left, right]; })"""
    )
    assert len(ends) == (9 if more else 6)  # with the head
    assert all(0 <= left < right <= 390 for left, right in ends), ends
    page.keep_picture(SCREENS / f"phone_top{'_compared' if more else ''}.png")


@pytest.mark.parametrize("width", [390, 1280])
def test_the_end_of_a_long_file_and_its_line_can_be_read(page: Page, long: str, width: int) -> None:
    page.open(f"{long}#view=top&q=handle", width=width)
    cell = "document.querySelector('#top tbody td:nth-child(2)')"
    assert page.value(f"{cell}.querySelector('.clip').title") == f"{DEEP_FILE}:1207"
    file, line, clip = page.value(
        f"""(() => {{
            const clip = {cell}.querySelector(".clip"), range = document.createRange();
            range.selectNode(clip.querySelector("bdi").nextSibling);
            return [clip.querySelector("bdi").innerText, range.getBoundingClientRect().bottom,
                clip.getBoundingClientRect().bottom];
        }})()"""
    )
    assert file == DEEP_FILE  # also where it may be broken after a folder
    assert line <= clip + 1


def test_the_numbers_of_each_line_of_source_are_on_a_narrow_page(page: Page, tmp_path: Path) -> None:
    file = tmp_path / "app.py"
    file.write_text(f"def handle():\n    return call({'argument, ' * 40})\n    return {'x' * 3000}\n", "utf-8")
    samples = [sample_line(f"shop.app.handle({file}:{line})") for line in (2, 3)]
    (tmp_path / "logs.jsonl").write_text("".join(samples), "utf-8")
    with shown_on(page, tmp_path) as address:
        for columns, comparison in ((4, ""), (5, "&compare=time")):
            page.open(f"{address}#view=source&function=shop.app.handle&file={file}{comparison}", width=390)
            assert page.value("byId('source-lines').scrollWidth <= byId('source-lines').clientWidth")
            rows = page.value(
                """[...document.querySelectorAll("#source-lines tr")].map((row) => [...row.cells].filter((cell) =>
                cell.checkVisibility()).map((cell) => {
                    const { left, right, height } = cell.getBoundingClientRect();
                    return 0 <= left && right <= 390 ? cell.innerText && Math.round(height) > 0 : "outside";
                }))"""
            )
            assert rows == [[True] * columns, [True, True, *[""] * (columns - 2)], [True] * columns, [True] * columns]
            assert not broken_rules(page)
            page.keep_picture(SCREENS / f"phone_source_{columns}.png")


def test_the_line_about_a_frame_is_seen_whole_below_the_graph(page: Page, long: str) -> None:
    page.open(long, width=390)
    graph = page.box("#scroll")
    page.value("graph.point(graph.frames[1])")
    text = f"{NAME} 30.0 s (100.0 %), own 10.0 s (33.3 %) {FILE}:408"
    assert shown(page, "#frame") == text
    assert page.value("byId('frame').scrollHeight <= byId('frame').clientHeight")
    _, top, _, height = page.box("#frame")
    assert graph[1] < top < top + height <= page.value("innerHeight")
    assert page.box("#scroll") == graph  # it does not move
    page.keep_picture(SCREENS / "phone_frame.png")


def test_the_name_of_a_span_has_the_width_of_a_narrow_page(page: Page, address: str) -> None:
    page.open(f"{address}#view=trace&f.trace={TRACE}", width=390)
    names = page.value(
        "[...document.querySelectorAll('#spans button > :first-child')]"
        ".map(({ innerText, scrollWidth, clientWidth }) => [innerText, scrollWidth <= clientWidth])"
    )
    assert names == [["GET /search shop", True], ["POST /checkout billing", True]]
    widths = page.value("[...document.querySelectorAll('#spans .track')].map(({ clientWidth }) => clientWidth)")
    assert widths[0] == widths[1] > 150  # one scale for all


def test_no_time_of_the_axis_is_cut_off(page: Page, address: str) -> None:
    page.open(address, width=280)
    left, _, width, _ = page.box("#axis")
    ends = page.value(
        "[...byId('axis').children].flatMap((each) => { const box = each.getBoundingClientRect();"
        " return [box.left, box.right]; })"
    )
    assert len(ends) > 2
    assert all(left <= end <= left + width for end in ends), ends
