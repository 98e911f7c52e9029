"""Tests of the parser of call stacks."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from splunk_profiler.formats.text import escape_name
from splunk_profiler.viewer.dumps import Call, DumpError, parse

GOLDEN = Path(__file__).parents[2] / "golden"
JAVA = (
    '"pool-1-thread-30" #49 prio=5 os_prio=31 cpu=0.12ms elapsed=8.50s tid=0x00007fde4d00c000 nid=0xba03 '
    "waiting on condition  [0x000070000ba40000]\n"
    "   java.lang.Thread.State: TIMED_WAITING (sleeping)\n"
    "\tat java.lang.Thread.sleep(Native Method)\n"
    "\tat shop.Cart.total(Cart.java:41)\n"
)


def calls(*lines: str) -> tuple[Call, ...]:
    return parse(
        '"t" #1 prio=0 os_prio=0 cpu=0 elapsed=0 tid=0x0 nid=0x0 running\n   State: X\n' + "\n".join(lines)
    ).calls


def test_the_example_of_the_specification_is_understood() -> None:
    dump = parse(JAVA)
    assert dump.thread_name == "pool-1-thread-30"
    assert dump.status == "waiting on condition  [0x000070000ba40000]"
    assert dump.calls == (
        Call("java.lang.Thread", "sleep", "Native Method", None),
        Call("shop.Cart", "total", "Cart.java", 41),
    )
    assert not dump.running


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.txt")), ids=lambda path: path.stem)
def test_every_body_that_this_package_writes_is_understood(path: Path) -> None:
    text = path.read_text("utf-8")
    dump = parse(text)
    assert len(dump.calls) == sum(line.startswith("\tat ") for line in text.splitlines())
    assert dump.running == (" running\n" in text)


@given(st.text())
def test_a_thread_name_is_read_as_it_was_before_it_was_escaped(name: str) -> None:
    header = f'"{escape_name(name)}" #7 prio=0 os_prio=0 cpu=1.00ms elapsed=1.00s tid=0x1 nid=0x2 running\n'
    dump = parse(header + "   state: RUNNABLE\n")
    assert (dump.thread_name, dump.status) == (name, "running")


def test_lines_ranges_and_columns_are_understood() -> None:
    assert calls("at a.f(x.py:3)", "  b.g(y.py:3:5 1:9)", "\tat c.h(z.py:12 7)", "at d.i(unknown)") == (
        Call("a", "f", "x.py", 3),
        Call("b", "g", "y.py", 3),
        Call("c", "h", "z.py", 12),
        Call("d", "i", "unknown", None),
    )


def test_frames_with_parentheses_colons_or_angle_brackets_keep_their_names() -> None:
    assert calls("\tat m.f.<locals>.<lambda>(C:/a (copy).py:4)", "\tat unknown.<module>(<string>:1)") == (
        Call("m.f.<locals>", "<lambda>", "C:/a (copy).py", 4),
        Call("unknown", "<module>", "<string>", 1),
    )


def test_a_body_without_a_state_line_or_without_calls_is_understood() -> None:
    header = '"t" #1 prio=0 os_prio=0 cpu=0 elapsed=0 tid=0x0 nid=0x0 running'
    assert parse(f"{header}\n\tat a.f(x.py:1)").calls == (Call("a", "f", "x.py", 1),)
    assert parse(header).calls == ()


@pytest.mark.parametrize(
    "text", ["", "hello", "H4sIAAAAAAAA/+", '"no index" prio=1', '"t" #1 x\n state: y\n\tat nonsense']
)
def test_what_is_no_call_stack_is_refused(text: str) -> None:
    with pytest.raises(DumpError):
        parse(text)


@pytest.mark.parametrize("line", [" " * (1 << 20) + "x", "at" + " " * (1 << 20) + "x", "at " * (1 << 19)])
def test_a_long_line_that_is_no_call_is_refused_at_once(line: str) -> None:
    with pytest.raises(DumpError, match="not a line of a call"):
        calls(line)


def test_spaces_around_a_call_are_no_part_of_it() -> None:
    space = " " * (1 << 20)
    assert calls(f"{space}at{space}a.f (x.py:3){space}") == (Call("a", "f", "x.py", 3),)


@given(st.text())
def test_no_text_makes_it_fail_in_another_way(text: str) -> None:
    for candidate in (text, '"t" #1 ' + text):
        try:
            parse(candidate)
        except DumpError:
            continue
