"""The user's labels: scope, inheritance, and the limits of readers."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from splunk_profiler import labels
from splunk_profiler.user_labels.labels import (
    CURRENT_LABELS,
    LABEL_PUBLISHER,
    MAX_KEY_BYTES,
    MAX_LABELS,
    MAX_VALUE_BYTES,
    PUBLISHED_LABELS,
    RESERVED_NAMES,
    ActiveLabels,
    LabelPublisher,
    encode,
)


def in_force() -> dict[str, str]:
    current = CURRENT_LABELS.get()
    return {} if current is None else current.pairs


def kept_sets(current: ActiveLabels | None) -> int:
    return 0 if current is None else 1 + kept_sets(current.outer)


def test_inner_labels_are_added_and_override_and_the_outer_ones_come_back() -> None:
    with labels(route="/", user="a"):
        with labels(route="/checkout", step=2):
            assert in_force() == {"route": "/checkout", "user": "a", "step": "2"}
        assert in_force() == {"route": "/", "user": "a"}
    assert in_force() == {}


def test_labels_end_with_an_exception_and_let_it_through() -> None:
    with pytest.raises(KeyError), labels(route="/"):
        raise KeyError
    assert in_force() == {}


def test_one_object_may_be_entered_again_while_it_is_in_force() -> None:
    mark = labels(route="/")
    with mark, mark:
        assert in_force() == {"route": "/"}
    with labels(user="a"), mark:
        assert in_force() == {"user": "a", "route": "/"}
    assert in_force() == {}


def test_tasks_copied_contexts_and_to_thread_inherit_and_keep_their_own() -> None:
    async def task(name: str) -> list[dict[str, str]]:
        seen = [in_force()]
        with labels(task=name):
            await asyncio.sleep(0)
            seen += [in_force(), await asyncio.to_thread(in_force)]
        return [*seen, in_force()]

    async def main() -> list[list[dict[str, str]]]:
        with labels(route="/"):
            return list(await asyncio.gather(task("a"), task("b")))

    for name, seen in zip("ab", asyncio.run(main()), strict=True):
        own = {"route": "/", "task": name}
        assert seen == [{"route": "/"}, own, own, {"route": "/"}]
    with labels(route="/"):
        assert contextvars.copy_context().run(in_force) == {"route": "/"}


def test_job_that_reschedules_itself_keeps_nothing_of_its_earlier_turns() -> None:
    copied = contextvars.copy_context()

    def poll() -> None:
        nonlocal copied
        with labels(job="poll"):
            copied = contextvars.copy_context()  # as `call_later` and `create_task` do

    with labels(service="shop"):
        poll()
    for _ in range(100):
        copied.run(poll)
    last = copied[CURRENT_LABELS]
    assert last is not None
    assert last.pairs == {"service": "shop", "job": "poll"}
    assert kept_sets(last) <= 2


def test_generator_that_is_replaced_in_a_block_takes_no_labels_away() -> None:
    def read() -> Iterator[int]:
        with labels(step="read"):
            yield 1
            yield 2

    rows = read()
    for number in range(3):
        with labels(message=number):
            rows = read()  # ends the one before
            assert in_force() == {"message": str(number)}
            next(rows)
            assert in_force() == {"message": str(number), "step": "read"}
        assert in_force() == {}
    rows.close()  # type: ignore[attr-defined]
    assert in_force() == {}


@pytest.mark.parametrize("waits", [True, False])
def test_labels_end_where_the_loop_ends_an_asynchronous_generator(waits: bool) -> None:
    closed = asyncio.Queue[None]()

    async def produce() -> AsyncIterator[int]:
        try:
            with labels(step="read"):
                yield 1
                yield 2
        finally:
            closed.put_nowait(None)

    async def take_first() -> None:
        async for _ in produce():
            break  # it ends later, in a task with a copy of the context
        if waits:
            await closed.get()

    async def consume() -> None:
        for number in range(100):
            with labels(message=number):
                await take_first()
                assert in_force() == {"message": str(number), "step": "read"}
            assert in_force() == {}
        for _ in range(100 if waits else 0):
            await take_first()
        assert kept_sets(CURRENT_LABELS.get()) <= 2

    asyncio.run(consume())


def test_block_that_ends_in_another_context_takes_no_labels_away() -> None:
    # As a dependency of FastAPI does, whose two halves run in copies of the request's context.
    dependency = labels(dependency="session")
    with labels(service="shop"):
        with labels(route="/"):
            contextvars.copy_context().run(dependency.__enter__)
            contextvars.copy_context().run(dependency.__exit__, None, None, None)
            assert in_force() == {"service": "shop", "route": "/"}
        assert in_force() == {"service": "shop"}


def test_block_ends_after_its_object_has_ended_another_in_a_copied_context() -> None:
    mark = labels(step="read")

    def read() -> Iterator[int]:
        with mark:
            yield 1

    rows = read()
    contextvars.Context().run(next, rows)
    with labels(route="/"):
        with mark:
            contextvars.copy_context().run(next, rows, None)
            assert in_force() == {"route": "/", "step": "read"}
        assert in_force() == {"route": "/"}
        with mark:
            rows = read()
            next(rows)
            contextvars.copy_context().run(next, rows, None)
        assert in_force() == {"route": "/"}


def test_a_new_thread_begins_as_contextvars_do() -> None:
    seen: list[dict[str, str]] = []
    with labels(route="/"):
        thread = threading.Thread(target=lambda: seen.append(in_force()))
        thread.start()
        thread.join()
        inherited = getattr(sys.flags, "thread_inherit_context", 0)
    assert seen == [{"route": "/"} if inherited else {}]


def test_functions_and_coroutines_are_decorated_and_generators_refused() -> None:
    @labels(route="/")
    def plain(value: int) -> tuple[int, dict[str, str]]:
        return value, in_force()

    @labels(route="/async")
    async def coroutine() -> dict[str, str]:
        await asyncio.sleep(0)
        return in_force()

    assert plain(3) == (3, {"route": "/"})
    assert plain.__name__ == "plain"
    assert asyncio.run(coroutine()) == {"route": "/async"}
    assert in_force() == {}

    def generator() -> Iterator[int]:
        yield 1

    with pytest.raises(TypeError, match="inside it"):
        labels(route="/")(generator)


def test_values_become_text_whatever_their_class_does() -> None:
    class Broken:
        def __str__(self) -> str:
            raise RuntimeError

    class OtherText(str):
        def __str__(self) -> str:
            return self

        def __len__(self) -> int:
            raise RuntimeError

    with labels(number=1.5, nothing=None, broken=Broken(), other=OtherText("acme")):
        assert in_force() == {"number": "1.5", "nothing": "None", "broken": "<Broken>", "other": "acme"}
        assert {type(value) for value in in_force().values()} == {str}


def collect(pairs: dict[str, str]) -> tuple[dict[bytes, bytes], list[str]]:
    kinds: list[str] = []
    return dict(encode(pairs, lambda kind, _text: kinds.append(kind))), kinds


def test_what_fits_is_published_as_it_is_and_nothing_is_logged() -> None:
    assert collect({"route": "/checkout", "empty": ""}) == ({b"route": b"/checkout", b"empty": b""}, [])


def test_text_is_cut_before_the_character_that_does_not_fit() -> None:
    encoded, kinds = collect({"k" * 24 + "é": "v" * 52 + "ü"})
    assert encoded == {b"k" * 24: b"v" * 52}
    assert kinds == ["long", "long"]


def test_text_is_cut_at_a_nul_and_a_name_that_begins_with_one_is_dropped() -> None:
    encoded, kinds = collect({"a\0b": "c\0d", "\0": "x"})
    assert encoded == {b"a": b"c"}
    assert set(kinds) == {"nul", "empty"}


def test_names_that_are_equal_once_cut_are_one_and_the_last_counts() -> None:
    assert collect({"k" * 25 + "1": "a", "k" * 25 + "2": "b"})[0] == {b"k" * 25: b"b"}


def test_names_of_the_profiler_and_more_than_seven_are_dropped() -> None:
    encoded, kinds = collect({**dict.fromkeys(RESERVED_NAMES, "x"), **{f"k{number}": "v" for number in range(9)}})
    assert list(encoded) == [f"k{number}".encode() for number in range(7)]
    assert set(kinds) == {"reserved", "many"}


@given(st.dictionaries(st.text(max_size=40), st.text(max_size=80), max_size=12))
def test_whatever_is_given_the_result_is_within_the_limits(pairs: dict[str, str]) -> None:
    encoded = encode(pairs, lambda _kind, _text: None)
    assert len(encoded) <= MAX_LABELS
    assert len({key for key, _ in encoded}) == len(encoded)
    for key, value in encoded:
        assert 0 < len(key) <= MAX_KEY_BYTES
        assert len(value) <= MAX_VALUE_BYTES
        assert b"\0" not in key + value
        assert key.decode() not in RESERVED_NAMES
        value.decode()


def test_each_kind_of_cut_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    outlet = LabelPublisher()
    for _ in range(3):
        outlet.warn_once("long", "the value is cut")
        outlet.warn_once("nul", "the name is cut")
    messages = [record.getMessage() for record in caplog.records]
    assert messages == ["the value is cut (logged once)", "the name is cut (logged once)"]
    assert {record.levelno for record in caplog.records} == {logging.WARNING}


def test_an_open_publisher_gets_every_change_and_encodes_sets_once() -> None:
    made: list[Any] = []
    seen: list[Any] = []

    def make(pairs: Any) -> Any:
        made.append(pairs)
        return dict(pairs)

    def put(variable: contextvars.ContextVar[Any], value: Any) -> None:
        variable.set(value)
        seen.append(PUBLISHED_LABELS.get())

    mark = labels(route="/")
    with labels(early="yes"):
        LABEL_PUBLISHER.open(make, put)
        try:
            assert seen == [{b"early": b"yes"}]
            with mark:
                assert seen[-1] == {b"early": b"yes", b"route": b"/"}
            assert seen[-1] == {b"early": b"yes"}
            contextvars.Context().run(mark.__enter__)
            contextvars.Context().run(mark.__enter__)
            with labels(late="yes"):
                LABEL_PUBLISHER.close()
            assert PUBLISHED_LABELS.get() is None
        finally:
            LABEL_PUBLISHER.close()
    assert made.count(((b"route", b"/"),)) == 1
    assert PUBLISHED_LABELS.get() is None


def test_labels_load_nothing_but_themselves() -> None:
    program = (
        "import sys\n"
        "from splunk_profiler import labels\n"
        "with labels(route='/'): pass\n"
        "ours = {name for name in sys.modules if name.startswith('splunk_profiler.')}\n"
        "ours = {name.removeprefix('splunk_profiler.') for name in ours}\n"
        "assert ours == {'activation', 'user_labels', 'user_labels.labels'}, ours\n"
        "assert not {'logging', 'opentelemetry', 'inspect'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-S", "-c", program], check=True, timeout=60)
