"""The cost of 200 idle threads: allocations, time per snapshot, and formatting of stacks."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

from capture_cost import drain_periodically, measure_held_ns, native_ticker
from population import FRAMES, BlockedThreads
from result import Result, main, median, middle_half

from splunk_profiler.capture.recorder import ContextReader, StreamRecorder
from splunk_profiler.formats.text import BodyFormatter
from splunk_profiler.model import Stack
from splunk_profiler.pipeline.snapshot_builder import SnapshotBuilder
from splunk_profiler.stream.captured import CapturedSnapshot
from splunk_profiler.stream.reader import StreamReader

IDLE = 200


def measure(quick: bool) -> Iterator[Result]:
    """Measure captures, then the worker's part."""
    rounds = 50 if quick else 1000
    with BlockedThreads(IDLE, FRAMES):
        ticker = native_ticker()
        held: list[int] = []
        blocks = 0
        for number in range(rounds):
            drain_periodically(ticker, number)
            before = sys.getallocatedblocks()
            ticker.capture()
            blocks += sys.getallocatedblocks() - before
            held.append(measure_held_ns(ticker))
        yield Result(
            "blocks allocated per snapshot of 200 idle threads",
            max(blocks, 0) / rounds,
            "blocks",
            0.1,
            details={"rounds": rounds},
        )
        yield Result(
            "GIL held per idle thread and snapshot",
            median(held) / (IDLE + 1),
            "ns",
            details={"snapshot_us": median(held) / 1000, "middle_half": middle_half(held), "frames_each": FRAMES},
        )
        yield from worker(rounds)


def worker(rounds: int) -> Iterator[Result]:
    """Measure the time from a raw snapshot through a stream to samples, and the number of formatted stacks."""
    ticker = native_ticker()
    recorder = StreamRecorder(ContextReader(lambda _: None), is_native=True, reads_nice=True)
    reader = StreamReader()
    builder = SnapshotBuilder(1_000_000_000, skips_idle=False)
    formatted: list[Stack] = []
    formatter = BodyFormatter()

    def text(stack: Stack) -> str:
        formatted.append(stack)
        return formatter.encode_stack(stack).decode()

    took = []
    for _ in range(rounds):
        ticker.capture()
        started = time.perf_counter_ns()
        for raw in ticker.drain(0):
            recorder.record_snapshot(raw)
        for captured in reader.feed(recorder.take()):
            assert isinstance(captured, CapturedSnapshot)
            for sample in builder.snapshot(captured).samples:
                sample.thread.stack.derive(text)
        took.append(time.perf_counter_ns() - started)
    yield Result(
        "stacks formatted per idle thread, over all snapshots",
        len(formatted) / (IDLE + 1),
        "stacks",
        1.0,
        details={"snapshots": rounds},
    )
    yield Result(
        "worker's time per idle thread and snapshot",
        median(took) / (IDLE + 1) / 1000,
        "us",
        details={"middle_half_us_per_snapshot": [value / 1000 for value in middle_half(took)]},
    )


if __name__ == "__main__":
    main(measure, __doc__)
