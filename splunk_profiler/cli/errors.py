"""Errors of commands; `__main__` turns them into exit codes.

Must not import anything but `config`: the launcher raises these too.
"""

from __future__ import annotations

from splunk_profiler.config.parsers import ProfilerError


class CommandError(ProfilerError):
    """A failed command: one line for the user, and `details` in the lines below it."""

    exit_code = 1

    def __init__(self, text: str, *details: str) -> None:
        super().__init__(text)
        self.details = details


class CommandNotFoundError(CommandError):
    """The program to launch does not exist; the exit code is a shell's."""

    exit_code = 127


class CommandNotExecutableError(CommandError):
    """The program to launch exists and cannot be executed; the exit code is a shell's."""

    exit_code = 126
