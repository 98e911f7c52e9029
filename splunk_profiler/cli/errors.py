"""Errors of commands; `__main__` turns them into exit codes.

Must not import anything but `config`: the launcher raises these too.
"""

from __future__ import annotations

from splunk_profiler.config.parsers import ProfilerError


class CommandError(ProfilerError):
    """A failed command: one line for the user, and `details` in the lines below it."""

    def __init__(self, text: str, *details: str, exit_code: int = 1) -> None:
        super().__init__(text)
        self.details = details
        self.exit_code = exit_code
