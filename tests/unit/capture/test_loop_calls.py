"""The calls that run a loop without frames, by the bytecode of this interpreter."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import pytest

from splunk_profiler.capture.events.blocked_loops import is_in_callback
from splunk_profiler.capture.loop_calls import loop_call
from splunk_profiler.capture.symbolizer import Symbolizer
from splunk_profiler.model import Frame, Stack
from splunk_profiler.pipeline.waits import wait_kind

found: list[str] = []


def see_caller(*_: object, **__: object) -> int:
    """Look at the frame that has called this through C code."""
    frame = sys._getframe(1)
    found.append(loop_call(frame.f_code, frame.f_lasti))
    return 1


look = partial(see_caller)


class Loop:
    """A loop in C."""

    run_until_complete = run_forever = other = staticmethod(look)

    @property
    def loop(self) -> Loop:
        return self


def test_loop_call_is_the_one_of_its_statement() -> None:
    loop = Loop()

    def returned() -> int:
        return loop.run_forever()

    loop.run_until_complete(max(1, 2))
    loop.loop.run_until_complete([str(1), max(1, 2)])
    result = loop.run_until_complete(look(), timeout=look())
    returned()
    assert found == ["run_until_complete", "run_until_complete", "", "", "run_until_complete", "run_forever"]
    found.clear()
    assert result == 1
    loop.other()
    result = look()
    loop.run_until_complete()
    assert found == ["", "", "run_until_complete"]
    found.clear()


def stack_of(ident: int) -> Stack:
    symbolizer, frames = Symbolizer(), list[Frame]()
    frame: FrameType | None = sys._current_frames()[ident]
    while frame is not None:
        frames.append(symbolizer.frame(frame.f_code, frame.f_lasti, frame.f_globals))
        frame = frame.f_back
    return Stack(tuple(frames), truncated=False)


def run_forever(loop: Any, work: Callable[[], object]) -> None:
    loop.call_soon(lambda: (work(), loop.stop()))
    loop.run_forever()


def run_until_complete(loop: Any, work: Callable[[], object]) -> None:
    async def main() -> None:
        work()

    loop.run_until_complete(main())


@pytest.mark.parametrize("run", [run_forever, run_until_complete])
@pytest.mark.parametrize("library", ["asyncio", "uvloop"])
def test_callback_is_known_in_a_loop_that_no_runner_started(library: str, run: Callable[..., None]) -> None:
    loops = asyncio
    if library == "uvloop":
        loops = pytest.importorskip("uvloop", reason="uvloop is not installed for this interpreter")
    is_inside, is_over = threading.Event(), threading.Event()
    loop = loops.new_event_loop()

    def work() -> None:
        is_inside.set()
        is_over.wait()

    thread = threading.Thread(target=run, args=(loop, work))
    thread.start()
    is_inside.wait()
    stack = stack_of(thread.ident or 0)
    is_over.set()
    thread.join()
    loop.close()
    assert is_in_callback(stack)
    above = next(depth for depth, frame in enumerate(stack.frames) if frame.function == run.__name__)
    outside = Stack(stack.frames[above:], truncated=False)
    assert (is_in_callback(outside), wait_kind(outside)) == (False, "")
