"""The console of the commands that draw, and the `Text` objects that they draw.

Untrusted strings are safe in both. Rich's markup, emoji codes and highlighting are off. Unprintable characters
become escapes before the layout. No other module of the command line makes a console or a `rich.text.Text`.
"""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text

from splunk_profiler.system.printable import printable

PAGE_WIDTH = 100
_MAX_WIDTH = 140


class Terminal(Console):
    """A console that takes every string literally. The options are those of `rich.console.Console`."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render_str(self, text: str, *, style: Any = "", justify: Any = None, overflow: Any = None, **_: Any) -> Text:
        """Return the string as `Text`; rich calls this for each printed string, cells of tables included."""
        return Text(printable(text), style=style, justify=justify, overflow=overflow)

    def on_broken_pipe(self) -> None:
        """Raise the error of an output that is closed; rich itself would exit with 1."""
        raise BrokenPipeError


def make_console() -> Terminal:
    """Return a console as wide as the terminal (140 columns at most), or of 100 columns without a terminal."""
    console = Terminal()
    return Terminal(width=min(console.width, _MAX_WIDTH) if console.is_terminal else PAGE_WIDTH)


def text(value: str, style: str = "") -> Text:
    """Return `value` on one line."""
    return Text(printable(value), style=style)


def lines(value: str, style: str = "") -> Text:
    """Return `value` with its line ends, and with spaces in place of tabs."""
    return Text("\n".join(printable(line.expandtabs()) for line in value.split("\n")), style=style)
