"""Which threads are told of a snapshot: one contract, both kinds of watches."""

from __future__ import annotations

import fcntl
import gc
import os
import struct
import termios
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

import pytest
from hypothesis import given
from hypothesis import strategies as st

from splunk_profiler.capture import choose_walker
from splunk_profiler.changes import Told, Watch, make_watch
from splunk_profiler.portable import RawThread

PERIOD_NS = 10_000_000
STACK, OTHER_STACK = object(), object()


class Make(Protocol):
    """Makes watches of one kind."""

    def __call__(self, *, counts_rest: bool = True) -> Watch: ...


@pytest.fixture(params=["native", "portable"])
def make(request: pytest.FixtureRequest) -> Make:
    if choose_walker(request.param).name != request.param:
        pytest.skip("no native walker")
    return lambda *, counts_rest=True: make_watch(native=request.param == "native", counts_rest=counts_rest)


@contextmanager
def resting() -> Iterator[int]:
    """The native id of a thread that waits, and uses no CPU until the block is left."""
    ids: list[int] = []
    read_end, write_end = os.pipe()
    room = fcntl.fcntl(write_end, fcntl.F_GETPIPE_SZ)

    def wait() -> None:
        ids.append(threading.get_native_id())
        with suppress(BrokenPipeError):
            os.write(write_end, bytes(2 * room))

    thread = threading.Thread(target=wait)
    thread.start()
    try:
        # A full pipe says that it is inside the call, which needs no GIL; what else it might wait for is behind it.
        while _filled(read_end) < room or _state(ids[0]) != "S":
            os.sched_yield()
        yield ids[0]
    finally:
        os.close(read_end)
        thread.join()
        os.close(write_end)


def _filled(read_end: int) -> int:
    return int(struct.unpack("i", fcntl.ioctl(read_end, termios.FIONREAD, bytes(4)))[0])


def _state(native_id: int) -> str:
    return Path(f"/proc/self/task/{native_id}/stat").read_text().rpartition(")")[2].split()[0]


def thread(key: int, native_id: int, stack: object = STACK, context: object = None, labels: object = None) -> Any:
    return RawThread(key, 0, native_id, stack, context, labels)  # type: ignore[arg-type]  # any objects


def keys(changed: Any) -> list[int]:
    return [told[0].key for told in changed]


def test_a_thread_that_rests_is_told_once_more_and_then_counted_until_it_changes(make: Make) -> None:
    watch = make()
    with resting() as parked:
        first, second = thread(1, parked), thread(2, parked)
        assert keys(watch.changes((first, second), PERIOD_NS)[1]) == [1, 2]
        assert keys(watch.changes((first, second), PERIOD_NS)[1]) == [1, 2]  # the first time that it is known to rest
        for _ in range(3):
            assert watch.changes((first, second), PERIOD_NS)[1:] == ([], [])
        moved = thread(2, parked, OTHER_STACK)
        (told,), gone = watch.changes((first, moved), PERIOD_NS)[1:]
        assert told[0] is moved
        assert told[3:] == (3, 3 * PERIOD_NS)
        assert not gone
        assert watch.changes((moved,), PERIOD_NS)[2] == [(1, 4, 4 * PERIOD_NS)]


@pytest.mark.parametrize("field", ["stack", "context", "labels"])
def test_a_thread_with_another_stack_context_or_labels_has_changed(make: Make, field: str) -> None:
    watch = make()
    with resting() as parked:
        before = thread(1, parked, *[object()] * 3)
        for _ in range(3):
            watch.changes((before,), PERIOD_NS)
        after = before._replace(**{field: object()})
        assert keys(watch.changes((after,), PERIOD_NS)[1]) == [1]
        assert watch.changes((after,), PERIOD_NS)[1] == []


def test_a_thread_that_runs_is_told_each_time(make: Make) -> None:
    watch = make()
    running = thread(1, threading.get_native_id())
    cpu_ns = []
    for _ in range(5):
        process_ns, [told], gone = watch.changes((running,), PERIOD_NS)
        assert told[3:] == (0, 0)
        assert not gone
        cpu_ns.append(told[1])
        assert process_ns > 0
    assert cpu_ns == sorted(set(cpu_ns))


def test_without_counting_all_threads_are_told_with_their_priorities(make: Make) -> None:
    watch = make(counts_rest=False)
    with resting() as parked:
        for _ in range(4):
            _, told, gone = watch.changes((thread(1, parked), thread(5, threading.get_native_id())), PERIOD_NS)
            assert keys(told) == [1, 5]
            assert all(one[1] > 0 and one[2] >= 0 and one[3:] == (0, 0) for one in told)
            assert not gone
        assert watch.rested() == []


def test_what_has_rested_can_be_asked_for_after_which_all_are_told_anew(make: Make) -> None:
    watch = make()
    with resting() as parked:
        seen = thread(1, parked), thread(2, parked), thread(3, threading.get_native_id())
        for _ in range(4):
            watch.changes(seen, PERIOD_NS)
        assert watch.rested() == [(1, 2, 2 * PERIOD_NS), (2, 2, 2 * PERIOD_NS)]
        assert watch.rested() == []
        assert keys(watch.changes(seen, PERIOD_NS)[1]) == [1, 2, 3]
        assert keys(watch.changes(seen, PERIOD_NS)[1]) == [3]


def test_the_native_id_is_asked_for_where_a_thread_does_not_say_it(make: Make) -> None:
    watch = make()
    with resting():
        here = thread(1, 0)._replace(ident=threading.get_ident())
        unknown = thread(2, 0)
        for _ in range(2):
            mine, nobodys = watch.changes((here, unknown), PERIOD_NS)[1]
            assert mine[1] > 0
            assert nobodys[1] == 0


def test_what_a_watch_holds_goes_with_the_thread_and_with_the_watch(make: Make) -> None:
    class Thing:
        watch: Any = None

    watch = make()
    with resting() as parked:

        def look(watch: Watch, key: int) -> weakref.ref[Thing]:
            context = Thing()
            for _ in range(3):
                watch.changes((thread(key, parked, context=context),), PERIOD_NS)
            return weakref.ref(context)

        first = look(watch, 1)
        assert first() is not None
        second = look(watch, 2)
        assert first() is None
        last = second()
        assert last is not None
        last.watch = watch
        del watch, last
    gc.collect()
    assert second() is None


Seen = tuple[int, bool, int, int]  # key, whether it runs, which stack, which context


@given(
    st.lists(
        st.lists(st.tuples(st.integers(1, 8), st.booleans(), st.integers(0, 1), st.integers(0, 1)), max_size=6),
        max_size=12,
    )
)
def test_both_watches_tell_the_same(history: list[list[Seen]]) -> None:
    if choose_walker("native").name != "native":
        pytest.skip("no native walker")
    things = [object(), object()]
    watches = [make_watch(native=native, counts_rest=True) for native in (True, False)]
    with resting() as parked:
        for number, snapshot in enumerate(history):
            threads = tuple(
                thread(key, threading.get_native_id() if runs else parked, things[stack], things[context])
                for key, (_, runs, stack, context) in sorted({one[0]: one for one in snapshot}.items())
            )
            assert _told(watches[0], threads, number) == _told(watches[1], threads, number)
        assert watches[0].rested() == watches[1].rested()


def _told(watch: Watch, threads: tuple[Any, ...], period_ns: int) -> tuple[list[tuple[Any, ...]], list[Any]]:
    def without_clock(told: Told) -> tuple[Any, ...]:
        return told[0].key, *told[3:]

    _, changed, gone = watch.changes(threads, period_ns)
    return [without_clock(told) for told in changed], [*gone]


@pytest.fixture
def native() -> Callable[..., Any]:
    walker = pytest.importorskip("splunk_profiler._walker", reason="the native walker is not built")
    return walker.Watch  # type: ignore[no-any-return]


def test_what_is_no_snapshot_is_refused_and_the_next_one_is_told_whole(native: Callable[..., Any]) -> None:
    watch = native(lambda _: 0, counts_rest=True)
    seen = tuple(thread(key, threading.get_native_id()) for key in (1, 2, 3))
    wrong: list[tuple[Any, type[Exception]]] = [
        (seen[::-1], ValueError),
        ((seen[0], seen[0]), ValueError),
        ((seen[0], (2,)), TypeError),
        ((seen[0], 2), TypeError),
        ((seen[0]._replace(key="1"),), TypeError),
        ((seen[0]._replace(key=-1),), OverflowError),
        ((seen[0]._replace(native_id=None),), TypeError),
        ([seen[0]], TypeError),
        (None, TypeError),
    ]
    for threads, error in wrong:
        watch.changes(seen, PERIOD_NS)
        with pytest.raises(error):
            watch.changes(threads, PERIOD_NS)
        assert keys(watch.changes(seen, PERIOD_NS)[1]) == [1, 2, 3]
    for arguments in ((), (seen,), (seen, "long")):
        with pytest.raises(TypeError):
            watch.changes(*arguments)


def test_a_watch_is_made_with_somebody_to_ask(native: Callable[..., Any]) -> None:
    for arguments in ((), (1,), (None,)):
        with pytest.raises(TypeError):
            native(*arguments, counts_rest=True)
    with pytest.raises(TypeError):
        native(lambda _: 0)


def test_one_who_is_asked_may_fail_or_say_nonsense_or_use_the_watch_itself(native: Callable[..., Any]) -> None:
    answers: list[Any] = [ValueError("no"), "nonsense", None, threading.get_native_id(), 2**70, -5]

    def asked(_ident: int) -> Any:
        watch.changes((), 0)
        watch.rested()
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    watch = native(asked, counts_rest=True)
    unknown = (thread(1, 0),)
    for error in (ValueError, TypeError, TypeError):
        with pytest.raises(error):
            watch.changes(unknown, PERIOD_NS)
    (told,) = watch.changes(unknown, PERIOD_NS)[1]
    assert told[1] > 0
    assert not watch.changes((), PERIOD_NS)[1]
    for _ in range(2):
        (told,) = watch.changes(unknown, PERIOD_NS)[1]
        assert told[1] == 0


def test_many_threads_are_told_as_few_are(native: Callable[..., Any]) -> None:
    watch = native(lambda _: 0, counts_rest=True)
    with resting() as parked:
        seen = tuple(thread(key, parked) for key in range(1, 1001))
        for expected in (1000, 1000, 0, 0):
            assert len(watch.changes(seen, PERIOD_NS)[1]) == expected
        assert watch.changes(seen[:1], PERIOD_NS)[2] == [(key, 2, 2 * PERIOD_NS) for key in range(2, 1001)]


def test_wherever_memory_runs_out_a_watch_fails_cleanly_and_tells_all_the_next_time(native: Callable[..., Any]) -> None:
    testing = pytest.importorskip("_testcapi", reason="this Python comes without the module that lets allocations fail")
    failed = 0
    with resting() as parked:
        seen = tuple(thread(key, parked) for key in range(1, 6))
        for nth in range(100):
            watch = native(lambda _: 0, counts_rest=True)
            for _ in range(3):
                watch.changes(seen, PERIOD_NS)
            testing.set_nomemory(nth, nth + 1)
            try:
                watch.rested()
                watch.changes(seen[1:], PERIOD_NS)
            except (MemoryError, SystemError):
                failed += 1
            finally:
                testing.remove_mem_hooks()
            told = keys(watch.changes(seen, PERIOD_NS)[1])
            assert told in ([1, 2, 3, 4, 5], [1])
    assert 0 < failed < 100
