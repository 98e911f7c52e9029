"""Errors inside the native walker, each of which leaves it usable."""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any

import pytest

pytest.importorskip("splunk_profiler._walker", reason="the native walker is not built for this interpreter")

from short_programs import run_code
from walker_factory import Frames, make, name, pair

from splunk_profiler import _walker as walker


@pytest.mark.parametrize("failing", ["make_frame", "make_stack"])
def test_a_failing_constructor_fails_once(failing: str) -> None:
    failures = [ValueError("once")]

    def fail_once(*arguments: Any) -> Any:
        if failures:
            raise failures.pop()
        return arguments[0]

    made: dict[str, Any] = {failing: fail_once}
    ticker = make(**made)
    ticker.capture()
    ticker.capture()
    first, second = ticker.drain(0)
    with pytest.raises(ValueError, match="once"):
        list(first.threads)
    assert len(list(first.threads)) == len(list(second.threads))


def test_a_constructor_that_drains_and_captures_itself_does_no_harm() -> None:
    inner: list[object] = []

    def make_stack(frames: Frames, truncated: bool) -> object:
        if len(inner) < 3:
            ticker.capture()
            inner.append(None)
            inner.extend(ticker.drain(0))
        return pair(frames, truncated)

    ticker = make(make_stack=make_stack)
    ticker.capture()
    (snapshot,) = ticker.drain(0)
    assert list(snapshot.threads)
    assert len(inner) > 1


def test_a_constructor_that_drops_the_ticker_of_a_snapshot_does_no_harm() -> None:
    tickers: list[walker.Ticker[Any, Any]] = []

    def make_frame(code: CodeType, offset: int, namespace: dict[str, Any]) -> str:
        tickers.clear()
        return name(code, offset, namespace)

    tickers.append(make(make_frame=make_frame))
    tickers[0].capture()
    (snapshot,) = tickers[0].drain(0)
    stacks = [thread.stack for thread in snapshot.threads]
    assert not tickers
    assert any(len(stack[0]) > 1 for stack in stacks)


def test_a_constructor_that_reads_the_same_snapshot_does_no_harm() -> None:
    inside: list[object] = []

    def make_frame(code: CodeType, offset: int, namespace: dict[str, Any]) -> str:
        if not inside:
            inside.append(True)
            inside.extend(thread.stack for thread in snapshot.threads)  # releases the globals of what is converted here
            gc.collect()
        return name(code, offset, namespace)

    ticker = make(make_frame=make_frame)
    exec("def work():\n    capture()\nwork()", {"__name__": "generated", "capture": ticker.capture})  # noqa: S102
    (snapshot,) = ticker.drain(0)
    stacks = [thread.stack for thread in snapshot.threads]
    assert inside[1:] == stacks
    assert any("work" in stack[0] for stack in stacks)


def test_a_constructor_that_looks_at_all_objects_does_no_harm() -> None:
    def make_frame(code: CodeType, offset: int, namespace: dict[str, Any]) -> str:
        for found in gc.get_objects(0):  # as another thread of the service may
            if type(found) is tuple:
                list(found)
        return name(code, offset, namespace)

    ticker = make(make_frame=make_frame)
    ticker.capture()
    (snapshot,) = ticker.drain(0)
    assert any("test_a_constructor_that_looks_at_all_objects_does_no_harm" in raw.stack[0] for raw in snapshot.threads)


# A finaliser calls a function that the collector has cleared (CPython 3.11 to 3.13 have the call, without globals).
CLEARED_FUNCTION = """
import gc, sys, weakref
from splunk_profiler import _walker

ticker = _walker.Ticker(context_var=None, labels_var=None, max_depth=100, make_frame=lambda code, *_: code.co_name,
                        make_stack=lambda frames, _: frames, ring_size=4)

class Late:
    __slots__ = ("ref",)
    def __del__(self):
        global cleared
        cleared = self.ref()

class Cyclic(tuple):
    __slots__ = ()
    def __del__(self):
        self[1].ref = weakref.ref(self[0])
        global late
        del late

def cleared(call):
    call()

late = Late()
cycle = tuple.__new__(Cyclic, (cleared, late))
cleared.__module__ = cycle
del cleared, cycle
gc.collect()
if cleared is None or sys.version_info < (3, 11) or hasattr(sys, "gettotalrefcount"):  # 3.10 and debug builds cannot
    ticker.capture()
else:
    cleared(ticker.capture)
print(*list(ticker.drain(0)[0].threads)[0].stack)
"""


def test_a_function_without_globals_is_left_out_of_its_stack() -> None:
    assert run_code(CLEARED_FUNCTION) == "<module>\n"


def test_the_table_of_known_frames_is_bounded() -> None:
    depth = 64
    named: Counter[str] = Counter()

    def make_frame(code: CodeType, _offset: int, namespace: dict[str, Any]) -> str:
        named[namespace["__name__"]] += 1
        return code.co_name

    def template() -> None:
        callee()  # type: ignore[name-defined]  # noqa: F821  # from the globals of each copy

    ticker = make(make_frame=make_frame, max_depth=depth, ring_size=64)

    def capture_below(*modules: str) -> None:
        """Capture and drain one stack with a frame of each of these modules."""
        call: Callable[[], None] = ticker.capture
        for module in modules:
            call = FunctionType(template.__code__, {"callee": call, "__name__": module})
        call()
        list(ticker.drain(0)[0].threads)

    for first in range(0, 66_000, depth):
        capture_below(*(f"module {number}" for number in range(first, first + depth)))
    capture_below("module 0")
    assert named["module 0"] == 2
    assert named["module 1"] == 1


def test_drain_without_memory_fails_cleanly_and_the_next_one_works() -> None:
    testing = pytest.importorskip("_testcapi", reason="this Python comes without the module that lets allocations fail")
    failed = 0
    for nth in range(100):
        ticker = make()
        ticker.capture()
        ticker.capture()
        testing.set_nomemory(nth, nth + 1)  # only that allocation fails
        try:
            ticker.drain(0)
        except (MemoryError, SystemError):  # 3.10's evaluation loop may lose the error
            failed += 1
        finally:
            testing.remove_mem_hooks()
        ticker.capture()
        assert len(ticker.drain(0)) == 1
    assert 0 < failed < 100


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"context_var": 1}, TypeError),
        ({"labels_var": 1}, TypeError),
        ({"make_frame": 1}, TypeError),
        ({"make_stack": None}, TypeError),
        ({"max_depth": 0}, ValueError),
        ({"max_depth": 10**7}, ValueError),
        ({"max_depth": "many"}, TypeError),
        ({"ring_size": 0}, ValueError),
        ({"ring_size": -1}, ValueError),
        ({"ring_size": 10**6}, ValueError),
        ({"exception_interval": 0}, ValueError),
        ({"exception_interval": 10**6 + 1}, ValueError),
        ({"ring_size": 10**30}, OverflowError),
    ],
)
def test_wrong_arguments_are_refused(wrong: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        make(**wrong)


def test_wrong_times_and_missing_arguments_are_refused() -> None:
    ticker: Any = make()
    for period in (0, -1, 10**18):
        with pytest.raises(ValueError, match="period_ns"):
            ticker.run(period)
    for phase in (-1, 1_001):
        with pytest.raises(ValueError, match=f"phase_ns must be 0 to period_ns, not {phase}"):
            ticker.run(1_000, 0, phase)
    with pytest.raises(OverflowError):
        ticker.run(10**30)
    with pytest.raises(TypeError):
        ticker.drain(0.5)
    with pytest.raises(TypeError):
        walker.Ticker()  # type: ignore[call-arg]


def test_a_watcher_of_forks_is_callable_and_is_given_up() -> None:
    def in_child() -> None: ...

    alive = weakref.ref(in_child)
    walker.set_after_fork_in_child(in_child)
    del in_child
    assert alive() is not None
    with pytest.raises(TypeError):
        walker.set_after_fork_in_child(1)  # type: ignore[arg-type]
    walker.set_after_fork_in_child(None)
    assert alive() is None


@pytest.mark.parametrize("failing", ["make_frame", "make_stack"])
def test_failing_constructor_fails_only_one_drain_of_collections(failing: str) -> None:
    failures = [ValueError("once")]

    def fail_once(*arguments: Any) -> Any:
        if failures:
            raise failures.pop()
        return arguments[0]

    made: dict[str, Any] = {failing: fail_once}
    ticker = make(**made)
    _collect(ticker, 3)
    with pytest.raises(ValueError, match="once"):
        ticker.drain_collections()
    assert len(ticker.drain_collections()) == 2


def test_a_constructor_in_which_garbage_is_collected_does_no_harm() -> None:
    def make_stack(frames: Frames, truncated: bool) -> object:
        _collect(ticker, 1)
        return pair(frames, truncated)

    ticker = make(make_stack=make_stack)
    _collect(ticker, 2)
    assert len(ticker.drain_collections()) == 2
    assert len(ticker.drain_collections()) == 2, "those that came meanwhile"


def test_collections_drain_without_memory_fails_cleanly_and_the_next_works() -> None:
    testing = pytest.importorskip("_testcapi", reason="this Python comes without the module that lets allocations fail")
    failed = 0
    for nth in range(100):
        ticker = make()
        _collect(ticker, 2)
        testing.set_nomemory(nth, nth + 1)
        try:
            ticker.drain_collections()
        except (MemoryError, SystemError):
            failed += 1
        finally:
            testing.remove_mem_hooks()
        ticker.drain_collections()
        _collect(ticker, 1)
        assert len(ticker.drain_collections()) == 1
    assert 0 < failed < 100


def test_what_the_collector_does_not_say_is_refused() -> None:
    ticker: Any = make()
    wrong_calls: list[tuple[Any, ...]] = [(), ("start",), (1, {}), ("start", 1), ("start", {}, 1)]
    for wrong in wrong_calls:
        with pytest.raises(TypeError):
            ticker.on_gc_event(*wrong)
    ticker.on_gc_event("start", {})
    with pytest.raises(TypeError):
        ticker.on_gc_event("stop", {"generation": "young"})
    with pytest.raises(OverflowError):
        ticker.on_gc_event("stop", {"generation": 1 << 80})


def _collect(ticker: walker.Ticker[Any, Any], count: int) -> None:
    """Report `count` collections to the ticker."""
    for _ in range(count):
        ticker.on_gc_event("start", {"generation": 0})
        ticker.on_gc_event("stop", {"generation": 0})
