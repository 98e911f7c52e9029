"""Time in which the flame graph of the viewer draws 50,000 frames, in Chromium.

A step is what the page does for one picture: the reader zooms to another frame, scrolls by some rows, points at another
frame, or types another letter of a search. The first figure, which has a target, is the time in which the page draws.
The second is the time from one picture to the next while each has such a step: it counts for the reader, and has all
in it that Chromium does besides, and the wait for the next sixtieth of a second. Quiet where there is no Chromium.
Without a graphics card, as it is measured here, Chromium draws with the processor.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path

from result import Result, main
from viewer_load import fill, page_of

from splunk_profiler.viewer.recording import Recording
from splunk_profiler.viewer.store_writer import StoreWriter

STACKS_SAMPLES = 5_000_000  # of which 100,000 stacks come
PICTURE_MS = 1000 / 60
STEPS = 120
_STEPS_OF = {
    "zoom": "graph.zoomed = frames[Math.floor(frames.length * (at / STEPS) ** 3)]",
    "scroll": "graph.scroller.scrollTop = at * 7",
    "point": "graph.pointed = frames[at]",
    "search": "graph.find('step_' + at)",
}
_DRAWN = """
(() => {
  const frames = graph.frames, STEPS = %d, found = [];
  graph.zoomed = frames[0];
  for (let at = 0; at < STEPS; at++) {
    const started = performance.now();
    %s;
    graph.drawNow();
    graph.canvas.getContext("2d").getImageData(0, 0, 1, 1); // until it has been drawn
    found.push(performance.now() - started);
  }
  graph.find("");
  return found;
})()
"""
_SHOWN = """
(async () => {
  const frames = graph.frames, STEPS = %d, found = [], picture = () => new Promise(requestAnimationFrame);
  graph.zoomed = frames[0];
  let before = await picture();
  for (let at = 0; at < STEPS; at++) {
    %s;
    graph.drawNow();
    const now = await picture();
    found.push(now - before);
    before = now;
  }
  graph.find("");
  return found;
})()
"""


def measure(quick: bool) -> Iterator[Result]:
    """Yield the slowest 95th percentile of all kinds of steps: of drawing, and from picture to picture."""
    from browser import CHROMIUM  # noqa: PLC0415  # of the tests

    if CHROMIUM is None:
        return
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "store.db"
        recording = Recording()
        fill(recording, STACKS_SAMPLES // (1000 if quick else 1))
        writer = StoreWriter(path)
        writer.add(recording)
        writer.close()
        with page_of(path, Path(directory)) as page:
            frames = page.value("graph.frames.length")
            steps = STEPS // (10 if quick else 1)
            drawn, shown = (
                {kind: page.value(script % (steps, step)) for kind, step in _STEPS_OF.items()}
                for script in (_DRAWN, _SHOWN)
            )
    yield _slowest("picture of the flame graph", drawn, frames, PICTURE_MS)
    yield _slowest("from picture to picture of the flame graph", shown, frames)


def _slowest(name: str, times_ms: dict[str, list[float]], frames: int, limit_ms: float | None = None) -> Result:
    slowest = {kind: statistics.quantiles(each, n=20)[-1] for kind, each in times_ms.items()}
    details = {
        "frames": frames,
        **{f"{kind}_p50_ms": round(statistics.median(each), 2) for kind, each in times_ms.items()},
        **{f"{kind}_p95_ms": round(each, 2) for kind, each in slowest.items()},
    }
    return Result(name, max(slowest.values()), "ms", limit_ms, details=details)


if __name__ == "__main__":
    main(measure, __doc__)
