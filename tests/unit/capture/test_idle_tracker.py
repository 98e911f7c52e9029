"""The contract of idle trackers: which threads of a snapshot they report. Both implementations run it."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from splunk_profiler.capture.idle_tracker import IdleTracker, make_idle_tracker
from splunk_profiler.capture.walker import choose_walker
from splunk_profiler.raw import RawThread

STACK, OTHER_STACK = object(), object()
Make = Callable[[], IdleTracker]


@pytest.fixture(params=["native", "portable"])
def make(request: pytest.FixtureRequest) -> Make:
    if choose_walker(request.param).name != request.param:
        pytest.skip("no native walker")
    return lambda: make_idle_tracker(native=request.param == "native")


def thread(
    key: int, stack: object = STACK, context: object = None, labels: object = None, *, cpu_ns: int = 5, state: int = 0
) -> Any:
    return RawThread(key, 0, 0, stack, context, labels, cpu_ns, state)


def keys(changed: Any) -> list[int]:
    return [told.key for told in changed]


def test_idle_thread_is_reported_once_more_and_then_when_it_changes(make: Make) -> None:
    tracker = make()
    first, second = thread(1), thread(2)
    assert tracker.find_changes((first, second)) == ([first, second], [])
    # The first snapshot in which they are known to be idle.
    assert tracker.find_changes((first, second)) == ([first, second], [])
    for _ in range(3):
        assert tracker.find_changes((first, second)) == ([], [])
    moved = thread(2, OTHER_STACK)
    (told,), ended = tracker.find_changes((first, moved))
    assert told is moved
    assert not ended
    assert tracker.find_changes((moved,)) == ([], [1])


@pytest.mark.parametrize("field", ["stack", "context", "labels"])
def test_a_thread_with_another_stack_context_or_labels_has_changed(make: Make, field: str) -> None:
    tracker = make()
    before = thread(1, *[object()] * 3)
    for _ in range(3):
        tracker.find_changes((before,))
    after = before._replace(**{field: object()})
    assert keys(tracker.find_changes((after,))[0]) == [1]
    assert tracker.find_changes((after,))[0] == []


def test_a_thread_that_has_used_cpu_time_is_reported_each_time(make: Make) -> None:
    tracker = make()
    for cpu_ns in range(1, 6):
        used = thread(1, cpu_ns=cpu_ns)
        assert tracker.find_changes((used,)) == ([used], [])


@pytest.mark.parametrize("state", [1, 2])
def test_a_thread_that_does_not_wait_is_reported_whatever_its_cpu_time(make: Make, state: int) -> None:
    tracker = make()
    for _ in range(4):
        assert keys(tracker.find_changes((thread(1, state=state), thread(2)))[0])[0] == 1
    assert tracker.find_changes((thread(1), thread(2))) == ([thread(1)], [])


def test_a_thread_whose_state_is_not_known_rests_if_its_clock_does(make: Make) -> None:
    tracker = make()
    unknown = thread(1)._replace(state=None)
    assert [len(tracker.find_changes((unknown,))[0]) for _ in range(4)] == [1, 1, 0, 0]


def test_a_thread_whose_clock_cannot_be_read_any_more_rests(make: Make) -> None:
    tracker = make()
    for cpu_ns in (5, 5, 0):
        tracker.find_changes((thread(1, cpu_ns=cpu_ns),))
    assert tracker.find_changes((thread(1),)) == ([], [])


def test_after_clear_all_threads_are_reported_and_none_has_ended(make: Make) -> None:
    tracker = make()
    for cpu_ns in range(4):
        tracker.find_changes((thread(1), thread(2), thread(3, cpu_ns=1 + cpu_ns)))
    tracker.clear()
    tracker.clear()
    told, ended = tracker.find_changes((thread(2), thread(3, cpu_ns=8)))
    assert (keys(told), ended) == ([2, 3], [])
    assert keys(tracker.find_changes((thread(2), thread(3, cpu_ns=9)))[0]) == [2, 3]  # now 2 is known to be idle
    assert keys(tracker.find_changes((thread(2), thread(3, cpu_ns=10)))[0]) == [3]


def test_what_a_watch_holds_goes_with_the_thread_and_with_the_watch(make: Make) -> None:
    class Thing:
        tracker: Any = None

    tracker = make()

    def look(tracker: IdleTracker, key: int) -> weakref.ref[Thing]:
        context = Thing()
        for _ in range(3):
            tracker.find_changes((thread(key, context=context),))
        return weakref.ref(context)

    first = look(tracker, 1)
    assert first() is not None
    second = look(tracker, 2)
    assert first() is None
    tracker.clear()
    assert second() is None
    third = look(tracker, 3)
    last = third()
    assert last is not None
    last.tracker = tracker
    del tracker, last
    gc.collect()
    assert third() is None


Seen = tuple[int, bool, int, int, int]  # key, whether it uses time, which stack, which context, state


@given(
    st.lists(
        st.none()
        | st.lists(
            st.tuples(
                st.integers(1, 8), st.booleans(), st.integers(0, 1), st.integers(0, 1), st.sampled_from([0, 0, 0, 1, 2])
            ),
            max_size=6,
        ),
        max_size=12,
    )
)
def test_both_trackers_report_the_same(history: list[list[Seen] | None]) -> None:
    if choose_walker("native").name != "native":
        pytest.skip("no native walker")
    things = [object(), object()]
    watches = [make_idle_tracker(native=native) for native in (True, False)]
    for number, snapshot in enumerate(history):
        if snapshot is None:
            for watch in watches:
                watch.clear()
            continue
        threads = tuple(
            thread(key, things[stack], things[context], cpu_ns=number if uses else 0, state=state)
            for key, (_, uses, stack, context, state) in sorted({one[0]: one for one in snapshot}.items())
        )
        assert watches[0].find_changes(threads) == watches[1].find_changes(threads)


@pytest.fixture
def native() -> Callable[..., Any]:
    walker = pytest.importorskip("splunk_profiler._walker", reason="the native walker is not built")
    return walker.IdleTracker  # type: ignore[no-any-return]


def test_wrong_input_is_refused_and_the_next_snapshot_is_reported_whole(native: Callable[..., Any]) -> None:
    tracker = native()
    seen = tuple(thread(key, state=2) for key in (1, 2, 3))
    wrong: list[tuple[Any, type[Exception]]] = [
        (seen[::-1], ValueError),
        ((seen[0], seen[0]), ValueError),
        ((seen[0], (2,)), TypeError),
        ((seen[0], 2), TypeError),
        ((seen[0]._replace(key="1"),), TypeError),
        ((seen[0]._replace(key=-1),), OverflowError),
        ((seen[0]._replace(cpu_ns="1"),), TypeError),
        ((seen[0]._replace(cpu_ns=2**70),), OverflowError),
        ((seen[0]._replace(state="1"),), TypeError),
        ([seen[0]], TypeError),
        (None, TypeError),
    ]
    for threads, error in wrong:
        tracker.find_changes(seen)
        with pytest.raises(error):
            tracker.find_changes(threads)
        assert keys(tracker.find_changes(seen)[0]) == [1, 2, 3]
    for arguments in ((), (seen, 1), (seen, "long")):
        with pytest.raises(TypeError):
            tracker.find_changes(*arguments)
    with pytest.raises(TypeError):
        tracker.clear(1)


def test_many_threads_are_reported_as_few_are(native: Callable[..., Any]) -> None:
    tracker = native()
    seen = tuple(thread(key) for key in range(1, 1001))
    for expected in (1000, 1000, 0, 0):
        assert len(tracker.find_changes(seen)[0]) == expected
    assert tracker.find_changes(seen[:1])[1] == [*range(2, 1001)]


def test_tracker_without_memory_fails_cleanly_and_reports_all_next_time(native: Callable[..., Any]) -> None:
    testing = pytest.importorskip("_testcapi", reason="this Python comes without the module that lets allocations fail")
    failed = 0
    seen = tuple(thread(key) for key in range(1, 6))
    for nth in range(100):
        tracker = native()
        for _ in range(3):
            tracker.find_changes(seen)
        testing.set_nomemory(nth, nth + 1)
        try:
            tracker.find_changes(seen[1:])
        except (MemoryError, SystemError):
            failed += 1
        finally:
            testing.remove_mem_hooks()
        told = keys(tracker.find_changes(seen)[0])
        assert told in ([1, 2, 3, 4, 5], [1])
    assert 0 < failed < 100
