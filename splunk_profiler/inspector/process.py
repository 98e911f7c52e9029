"""What ``/proc`` says about a process and its threads.

Owns no thread. Must not import anything of the package but the inspector's own modules.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from splunk_profiler.inspector.errors import NoSuchProcessError, NotPermittedError, NotPythonError, ProcessEndedError
from splunk_profiler.inspector.maps import Mapping, parse_code, parse_maps
from splunk_profiler.inspector.permissions import not_permitted

_DEAD = "ZX"
_ASLEEP_IN_THE_KERNEL = "D"
_RUNNING = "R"
_STATE, _STARTED = 0, 19  # fields of `stat`, counted from the one behind the name


@dataclass(frozen=True, slots=True)
class Task:
    """A thread as the kernel lists it."""

    tid: int
    name: str
    state: str

    @property
    def lives(self) -> bool:
        """Whether it has not ended."""
        return self.state not in _DEAD

    @property
    def runs(self) -> bool:
        """Whether it is on a processor, or waits for one."""
        return self.state == _RUNNING

    @property
    def can_stop(self) -> bool:
        """Whether it would stop soon when it is asked to."""
        return self.state not in _DEAD + _ASLEEP_IN_THE_KERNEL


class Process:
    """The process `pid`, told from a later one of the same id by its start time.

    Raises:
        NoSuchProcessError: there is none, or it has ended and is not collected yet.
        NotPermittedError: it is this one.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        if pid == os.getpid():
            raise NotPermittedError("a process cannot inspect itself: a thread cannot stop the one that reads it")
        stat = _stat(Path(f"/proc/{pid}"))
        if stat is None:
            raise NoSuchProcessError(f"there is no process {pid}")
        owner = _owner(pid)
        if owner != pid:
            raise NoSuchProcessError(f"{pid} is no process but a thread of process {owner}: inspect that one")
        self.command, fields = stat
        self._started = fields[_STARTED]
        living = [task.tid for task in self.tasks() if task.lives]
        if not living:
            raise NoSuchProcessError(f"process {pid} has ended and waits for its parent to notice")
        # The first thread may have ended before the others: then the kernel shows files and memory by another's id.
        self.via = pid if pid in living else living[0]

    @property
    def proc(self) -> Path:
        """Its folder in ``/proc``."""
        return Path(f"/proc/{self.via}")

    def check(self) -> None:
        """Raise ProcessEndedError unless it is still the same process."""
        stat = _stat(Path(f"/proc/{self.pid}"))
        ended = stat is None or stat[1][_STARTED] != self._started
        if ended or not any(task.lives for task in self.tasks()):
            raise ProcessEndedError(f"process {self.pid} ended while it was read")

    def tasks(self) -> list[Task]:
        """Its threads now, in the kernel's order; those that end meanwhile are left out."""
        try:
            tids = sorted(int(entry.name) for entry in Path(f"/proc/{self.pid}/task").iterdir())
        except FileNotFoundError:
            raise ProcessEndedError(f"process {self.pid} ended while it was read") from None
        found = (self.task(tid) for tid in tids)
        return [task for task in found if task is not None]

    def task(self, tid: int) -> Task | None:
        """One of its threads; None if it has ended."""
        stat = _stat(Path(f"/proc/{self.pid}/task/{tid}"))
        return None if stat is None else Task(tid, stat[0], stat[1][_STATE])

    def mappings(self) -> list[Mapping]:
        """The files mapped in it.

        Raises:
            NotPermittedError: this user may not see them.
            ProcessEndedError: it has ended.
        """
        return parse_maps(self._maps())

    def code(self) -> list[Mapping]:
        """Where code lies in it, in files or not, by ascending address. Raises as `mappings`."""
        return parse_code(self._maps())

    def _maps(self) -> str:
        try:
            text = (self.proc / "maps").read_text("utf-8", "surrogateescape")
        except PermissionError:
            raise not_permitted(self.pid, f"reading the memory map of process {self.pid} is not permitted") from None
        except (FileNotFoundError, ProcessLookupError):
            raise ProcessEndedError(f"process {self.pid} ended while it was read") from None
        if not text:
            raise ProcessEndedError(f"process {self.pid} ended while it was read")
        return text

    def program_header(self, size: int) -> bytes:
        """The first bytes of its main executable.

        Raises:
            NotPythonError: it has none, as threads of the kernel.
        """
        try:
            with (self.proc / "exe").open("rb") as file:
                return file.read(size)
        except PermissionError:
            raise not_permitted(self.pid, f"looking at the program of process {self.pid} is not permitted") from None
        except OSError:
            self.check()
            raise NotPythonError(f"process {self.pid} ({self.command}) runs no program: the kernel's own") from None

    def program(self) -> str:
        """The path of its main executable."""
        try:
            return str((self.proc / "exe").readlink()).removesuffix(" (deleted)")
        except PermissionError:
            raise not_permitted(self.pid, f"looking at the program of process {self.pid} is not permitted") from None
        except OSError:
            raise ProcessEndedError(f"process {self.pid} ended while it was read") from None


def _owner(tid: int) -> int:
    """The process that a thread belongs to."""
    try:
        lines = Path(f"/proc/{tid}/status").read_text("utf-8", "replace").splitlines()
    except OSError:
        return tid  # it has ended just now, which is found soon enough
    return next((int(line.split()[1]) for line in lines if line.startswith("Tgid:")), tid)


def _stat(folder: Path) -> tuple[str, list[str]] | None:
    try:
        text = (folder / "stat").read_text("utf-8", "replace")
    except OSError:
        return None
    # The name stands in parentheses and may hold any character, these too.
    start, end = text.index("("), text.rindex(")")
    return text[start + 1 : end], text[end + 2 :].split()
