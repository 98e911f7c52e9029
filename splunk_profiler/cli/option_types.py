"""Types of options of commands, which run on the main thread."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import click

from splunk_profiler.cli.output import print_line
from splunk_profiler.config.preload import RUN_PID
from splunk_profiler.exporter_process.launch import RUN_COMMAND
from splunk_profiler.system.threads import read_proc_file


class FiniteRange(click.FloatRange):
    """A range of numbers. That of click takes ``nan``, which is in no range."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number; raise `click.BadParameter` for one that is not finite or not in the range."""
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{number} is not a finite number.", param, ctx)
        return number


class ProcessId(click.IntRange):
    """The id of a process; for the launcher, which stays as process 1 of a container, that of its application."""

    def __init__(self) -> None:
        super().__init__(1)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the id, and print a line if it is the application's in place of the launcher's."""
        pid: int = super().convert(value, param, ctx)
        application = _find_application(pid)
        if application != pid:
            fact = f"process {pid} is the launcher (splunk-profiler run)"
            print_line(f"{fact}: looking at {application}, which it waits for", error=True)
        return application


def _find_application(pid: int) -> int:
    root = Path("/proc") / str(pid)
    if not RUN_COMMAND.search(read_proc_file(root / "cmdline")):
        return pid
    children = read_proc_file(root / "task" / str(pid) / "children").split()
    # What an entry point had started before is older, and lacks the variable. An application may overwrite its own.
    launched = (child for child in children if RUN_PID in read_proc_file(f"/proc/{child}/environ"))
    return int(next(launched, children[0] if children else pid))
