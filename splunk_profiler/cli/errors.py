"""What a command raises when it cannot do its work; `__main__` turns it into an exit code.

Owns no thread. Must not import anything but `config`, for the launcher raises these too.
"""

from __future__ import annotations

from splunk_profiler.config.parsers import ProfilerError


class CommandError(ProfilerError):
    """A command failed; its text is the one line that the user sees, with `details` in lines below it."""

    exit_code = 1

    def __init__(self, text: str, *details: str) -> None:
        super().__init__(text)
        self.details = details


class CommandNotFoundError(CommandError):
    """The program to be launched does not exist (a shell's exit code for that)."""

    exit_code = 127


class CommandNotExecutableError(CommandError):
    """The program to be launched exists and cannot be executed (a shell's exit code for that)."""

    exit_code = 126
