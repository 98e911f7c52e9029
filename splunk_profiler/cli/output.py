"""Plain lines of output, with unprintable characters escaped; `terminal` does the same for tables.

The command line prints through these two modules only. Must not import rich, which would slow the launcher.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import click

from splunk_profiler.system.printable import printable


def print_line(text: str, *, error: bool = False, **style: Any) -> None:
    """Print and flush one line, to standard error if `error`. `style` is that of `click.style`."""
    click.echo(click.style(printable(text), **style) if style else printable(text), err=error)


def print_json(value: Any, *, indent: int | None = None) -> None:
    """Print `value` as JSON in ASCII."""
    for line in json.dumps(value, indent=indent).split("\n"):
        print_line(line)


def discard_unwritten() -> None:
    """Discard what could not be written: at its end, the interpreter would try again, and exit with 120."""
    for descriptor, stream in ((1, sys.stdout), (2, sys.stderr)):
        try:
            if stream is not None:
                stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
