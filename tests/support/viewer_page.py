"""A recording of two services, shown by `view` in a browser; shared by the tests of the page."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path

import pytest
from browser import CHROMIUM, Page
from command_line import COMMAND, DEADLINE_S, ROOT, clean_environment
from saved_samples import sample_line, span_line

IN_BROWSER = [  # of a module of tests that all look at the page
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed"),
    pytest.mark.usefixtures("no_error_on_the_console"),
]
SCREENS = ROOT / "build" / "screens"
AXE = (files("axe_playwright_python") / "axe.min.js").read_text("utf-8")
START_NS = 1_790_000_000 * 10**9
SEARCH, CHECKOUT = "aaaaaaaaaaaaaaaa", "bbbbbbbbbbbbbbbb"
SERVE = "uvicorn.server.Server.serve(/venv/lib/python3.12/site-packages/uvicorn/server.py:70)"
HANDLE = "shop.app.search(/srv/shop/app.py:20)"
RANK = "shop.ranking.rank(/srv/shop/ranking.py:31)"
TRIGRAMS = "shop.ranking.trigrams(/srv/shop/ranking.py:44)"
QUERY = "shop.database.candidates(/srv/shop/database.py:12)"
PAY = "billing.pay(/srv/billing/pay.py:9)"
RIGHT_TO_LEFT = "\u05e9\u05dc\u05d5\u05dd.\u05e8\u05d5\u05e5"  # a function in Hebrew
WAIT = "threading.Condition.wait(/usr/lib/python3.12/threading.py:355)"


def lines() -> Iterator[str]:
    """Two minutes of two services: searches all the time, payments in the second half."""
    end_ns = START_NS + 120 * 10**9
    yield span_line("GET /search", SEARCH, times_ns=(START_NS, end_ns), service="shop")
    times_ns = START_NS + 60 * 10**9, end_ns
    yield span_line("POST /checkout", CHECKOUT, SEARCH, times_ns, ("q83vEg==",) * 3, service="billing")
    for second in range(120):
        time_ns = START_NS + second * 10**9
        for stack in ([TRIGRAMS, RANK, HANDLE, SERVE], [RANK, HANDLE, SERVE], [QUERY, HANDLE, SERVE])[: 1 + second % 3]:
            yield sample_line(*stack, time_ns=time_ns, span=SEARCH)
        yield sample_line(WAIT, SERVE, time_ns=time_ns, span="", state="waiting")
        if second >= 60:
            yield sample_line(PAY, SERVE, service="billing", time_ns=time_ns, span=CHECKOUT)


@contextmanager
def serve(source: Path, *options: str) -> Iterator[str]:
    command = [*COMMAND, "view", str(source), *options]
    with subprocess.Popen(command, env=clean_environment(), cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().split()[-1]
        finally:
            process.terminate()
            process.wait(DEADLINE_S)


@contextmanager
def shown_on(page: Page, source: Path) -> Iterator[str]:
    """Serve a source, and leave its page before the server ends: it asks for new data every two seconds."""
    with serve(source) as address:
        yield address
        page.do("Page.navigate", url="about:blank")


def shown(page: Page, selector: str) -> str:
    return str(page.value(f"document.querySelector({json.dumps(selector)}).innerText"))


def broken_rules(page: Page) -> list[tuple[str, list[str]]]:
    """Return the rules of accessibility that the page breaks, and where."""
    page.value(AXE)
    found = page.value("axe.run({ resultTypes: ['violations'] }).then((result) => result.violations)")
    return [(rule["id"], [node["html"] for node in rule["nodes"]]) for rule in found]


def colour_parts(colour: str) -> list[float]:
    """Return red, green and blue of ``#rrggbb`` or ``rgb(1, 2, 3)``."""
    if colour.startswith("#"):
        return [int(colour[at : at + 2], 16) for at in (1, 3, 5)]
    return [float(each) for each in re.findall(r"[\d.]+", colour)[:3]]


def contrast(one: list[float], other: list[float]) -> float:
    """Return the contrast of two colours: WCAG 2.2, section 8."""
    darker, lighter = sorted((_luminance(one), _luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(colour: list[float]) -> float:
    shares = [part / 255 for part in colour]
    linear = [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]
    return sum(factor * part for factor, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def act(page: Page, action: str) -> None:
    """Run JavaScript that changes what is shown, and wait until it is."""
    before = page.value("document.body.dataset.shown")
    page.value(action)
    page.wait(f"document.body.dataset.shown !== {before!r}")


def click(page: Page, element: str) -> None:
    """Click an element that changes what is shown, and wait until it is."""
    before = page.value("document.body.dataset.shown")
    page.click_on(element)
    page.wait(f"document.body.dataset.shown !== {before!r}")


def names_in(page: Page, graph: str = "graph") -> list[str]:
    return list(page.value(f"{graph}.frames.map((frame) => frame.name)"))


def frame_at(page: Page, name: str, graph: str = "graph") -> tuple[float, float]:
    """Return the middle of a frame of `graph` or `callers`, in the window."""
    x, y = page.value(
        f"(() => {{ const g = {graph}, f = g.frames.find((f) => f.name === {json.dumps(name)});"
        " const box = g.canvas.getBoundingClientRect(), [l, w] = g.place(f, box.width);"
        " return [box.left + l + w / 2, box.top + (g.rowOf(f.depth) + 0.5) * ROW - g.scroller.scrollTop]; })()"
    )
    return x, y


def click_frame(page: Page, name: str, graph: str = "graph") -> None:
    page.click(*frame_at(page, name, graph))
