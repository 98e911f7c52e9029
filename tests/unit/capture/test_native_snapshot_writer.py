"""The native writer of snapshots, with real threads: it writes what the portable one writes, and no error harms it."""

from __future__ import annotations

import gc
import operator
import weakref
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from written_snapshots import Numbers, crew_at_work, decode

from splunk_profiler.capture.snapshot_writer import SnapshotWriter, writer_type
from splunk_profiler.capture.walker import Ticker, choose_walker, make_ticker
from splunk_profiler.raw import RawSnapshot
from splunk_profiler.stream.writer import Floors

ALL_VALID = Floors(1, 1, 1, 1)
SPAN: ContextVar[Any] = ContextVar("span")
LABELS: ContextVar[Any] = ContextVar("labels")


@pytest.fixture
def ticker() -> Ticker:
    choice = choose_walker("native")
    if choice.name != "native":
        pytest.skip("no native walker")
    return make_ticker(choice, SPAN, lambda _ident: None, 100, labels_var=LABELS)


def native_writer(numbers: Numbers | None = None, **more: Any) -> SnapshotWriter:
    return writer_type(native=True)(**{**(numbers or Numbers()).callables(), **more})


def capture(ticker: Ticker) -> RawSnapshot:
    ticker.capture()
    (raw,) = ticker.drain(0)
    return raw


VALUES = [object() for _ in range(3)]
ORDERS: dict[str, Callable[[], object] | None] = {
    "works": lambda: sum(range(20_000)),
    "rests": lambda: None,
    "deeper": lambda: "deeper",
    "ends": None,
    **{f"span {number}": partial(SPAN.set, value) for number, value in enumerate(VALUES)},
    **{f"labels {number}": partial(LABELS.set, value) for number, value in enumerate(VALUES)},
    "no span": lambda: SPAN.set(None),
}
orders = st.dictionaries(st.integers(1, 5), st.sampled_from(sorted(ORDERS)), max_size=3)


@settings(max_examples=60)
@given(st.lists(st.tuples(orders, st.booleans()), min_size=1, max_size=12))
def test_both_writers_write_the_same_of_real_threads(steps: list[tuple[dict[int, str], bool]]) -> None:
    choice = choose_walker("native")
    if choice.name != "native":
        pytest.skip("no native walker")
    ticker = make_ticker(choice, SPAN, lambda _ident: None, 100, labels_var=LABELS)
    numbers = Numbers()
    native, portable = (writer_type(native=native)(**numbers.callables(), reads_nice=True) for native in (True, False))
    with crew_at_work() as crew:
        for orders_now, is_complete in steps:
            for member, name in orders_now.items():
                crew.tell(member, ORDERS[name])
            raw = capture(ticker)
            assert native.write(raw, is_complete, ALL_VALID) == portable.write(raw, is_complete, ALL_VALID)


def test_numbers_are_asked_for_once_while_they_are_valid(ticker: Ticker) -> None:
    numbers = Numbers()
    writer = native_writer(numbers)
    with crew_at_work() as crew:
        crew.tell(1, lambda: (SPAN.set(VALUES[0]), LABELS.set(VALUES[1])))

        def asked(floors: Floors, *, is_complete: bool = True) -> dict[str, int]:
            numbers.asked.clear()
            raw = capture(ticker)
            found = decode(writer.write(raw, is_complete, floors)[0])
            (place,) = (place for place, one in enumerate(raw.threads) if one.context is VALUES[0])
            if is_complete:
                assert found.threads[place].span
                assert found.threads[place].labels
            kinds = [kind for kind, _ in numbers.asked]
            return {kind: kinds.count(kind) for kind in kinds}

        count = len(capture(ticker).threads)
        assert asked(ALL_VALID) == {"thread": count, "stack": count, "span": 1, "labels": 1}
        moved = asked(ALL_VALID)  # this thread
        assert moved.get("thread", 0) <= 1
        assert not {"span", "labels"} & moved.keys()
        none_valid = (1 << 32) - 1
        assert asked(ALL_VALID._replace(threads=none_valid))["thread"] == count
        assert asked(ALL_VALID._replace(stacks=none_valid))["stack"] == count
        assert asked(ALL_VALID._replace(spans=none_valid))["span"] == 1
        assert asked(ALL_VALID._replace(labels=none_valid))["labels"] == 1


@pytest.mark.parametrize("kind", ["thread", "stack", "span", "labels"])
@pytest.mark.parametrize("answer", [ValueError("no"), None, -1, 1 << 32, 1 << 64])
def test_number_that_cannot_be_had_fails_this_record_and_not_the_next(ticker: Ticker, kind: str, answer: Any) -> None:
    numbers = Numbers()
    good = numbers.callables()[f"{kind}_number"]
    answers = [answer]

    def bad_once(value: Any) -> Any:
        if not answers:
            return good(value)
        found = answers.pop()
        if isinstance(found, Exception):
            raise found
        return found

    writer = native_writer(numbers, **{f"{kind}_number": bad_once})
    with crew_at_work() as crew:
        crew.tell(1, lambda: (SPAN.set(VALUES[0]), LABELS.set(VALUES[1])))
        with pytest.raises((ValueError, TypeError, OverflowError)):
            writer.write(capture(ticker), False, ALL_VALID)
        raw = capture(ticker)
        encoded, ended = writer.write(raw, False, ALL_VALID)
    assert len(decode(encoded).threads) == len(raw.threads)
    assert not ended


def test_record_after_a_failed_one_says_who_has_ended_since_the_one_before(ticker: Ticker) -> None:
    fails = False

    def stack_number(_stack: Any) -> int:
        if fails:
            raise ValueError("no stack")
        return 1

    writer = native_writer(stack_number=stack_number)
    with crew_at_work() as crew:
        crew.tell(1, lambda: None)
        raw = capture(ticker)
        (key,) = [one.key for one in raw.threads if one.python_thread and one.python_thread.name == "member 1"]
        writer.write(raw, False, ALL_VALID)
        crew.tell(1, None)
        fails = True
        with pytest.raises(ValueError, match="no stack"):
            writer.write(capture(ticker), False, ALL_VALID)
        fails = False
        encoded, ended = writer.write(capture(ticker), True, ALL_VALID)
    assert (ended, decode(encoded).ended) == ([key], [key])


def test_callable_that_captures_and_writes_itself_does_no_harm(ticker: Ticker) -> None:
    numbers = Numbers()
    inner: list[Any] = []

    def stack_number(stack: Any) -> int:
        if len(inner) < 3:
            inner.append(None)
            inner.append(writer.write(capture(ticker), False, ALL_VALID))
        return int(numbers.callables()["stack_number"](stack))

    writer = native_writer(numbers, stack_number=stack_number)
    for _ in range(3):
        raw = capture(ticker)
        assert decode(writer.write(raw, True, ALL_VALID)[0]).idle == 0
    assert len(inner) >= 2


def test_wrong_arguments_are_refused(ticker: Ticker) -> None:
    writer: Any = native_writer()
    raw = capture(ticker)
    for arguments in [
        (),
        (raw,),
        (raw, True),
        (raw, True, (1, 1, 1)),
        (raw, True, (1, 1, 1, "1")),
        (None, True, ALL_VALID),
    ]:
        with pytest.raises(TypeError):
            writer.write(*arguments)
    with pytest.raises(TypeError, match="a snapshot of the native walker is needed, not one with threads in a tuple"):
        writer.write(raw._replace(threads=tuple(raw.threads)), True, ALL_VALID)
    with pytest.raises(TypeError, match="span_number must be callable"):
        native_writer(span_number=None)
    with pytest.raises(TypeError):
        writer_type(native=True)()  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        type(raw.threads)()


def test_threads_of_a_snapshot_are_a_sequence(ticker: Ticker) -> None:
    threads = capture(ticker).threads
    assert [one.key for one in threads] == [threads[number].key for number in range(len(threads))]
    assert threads[-1].key == list(threads)[-1].key
    for number in (len(threads), -len(threads) - 1):
        with pytest.raises(IndexError):
            threads[number]


class Held:
    """Something that may refer to what holds it."""

    holder: Any = None


def test_snapshot_outlives_its_ticker_and_releases_all() -> None:
    walker = pytest.importorskip("splunk_profiler._walker", reason="the native walker is not built")
    own = walker.Ticker(
        context_var=SPAN, max_depth=9, make_frame=lambda *_: Held(), make_stack=lambda frames, _: frames, ring_size=2
    )
    raw = capture(own)
    ref = weakref.ref(raw.threads[0].stack[0])
    del own
    gc.collect()
    assert ref() is not None
    assert len(raw.threads) > 0
    del raw
    gc.collect()
    assert ref() is None


def test_what_a_writer_holds_goes_with_the_thread_and_with_the_writer(ticker: Ticker) -> None:
    writers = [native_writer(thread_number=lambda raw: raw.key, span_number=lambda _context: 0)]

    def hold(context: Held) -> None:
        SPAN.set(context)

    with crew_at_work() as crew:

        def look(member: int) -> weakref.ref[Held]:
            context = [Held()]
            ref = weakref.ref(context[0])
            crew.tell(member, lambda: hold(context.pop()))
            writers[0].write(capture(ticker), False, ALL_VALID)
            return ref

        first = look(1)
        crew.tell(1, None)
        assert first() is not None
        second = look(2)
        gc.collect()
        assert first() is None
        last = second()
        assert last is not None
        last.holder = writers[0]
        crew.tell(2, None)
        del last
        writers.clear()
        gc.collect()
        assert second() is None


def test_writer_without_memory_fails_cleanly_and_the_next_record_is_whole() -> None:
    testing = pytest.importorskip("_testcapi", reason="this Python comes without the module that lets allocations fail")
    walker = pytest.importorskip("splunk_profiler._walker", reason="the native walker is not built")
    # Without code in Python, which has faults of its own where memory is short.
    own = walker.Ticker(context_var=SPAN, max_depth=9, make_frame=slice, make_stack=operator.is_, ring_size=9)
    numbers = {"thread_number": len, "stack_number": int, "span_number": len, "labels_number": len}
    failed = 0
    with crew_at_work() as crew:
        for member in range(1, 4):
            crew.tell(member, lambda: SPAN.set((1, 2, 3)))
        for nth in range(100):
            writer = walker.SnapshotWriter(**numbers)
            writer.write(capture(own), False, ALL_VALID)
            raw = capture(own)
            testing.set_nomemory(nth, nth + 1)
            try:
                writer.write(raw, True, (10, 10, 10, 10))
            except MemoryError:
                failed += 1
            finally:
                testing.remove_mem_hooks()
            raw = capture(own)
            assert len(decode(writer.write(raw, True, ALL_VALID)[0]).threads) == len(raw.threads)
    assert 0 < failed < 100
