"""Time in which the flame graph of the viewer draws 50,000 frames, in Chromium.

A step is what the page does for one picture: the reader zooms to another frame, scrolls by some rows, points at another
frame, or types another letter of a search. Quiet where there is no Chromium. Without a graphics card, as it is measured
here, Chromium draws with the processor.
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
_MEASURE = """
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


def measure(quick: bool) -> Iterator[Result]:
    """Yield the slowest 95th percentile of all kinds of steps."""
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
            found = {kind: page.value(_MEASURE % (steps, step)) for kind, step in _STEPS_OF.items()}
    slowest = {kind: statistics.quantiles(each, n=20)[-1] for kind, each in found.items()}
    yield Result(
        "picture of the flame graph",
        max(slowest.values()),
        "ms",
        PICTURE_MS,
        details={
            "frames": frames,
            **{f"{kind}_p50_ms": round(statistics.median(each), 2) for kind, each in found.items()},
            **{f"{kind}_p95_ms": round(each, 2) for kind, each in slowest.items()},
        },
    )


if __name__ == "__main__":
    main(measure, __doc__)
