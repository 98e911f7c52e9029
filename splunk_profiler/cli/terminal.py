"""The console of the commands that draw, and the texts that they draw: outside text is safe in both.

A string is shown as it is: rich's markup, emoji codes and highlighting are off, and what is not printable is written as
an escape before the layout is made. The rest of the command line makes no console and no `rich.text.Text` of its own.
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
        """Return the string as `Text`; rich calls this for each string that is printed, also in cells of tables."""
        return Text(printable(text), style=style, justify=justify, overflow=overflow)


def make_console() -> Terminal:
    """Return a console as wide as the terminal, within reason; without a terminal as wide as a page."""
    console = Terminal()
    return Terminal(width=min(console.width, _MAX_WIDTH) if console.is_terminal else PAGE_WIDTH)


def text(value: str, style: str = "") -> Text:
    """Return `value` on one line."""
    return Text(printable(value), style=style)


def lines(value: str, style: str = "") -> Text:
    """Return `value` with its line ends, and with spaces in place of tabs."""
    return Text("\n".join(printable(line.expandtabs()) for line in value.split("\n")), style=style)
