"""Plain lines of output, safe to print whatever they hold; `terminal` is the same for tables.

The rest of the command line prints through these two only. Must not import rich, which costs the launcher its start.
"""

from __future__ import annotations

import json
from typing import Any

import click

from splunk_profiler.system.printable import printable


def print_line(text: str, *, error: bool = False, **style: Any) -> None:
    """Print one line, to the standard error if `error`; flushes. A terminal shows it in `click.style`'s `style`."""
    click.echo(click.style(printable(text), **style) if style else printable(text), err=error)


def print_json(value: Any, *, indent: int | None = None) -> None:
    """Print `value` as JSON in ASCII, in which everything else is an escape of JSON's own."""
    for line in json.dumps(value, indent=indent).split("\n"):
        print_line(line)
