"""The text body, field by field and against golden files."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from splunk_profiler.formats.text import BodyFormatter
from splunk_profiler.model import Frame, SpanRef, Stack
from splunk_profiler.samples import Sample, Thread, ThreadSample

GOLDEN = Path(__file__).parents[2] / "golden"

NOW_NS = 20_000_000_000
STACK = Stack(
    (
        Frame("shop.cart.Cart.Line", "total", "/srv/shop/cart.py", 41),
        Frame("shop.cart.Cart.checkout.<locals>", "<lambda>", "/srv/shop/cart.py", 40),
        Frame("unknown", "<module>", "<string>", 1),
        Frame("shop.generated", "step", "unknown", None),
    ),
    truncated=False,
)
SAMPLE = ThreadSample(
    Thread(49, "pool-1-thread-30", 0x7FDE4D00C000, 0xBA03),
    STACK,
    cpu_ns=120_000,
    start_ns=NOW_NS - 8_500_000_000,
    os_priority=0,
    running=True,
    waiting_on="",
)


def _sample(**changes: object) -> Sample:
    thread = SAMPLE._replace(**changes)  # type: ignore[arg-type]
    return Sample(1, 1_000_000_000, thread, SpanRef(1, 2, 1), instant_ns=NOW_NS)


def _body(formatter: BodyFormatter | None = None, /, **changes: object) -> str:
    return b"".join((formatter or BodyFormatter()).parts(_sample(**changes))).decode("utf-8")


@pytest.mark.parametrize(
    ("golden", "changes"),
    [
        ("running.txt", {}),
        ("waiting_on_condition.txt", {"running": False, "waiting_on": "condition"}),
        ("waiting.txt", {"running": False, "os_priority": 10}),
        ("nothing_known.txt", {"cpu_ns": 0, "start_ns": None, "thread": Thread(1, "worker", 0x7F00, 0)}),
        ("hostile_name.txt", {"thread": Thread(7, 'a "b"\n\tat x.y(z:1)\r\\ \u2028\udc80 🐍', 1, 2)}),
    ],
)
def test_a_body_is_what_the_golden_file_says(golden: str, changes: dict[str, object]) -> None:
    assert _body(**changes) == (GOLDEN / golden).read_text("utf-8")


def test_the_age_of_a_thread_grows_though_nothing_else_changes() -> None:
    formatter, first = BodyFormatter(), _sample()
    head, _ = formatter.parts(first)
    for age_s in (1, 2, 100):
        later, _ = formatter.parts(first._replace(instant_ns=NOW_NS + age_s * 10**9))
        assert later == head.replace(b"elapsed=8.50s", b"elapsed=%.2fs" % (8.5 + age_s))
    waiting, _ = formatter.parts(_sample(running=False))
    assert b"elapsed=8.50s" in waiting
    assert waiting != head


def test_a_thread_without_frames_has_its_two_lines() -> None:
    assert len(_body(stack=Stack((), truncated=False)).splitlines()) == 2


def test_a_name_of_any_characters_stays_on_one_line_of_utf_8() -> None:
    every = "".join(map(chr, [*range(0x300), 0x2028, 0x2029, 0xD800, 0xDFFF, 0xFEFF, 0x1F600]))
    text = _body(thread=Thread(1, every, 1, 1))
    assert len(text.splitlines()) == 2 + len(STACK.frames)
    assert '" #1 prio=0 ' in text.splitlines()[0]


def test_texts_of_a_thousand_deep_stacks_are_kept_in_bounded_memory() -> None:
    frames = [Frame("shop.cart.Cart", f"step_{line}", "/srv/shop/cart.py", line) for line in range(1000)]
    formatter = BodyFormatter()
    _body(formatter, stack=Stack(tuple(frames), truncated=False))  # texts of frames are kept as well
    tracemalloc.start()
    try:
        for frame in frames:
            assert _body(formatter, stack=Stack((frame, *frames), truncated=False)).count("\n") == 2 + 1 + len(frames)
        assert tracemalloc.get_traced_memory()[0] < 6 << 20
    finally:
        tracemalloc.stop()


def test_texts_of_ever_new_stacks_of_one_frame_are_kept_in_bounded_memory() -> None:
    frame = Frame("shop.cart.Cart", "step", "/srv/shop/cart.py", 1)
    formatter = BodyFormatter()
    tracemalloc.start()
    try:
        for _ in range(20_000):
            _body(formatter, stack=Stack((frame,), truncated=False))
        assert tracemalloc.get_traced_memory()[0] < 1 << 20
    finally:
        tracemalloc.stop()


def test_text_of_a_stack_is_made_once_however_many_services_there_are() -> None:
    services = [(BodyFormatter(), [Stack(STACK.frames * 10, truncated=False) for _ in range(33)]) for _ in range(60)]
    first, *others = ([formatter.encode_stack(one) for formatter, stacks in services for one in stacks] for _ in "ab")
    assert all(one is other for one, other in zip(first, *others, strict=True))


def test_texts_of_many_services_with_large_stacks_share_a_bounded_memory() -> None:
    formatters, large = [BodyFormatter() for _ in range(20)], Frame("shop", "step" * 25_000, "shop.py", 1)
    tracemalloc.start()
    try:
        for formatter in formatters:
            for _ in range(80):
                formatter.encode_stack(Stack((large,), truncated=False))
        assert 16 << 20 < tracemalloc.get_traced_memory()[0] < 40 << 20
    finally:
        tracemalloc.stop()
