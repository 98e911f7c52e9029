"""Facts from ``/proc`` about a process and its threads."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from splunk_profiler.inspector.errors import NoSuchProcessError, NotPermittedError, NotPythonError, ProcessEndedError
from splunk_profiler.inspector.maps import Mapping, parse_code, parse_maps
from splunk_profiler.inspector.permissions import not_permitted
from splunk_profiler.inspector.proc_files import read_stat, read_status


@dataclass(frozen=True, slots=True)
class Task:
    """A thread as the kernel lists it."""

    tid: int
    name: str
    state: str

    @property
    def is_alive(self) -> bool:
        """True if the thread has not ended."""
        return self.state not in "ZX"

    @property
    def is_running(self) -> bool:
        """True if the thread is on a processor or waits for one."""
        return self.state == "R"

    @property
    def can_stop(self) -> bool:
        """True if the thread would stop soon after a request (D is an uninterruptible sleep)."""
        return self.is_alive and self.state != "D"


class Process:
    """The process `pid`; its start time tells it from a later one of the same id.

    Raises:
        NoSuchProcessError: there is none, or it is a zombie.
        NotPermittedError: it is this process.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        if pid == os.getpid():
            raise NotPermittedError("a process cannot inspect itself: a thread cannot stop the one that reads it")
        stat = read_stat(Path(f"/proc/{pid}"))
        if stat is None:
            raise NoSuchProcessError(f"there is no process {pid}")
        thread_group_id = int(read_status(Path(f"/proc/{pid}")).get("Tgid", pid))
        if thread_group_id != pid:
            raise NoSuchProcessError(f"{pid} is no process but a thread of process {thread_group_id}: inspect that one")
        self.command, self._start_time = stat.name, stat.start_time
        live_tids = [task.tid for task in self.tasks() if task.is_alive]
        if not live_tids:
            raise NoSuchProcessError(f"process {pid} has ended and waits for its parent to notice")
        # If the first thread has ended, only the ids of others show files and memory.
        self.live_tid = pid if pid in live_tids else live_tids[0]
        self.proc_path = Path(f"/proc/{self.live_tid}")

    def raise_if_ended(self) -> None:
        """Raise ProcessEndedError unless it is still the same process."""
        stat = read_stat(Path(f"/proc/{self.pid}"))
        has_ended = stat is None or stat.start_time != self._start_time
        if has_ended or not any(task.is_alive for task in self.tasks()):
            raise self._ended_error()

    def tasks(self) -> list[Task]:
        """Return the threads that have not ended, in the kernel's order."""
        try:
            tids = sorted(int(entry.name) for entry in Path(f"/proc/{self.pid}/task").iterdir())
        except FileNotFoundError:
            raise self._ended_error() from None
        found = (self.task(tid) for tid in tids)
        return [task for task in found if task is not None]

    def task(self, tid: int) -> Task | None:
        """Return a thread of the process; None if it has ended."""
        stat = read_stat(Path(f"/proc/{self.pid}/task/{tid}"))
        return None if stat is None else Task(tid, stat.name, stat.state)

    def mappings(self) -> list[Mapping]:
        """Return the mappings of files.

        Raises:
            NotPermittedError: this user may not see them.
            ProcessEndedError: the process has ended.
        """
        return parse_maps(self._read_maps())

    def code(self) -> list[Mapping]:
        """Return the mappings of code by ascending address; raise the errors of `mappings`."""
        return parse_code(self._read_maps())

    def _read_maps(self) -> str:
        try:
            text = (self.proc_path / "maps").read_text("utf-8", "surrogateescape")
        except PermissionError:
            raise not_permitted(self.pid, f"reading the memory map of process {self.pid} is not permitted") from None
        except (FileNotFoundError, ProcessLookupError):
            raise self._ended_error() from None
        if not text:
            raise self._ended_error()
        return text

    def program_header(self, size: int) -> bytes:
        """Return the first `size` bytes of the main executable.

        Raises:
            NotPythonError: the process has none, because it is a thread of the kernel.
        """
        try:
            with (self.proc_path / "exe").open("rb") as file:
                return file.read(size)
        except PermissionError:
            raise self._program_not_permitted() from None
        except OSError:
            self.raise_if_ended()
            raise NotPythonError(f"process {self.pid} ({self.command}) runs no program: the kernel's own") from None

    def program(self) -> str:
        """Return the path of the main executable."""
        try:
            return str((self.proc_path / "exe").readlink()).removesuffix(" (deleted)")
        except PermissionError:
            raise self._program_not_permitted() from None
        except OSError:
            raise self._ended_error() from None

    def _program_not_permitted(self) -> NotPermittedError:
        return not_permitted(self.pid, f"looking at the program of process {self.pid} is not permitted")

    def _ended_error(self) -> ProcessEndedError:
        return ProcessEndedError(f"process {self.pid} ended while it was read")
