"""Time for which a snapshot holds the GIL: the native walker and a walk in Python, interleaved.

33 threads, 43 frames each; once with stacks that hold still, once with stacks that all moved since the last snapshot.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from types import CodeType, FrameType

from population import FRAMES, THREADS, BlockedThreads, SteppingThreads
from result import Result, main, median, middle_half

from splunk_profiler.capture.frames import gc_disabled
from splunk_profiler.capture.walker import Ticker, WalkerChoice, make_ticker
from splunk_profiler.otel.spans import context_variable


def walk_in_python() -> list[list[tuple[CodeType, int]]]:
    """Walk every frame of every thread with its line, as a profiler without an extension does."""
    stacks = []
    with gc_disabled():
        tops = sys._current_frames()
    for top in tops.values():
        stack: list[tuple[CodeType, int]] = []
        frame: FrameType | None = top
        while frame is not None:
            stack.append((frame.f_code, frame.f_lineno))
            frame = frame.f_back
        stacks.append(stack)
    return stacks


def native_ticker() -> Ticker:
    """Make the native walker as the profiler does."""
    return make_ticker(WalkerChoice("native", "measured"), context_variable(), lambda _: None, 1024)


def measure_held_ns(ticker: Ticker) -> int:
    """Measure one capture in nanoseconds, by the walker's own clock."""
    before = ticker.counters().gil_held_ns_sum
    ticker.capture()
    return ticker.counters().gil_held_ns_sum - before


def measure_python_ns() -> int:
    """Measure one walk in Python in nanoseconds."""
    started = time.perf_counter_ns()
    walk_in_python()
    return time.perf_counter_ns() - started


def drain_periodically(ticker: Ticker, number: int) -> None:
    """Drain the ring periodically: with a full ring the walker stops capturing."""
    if number % 32 == 0:
        ticker.drain(0)


def interleaved(rounds: int, between: Callable[[], None]) -> tuple[list[int], list[int]]:
    """Return the (native, Python) times; the order changes with each round."""
    ticker = native_ticker()
    native: list[int] = []
    python: list[int] = []
    for number in range(rounds):
        between()
        drain_periodically(ticker, number)
        if number % 2:
            python.append(measure_python_ns())
            native.append(measure_held_ns(ticker))
        else:
            native.append(measure_held_ns(ticker))
            python.append(measure_python_ns())
        ticker.drain(0)
    return native[2:], python[2:]  # the first captures grow buffers


def results(what: str, native: list[int], python: list[int], frames: int) -> Iterator[Result]:
    """Return results per snapshot, per frame, and relative to Python."""
    snapshot_ns, python_snapshot_ns = median(native), median(python)
    details = {"frames": frames, "rounds": len(native), "middle_half": middle_half(native)}
    yield Result(f"GIL held for a snapshot, {what}", snapshot_ns / 1000, "us", details=details)
    yield Result(f"GIL held per frame, {what}", snapshot_ns / frames, "ns", 10)
    yield Result(
        f"pure-Python walk / native walk, {what}",
        python_snapshot_ns / snapshot_ns,
        "times",
        15,
        at_least=True,
        details={"python_us": python_snapshot_ns / 1000, "python_middle_half": middle_half(python)},
    )


def measure(quick: bool) -> Iterator[Result]:
    """Measure both populations."""
    rounds = 30 if quick else 2000
    with BlockedThreads(THREADS - 1, FRAMES):
        frames = sum(map(len, walk_in_python()))
        native, python = interleaved(rounds, lambda: None)
    yield from results("stacks that hold still", native, python, frames)
    with SteppingThreads(THREADS - 1, FRAMES) as population:
        frames = sum(map(len, walk_in_python()))
        native, python = interleaved(max(rounds // 10, 10), population.step)
    yield from results("stacks that all moved", native, python, frames)


if __name__ == "__main__":
    main(measure, __doc__)
