"""Texts in the flame graph can be read: their contrast with what is drawn behind them, as WCAG 2.2 AA asks."""

from __future__ import annotations

import pytest
from browser import Page
from viewer_page import IN_BROWSER, START_NS, colour_parts, contrast

pytestmark = IN_BROWSER
MIDDLE_NS = START_NS + 60 * 10**9
GRAPHS = {
    "plain": "",
    "compared": f"since={MIDDLE_NS}&compare=time&b.until={MIDDLE_NS}",
    "hardly changed": f"compare=time&b.since={START_NS}",
}
# The colour of each name, the pixel beside it and the colour of the page, each as red, green, blue and alpha.
DRAWN = """(() => {
    const context = graph.canvas.getContext("2d"), found = [];
    context.fillText = (text, x, y) => found.push([text, context.fillStyle, Math.ceil(x - 3), y - ROW / 2 + 1]);
    graph.drawNow();
    delete context.fillText;
    const { width, height } = graph.canvas, copy = new OffscreenCanvas(width, height).getContext("2d");
    copy.drawImage(graph.canvas, 0, 0);
    const { data } = copy.getImageData(0, 0, width, height);
    const pixel = (x, y) => [...data.slice(4 * (y * width + x), 4 * (y * width + x) + 4)];
    const names = found.map(([text, colour, x, y]) => [text, colour, pixel(x, Math.ceil(y))]);
    return [names, getComputedStyle(document.body).backgroundColor];
})()"""


def contrasts(page: Page) -> dict[str, float]:
    """Return the contrast of each name that is drawn."""
    found, behind = page.value(DRAWN)
    ratios = {}
    for name, text, (*pixel, alpha) in found:
        pairs = zip(pixel, colour_parts(behind), strict=True)
        back = [part * alpha / 255 + under * (1 - alpha / 255) for part, under in pairs]
        ratios[name] = contrast(colour_parts(text), back)
    return ratios


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("dark", [False, True])
def test_each_name_can_be_read_on_its_frame(page: Page, address: str, dark: bool, graph: str) -> None:
    page.open(f"{address}#{GRAPHS[graph]}", dark=dark)
    zoom = "graph.zoom(graph.frames.find(({ name }) => name === 'shop.ranking.rank'))"
    for step in ("graph.zoom(graph.frames[0])", "graph.find('trigrams')", "graph.find('')", zoom):
        page.value(step)
        ratios = contrasts(page)
        assert len(ratios) > 3
        assert min(ratios.values()) >= 4.5, (step, ratios)
