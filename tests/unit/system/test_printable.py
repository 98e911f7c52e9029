"""Text from outside, escaped for the console and the log."""

from __future__ import annotations

import io
import json
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.table import Table

from splunk_profiler.cli.output import print_json
from splunk_profiler.cli.terminal import Terminal, lines, text
from splunk_profiler.system.guard import Guard, logger, make_printable
from splunk_profiler.system.printable import printable


@pytest.mark.parametrize(
    ("outside", "shown"),
    [
        ("GET /größe/日本 [x] 😀", "GET /größe/日本 [x] 😀"),
        ("a\x1b[2Jb\x07\x7f", "a\\x1b[2Jb\\x07\\x7f"),
        ("a\r\nb\tc\x0b\x85", "a\\r\\nb\\tc\\x0b\\x85"),
        ("\x9b31m", "\\x9b31m"),
        ("a\u2028b\u202ec\u2066d\u200be\ufeff", "a\\u2028b\\u202ec\\u2066d\\u200be\\ufeff"),
        ("\udcff\U000e0001", "\\udcff\\U000e0001"),
    ],
)
def test_printable_writes_what_does_not_show_as_an_escape(outside: str, shown: str) -> None:
    assert printable(outside) == shown


@given(st.text())
def test_printable_leaves_nothing_that_is_not_printable(outside: str) -> None:
    assert printable(outside).isprintable()


def drawn(*parts: object) -> str:
    output = io.StringIO()
    Terminal(file=output, width=100).print(*parts)
    return output.getvalue()


def test_a_console_shows_strings_literally_also_in_tables() -> None:
    table = Table(title="[red]a:smile:\x1b[2J", caption="b\x07", min_width=60)
    table.add_column("[/c]\n")
    table.add_row("[/d]\x1b[2J")
    table.add_row(text("[/e]\r"))
    shown = drawn("[/f]\x07", table)
    for literal in ("[red]a:smile:\\x1b[2J", "b\\x07", "[/c]\\n", "[/d]\\x1b[2J", "[/e]\\r", "[/f]\\x07"):
        assert literal in shown
    assert "".join(shown.split("\n")).isprintable()


def test_a_column_is_as_wide_as_the_escapes_in_it() -> None:
    table = Table.grid()
    table.add_row("\x1b" * 40, "end")
    assert max(map(len, drawn(table).splitlines())) <= 100


def test_lines_keeps_line_ends_and_widens_tabs() -> None:
    assert drawn(lines("a\x1b\n\tat b\rc")) == "a\\x1b\n        at b\\rc\n"


def test_a_name_in_a_log_line_does_not_begin_another(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="splunk_profiler"):
        logger.warning("service %s has %d of %s", "shop\nERROR forged\x1b[2J", 3, OSError("a\rb"))
        logger.warning("nothing")
    assert [record.getMessage() for record in caplog.records] == [
        "service shop\\nERROR forged\\x1b[2J has 3 of a\\rb",
        "nothing",
    ]


class Unspeakable:
    """An object without a printable form."""

    def __str__(self) -> str:
        raise RuntimeError


def test_an_object_without_a_text_raises_nothing_before_it_is_formatted() -> None:
    record = logging.LogRecord("x", logging.INFO, "", 1, "%s and %s", (Unspeakable(), "a\n"), None)
    assert make_printable(record)
    assert isinstance(record.args, tuple)
    assert record.args[1] == "a\\n"


def test_json_is_ascii_and_keeps_every_character(capsys: pytest.CaptureFixture[str]) -> None:
    value = {"name": "shop\x1b[2J\n\x7f\u202e"}
    print_json(value, indent=2)
    written = capsys.readouterr().out
    assert written.isascii()
    assert "".join(written.split("\n")).isprintable()
    assert json.loads(written) == value


def test_an_exception_in_a_log_line_holds_no_escapes(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "splunk_profiler"), Guard("a test").catching():
        raise ValueError("\x1b[2J gone")
    assert "\x1b" not in caplog.text
    assert "\\x1b[2J gone" in caplog.text
