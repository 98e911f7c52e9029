"""The common elements of reports: headings, tables, shares and times."""

from __future__ import annotations

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from splunk_profiler.cli.terminal import Terminal, text

_BAR_CELLS = 12


def print_section(console: Terminal, title: str, *contents: RenderableType, soft_wrap: bool = False) -> None:
    """Print a blank line, a title and the contents, each on lines of its own."""
    console.print()
    console.rule(text(title, style="bold"), align="left", style="dim")
    for content in contents:
        console.print(content, soft_wrap=soft_wrap)


def grid() -> Table:
    """Return a table of two columns: names and values."""
    created = Table.grid(padding=(0, 2))
    created.add_column(style="cyan", no_wrap=True)
    created.add_column(overflow="fold")
    return created


def table(first: str, *others: str) -> Table:
    """Return a table whose first column is a name; the others are numbers, except those with a title of texts."""
    created = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold dim")
    created.add_column(first, overflow="fold", max_width=66)
    for title in others:
        is_text = title in ("", "at", "of", "called by", "most often", "task", "awaits", "inside")
        created.add_column(title, justify="left" if is_text else "right", no_wrap=not is_text, overflow="fold")
    return created


def bar(part: float, whole: float) -> Text:
    """Return a bar whose length is the share of `part` in `whole`."""
    cells = round(part / whole * _BAR_CELLS) if whole else 0
    return text("█" * min(cells, _BAR_CELLS), style="cyan")


def percent(part: int, whole: int) -> str:
    """Return the share of `part` in `whole`."""
    if not whole:
        return "0 %"
    share = 100 * part / whole
    return f"{share:.1f} %" if 0 < share < 10 else f"{share:.0f} %"


def place(file: str, line: int | None) -> Text:
    """Return the place of a function, without directories: the function's name has the package."""
    name = file.rpartition("/")[2]
    return text(f"{name}:{line}" if line else name, style="dim")


def duration(nanoseconds: int) -> str:
    """Format a duration in seconds or milliseconds."""
    return f"{nanoseconds / 1e9:,.2f} s" if nanoseconds >= 10_000_000 else f"{nanoseconds / 1e6:.1f} ms"
