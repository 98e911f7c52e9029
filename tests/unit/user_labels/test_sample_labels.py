"""The user's labels on samples: those of the thread or task at that instant, on both walkers; names and limits."""

from __future__ import annotations

import asyncio
import contextvars
import re
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from profile_factory import small_profile
from stream_feed import StreamedBuilder

from splunk_profiler import labels
from splunk_profiler.capture.walker import WalkerChoice, choose_walker, make_ticker
from splunk_profiler.formats.datadog_pprof import translate_profile
from splunk_profiler.model import Stack
from splunk_profiler.otel import spans
from splunk_profiler.otel.context_tracker import ContextTracker
from splunk_profiler.samples import Aggregate, Sample
from splunk_profiler.user_labels.label_tracker import LabelTracker
from splunk_profiler.user_labels.labels import CURRENT_LABELS, LABEL_PUBLISHER
from splunk_profiler.user_labels.sample_labels import (
    MAX_LABELS,
    MAX_NAME_CHARACTERS,
    MAX_VALUE_CHARACTERS,
    RESERVED_NAMES,
    RESERVED_PREFIXES,
    bound_labels,
    encode_for_samples,
)

HERE = threading.get_ident
PAGE = Path(__file__).parents[3] / "docs" / "configuration.md"


class Watcher:
    """A walker and a snapshot builder that read labels."""

    def __init__(self, choice: WalkerChoice) -> None:
        self.reads_the_interpreter = choice.name == "native"  # and sees labels without a listener
        self.tracker = LabelTracker()
        contexts = ContextTracker(spans.runtime_context(), spans.context_variable(), lambda: None)
        self._ticker = make_ticker(
            choice,
            spans.context_variable(),
            contexts.value_of,
            100,
            labels_var=CURRENT_LABELS,
            labels_of=self.tracker.value_of,
        )
        self._capture = StreamedBuilder(spans.span_ref, native=choice.name == "native", labels_of=encode_for_samples)

    def look(self) -> list[Sample]:
        self._ticker.capture()
        (raw,) = self._ticker.drain(0)
        return [*self._capture.snapshot(raw).samples]

    def seen(self, ident: int | None = None) -> dict[str, str]:
        """Return the labels of a thread, by default the calling one."""
        wanted = HERE() if ident is None else ident
        (found,) = [sample for sample in self.look() if sample.thread.thread.ident == wanted]
        return dict(found.labels)


@pytest.fixture(params=["native", "portable"])
def watcher(request: pytest.FixtureRequest) -> Iterator[Watcher]:
    choice = choose_walker(request.param)
    if choice.name != request.param:
        pytest.skip(f"no native walker: {choice.reason}")
    watcher = Watcher(choice)
    if request.param == "portable":
        LABEL_PUBLISHER.listener = watcher.tracker
    yield watcher
    LABEL_PUBLISHER.listener = None


def shown(**pairs: object) -> dict[str, str]:
    with labels(**pairs):
        return dict(encode_for_samples(CURRENT_LABELS.get()))


def test_each_thread_has_its_own_labels_and_none_when_they_are_over(watcher: Watcher) -> None:
    there, over = threading.Barrier(3), threading.Barrier(3)

    def work(number: int) -> None:
        with labels(worker=number), labels(step="one"):
            there.wait()
            over.wait()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    there.wait()
    try:
        found = [watcher.seen(thread.ident) for thread in threads]
        assert found == [{"worker": str(number), "step": "one"} for number in range(2)]
        assert watcher.seen() == {}
    finally:
        over.wait()
        for thread in threads:
            thread.join()
    with labels(route="/"):
        assert watcher.seen() == {"route": "/"}
        with labels(route="/checkout"):
            assert watcher.seen() == {"route": "/checkout"}
        assert watcher.seen() == {"route": "/"}
    assert watcher.seen() == {}


def test_a_task_has_its_own_labels_and_not_those_of_one_that_waits(watcher: Watcher) -> None:
    knows_contexts = watcher.reads_the_interpreter or sys.version_info >= (3, 12)
    found: dict[str, dict[str, str]] = {}

    async def inherit() -> None:
        found["inherited"] = watcher.seen()

    async def first(started: asyncio.Event, over: asyncio.Event) -> None:
        with labels(task="first"):
            started.set()
            await over.wait()
            found["first"] = watcher.seen()
            await asyncio.create_task(inherit())

    async def main() -> None:
        started, over = asyncio.Event(), asyncio.Event()
        task = asyncio.create_task(first(started, over))
        await started.wait()
        found["none"] = watcher.seen()
        with labels(task="second"):
            found["second"] = watcher.seen()
            over.set()
            await task
        found["after"] = watcher.seen()

    asyncio.run(main())
    assert found == {
        "none": {},
        "second": {"task": "second"},
        "first": {"task": "first"},
        "inherited": {"task": "first"} if knows_contexts else {},
        "after": {},
    }
    assert watcher.seen() == {}
    with labels(around="a loop that is over"):
        assert watcher.seen() == {"around": "a loop that is over"}


def test_labels_that_came_with_a_copied_context_are_seen_or_missing(watcher: Watcher) -> None:
    with labels(route="/"):
        context = contextvars.copy_context()
    found: list[dict[str, str]] = []

    def work() -> None:
        found.append(watcher.seen())
        with labels(step="query"):
            found.append(watcher.seen())
        found.append(watcher.seen())

    def run_job() -> None:
        context.run(work)
        found.append(watcher.seen())  # of a pool's thread that waits for its next job

    thread = threading.Thread(target=run_job)
    thread.start()
    thread.join()
    inherited = {"route": "/"} if watcher.reads_the_interpreter else {}
    assert found == [inherited, {"route": "/", "step": "query"}, inherited, {}]


def test_labels_around_a_block_that_a_generator_outlives_are_seen(watcher: Watcher) -> None:
    def read() -> Iterator[int]:
        with labels(step="read"):
            yield 1

    def work() -> list[dict[str, str]]:
        found = []
        with labels(route="/"):
            rows = read()
            with labels(message=1):
                next(rows)
                found.append(watcher.seen())
            found.append(watcher.seen())
            next(rows, None)
            found.append(watcher.seen())
            with labels(message=2):
                rows = read()
                next(rows)
        return [*found, watcher.seen()]

    around = {"route": "/"}
    expected = [around | {"message": "1", "step": "read"}, around, around, {}]
    assert work() == expected
    with labels(route="of the copied context"):
        copied = contextvars.copy_context()
    inherited = {"route": "of the copied context"} if watcher.reads_the_interpreter else {}
    assert copied.run(work) == [*expected[:-1], inherited]


def test_labels_of_a_thread_that_has_ended_are_forgotten() -> None:
    tracker = LabelTracker()
    LABEL_PUBLISHER.listener = tracker
    try:
        idents: list[int] = []

        def leave_them() -> None:
            labels(route="/").__enter__()  # never left, on purpose
            idents.append(HERE())
            assert tracker.value_of(HERE()) is not None

        thread = threading.Thread(target=leave_them)
        thread.start()
        thread.join()
        assert tracker.value_of(idents[0]) is None
    finally:
        LABEL_PUBLISHER.listener = None


@pytest.mark.parametrize("name", [*sorted(RESERVED_NAMES), *(prefix + "name" for prefix in RESERVED_PREFIXES)])
def test_a_label_with_a_name_of_the_profilers_own_is_sent_under_another(name: str) -> None:
    assert shown(**{name: "mine", "route": "/"}) == {f"user.{name}": "mine", "route": "/"}


def test_all_documented_labels_of_the_profiler_are_reserved() -> None:
    table = PAGE.read_text("utf-8").partition("\n| label | what it is |\n")[2].partition("\n\n")[0]
    names = [name for row in table.splitlines() for name in re.findall(r"`([^`]+)`", row.split("|")[1])]
    assert {"trace_id", "heap.age"} <= {*names}
    assert not [name for name in names if shown(**{name: "mine"}) != {f"user.{name}": "mine"}]


def test_names_of_profiler_labels_for_datadog_are_reserved() -> None:
    own = [(name, "00f067aa0ba902b7") for name in sorted(RESERVED_NAMES)]
    sent = translate_profile(replace(small_profile(), aggregates=(Aggregate(Stack((), False), tuple(own), 1, 1, 1),)))
    assert {name for name, _ in sent.aggregates[0].labels} <= RESERVED_NAMES


def test_equal_labels_are_equal_however_they_came_about() -> None:
    with labels(a=1), labels(b=2):
        one = encode_for_samples(CURRENT_LABELS.get())
    with labels(b=2, a=1):
        assert encode_for_samples(CURRENT_LABELS.get()) == one == (("a", "1"), ("b", "2"))
    assert encode_for_samples(None) == ()


def test_what_is_beyond_the_limits_is_cut_off_and_logged() -> None:
    said: list[str] = []

    def say(kind: str, sentence: str) -> None:
        said.append(f"{kind}: {sentence}")

    found = bound_labels({"n" * 100: "v" * 200, "": "nameless"}, say)
    assert found == (("n" * MAX_NAME_CHARACTERS, "v" * MAX_VALUE_CHARACTERS),)
    assert [line.partition(":")[0] for line in said] == ["sample.long", "sample.long", "sample.empty"]
    said.clear()
    many = bound_labels({f"name{number:02}": "" for number in range(MAX_LABELS + 2)}, say)
    assert [name for name, _ in many] == [f"name{number:02}" for number in range(MAX_LABELS)]
    assert [line.partition(":")[0] for line in said] == ["sample.many"] * 2


def test_a_name_that_says_something_else_of_itself_is_taken_for_what_it_is() -> None:
    class Name(str):
        def __str__(self) -> str:
            return "trace_id"

    ((name, _),) = bound_labels({Name("route"): "/"}, lambda *_: None)
    assert (type(name), name) == (str, "route")
