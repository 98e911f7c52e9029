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

_DEAD_STATES = "ZX"
_UNINTERRUPTIBLE_STATE = "D"
_RUNNING_STATE = "R"
_STATE_FIELD, _START_TIME_FIELD = 0, 19  # fields of `stat`, counted from the one behind the name


@dataclass(frozen=True, slots=True)
class Task:
    """A thread as the kernel lists it."""

    tid: int
    name: str
    state: str

    @property
    def is_alive(self) -> bool:
        """Whether it has not ended."""
        return self.state not in _DEAD_STATES

    @property
    def is_running(self) -> bool:
        """Whether it is on a processor, or waits for one."""
        return self.state == _RUNNING_STATE

    @property
    def can_stop(self) -> bool:
        """Whether it would stop soon when it is asked to."""
        return self.state not in _DEAD_STATES + _UNINTERRUPTIBLE_STATE


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
        stat = _read_stat(Path(f"/proc/{pid}"))
        if stat is None:
            raise NoSuchProcessError(f"there is no process {pid}")
        thread_group_id = _thread_group_id(pid)
        if thread_group_id != pid:
            raise NoSuchProcessError(f"{pid} is no process but a thread of process {thread_group_id}: inspect that one")
        self.command, fields = stat
        self._start_time = fields[_START_TIME_FIELD]
        live_tids = [task.tid for task in self.tasks() if task.is_alive]
        if not live_tids:
            raise NoSuchProcessError(f"process {pid} has ended and waits for its parent to notice")
        # The first thread may have ended before the others: then the kernel shows files and memory by another's id.
        self.live_tid = pid if pid in live_tids else live_tids[0]

    @property
    def proc_path(self) -> Path:
        """Its folder in ``/proc``."""
        return Path(f"/proc/{self.live_tid}")

    def raise_if_ended(self) -> None:
        """Raise ProcessEndedError unless it is still the same process."""
        stat = _read_stat(Path(f"/proc/{self.pid}"))
        has_ended = stat is None or stat[1][_START_TIME_FIELD] != self._start_time
        if has_ended or not any(task.is_alive for task in self.tasks()):
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
        stat = _read_stat(Path(f"/proc/{self.pid}/task/{tid}"))
        return None if stat is None else Task(tid, stat[0], stat[1][_STATE_FIELD])

    def mappings(self) -> list[Mapping]:
        """The files mapped in it.

        Raises:
            NotPermittedError: this user may not see them.
            ProcessEndedError: it has ended.
        """
        return parse_maps(self._read_maps())

    def code(self) -> list[Mapping]:
        """Where code lies in it, in files or not, by ascending address. Raises as `mappings`."""
        return parse_code(self._read_maps())

    def _read_maps(self) -> str:
        try:
            text = (self.proc_path / "maps").read_text("utf-8", "surrogateescape")
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
            with (self.proc_path / "exe").open("rb") as file:
                return file.read(size)
        except PermissionError:
            raise not_permitted(self.pid, f"looking at the program of process {self.pid} is not permitted") from None
        except OSError:
            self.raise_if_ended()
            raise NotPythonError(f"process {self.pid} ({self.command}) runs no program: the kernel's own") from None

    def program(self) -> str:
        """The path of its main executable."""
        try:
            return str((self.proc_path / "exe").readlink()).removesuffix(" (deleted)")
        except PermissionError:
            raise not_permitted(self.pid, f"looking at the program of process {self.pid} is not permitted") from None
        except OSError:
            raise ProcessEndedError(f"process {self.pid} ended while it was read") from None


def _thread_group_id(tid: int) -> int:
    """The process that a thread belongs to."""
    try:
        lines = Path(f"/proc/{tid}/status").read_text("utf-8", "replace").splitlines()
    except OSError:
        return tid  # it has ended just now, which is found soon enough
    return next((int(line.split()[1]) for line in lines if line.startswith("Tgid:")), tid)


def _read_stat(folder: Path) -> tuple[str, list[str]] | None:
    try:
        text = (folder / "stat").read_text("utf-8", "replace")
    except OSError:
        return None
    # The name stands in parentheses and may hold any character, these too.
    start, end = text.index("("), text.rindex(")")
    return text[start + 1 : end], text[end + 2 :].split()
