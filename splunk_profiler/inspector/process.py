"""Facts from ``/proc`` about a process and its threads."""

from __future__ import annotations

import os
from pathlib import Path

from splunk_profiler.inspector.errors import NoSuchProcessError, NotPermittedError, NotPythonError, ProcessEndedError
from splunk_profiler.inspector.maps import Mapping, parse_maps
from splunk_profiler.inspector.proc_files import Task, not_permitted, read_status, read_task, read_tasks


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
        self._folder = Path(f"/proc/{pid}")
        task = read_task(self._folder)
        if task is None:
            raise NoSuchProcessError(f"there is no process {pid}")
        thread_group_id = int(read_status(self._folder).get("Tgid", pid))
        if thread_group_id != pid:
            raise NoSuchProcessError(f"{pid} is no process but a thread of process {thread_group_id}: inspect that one")
        self.command, self._start_time = task.name, task.start_time
        live_tids = [task.tid for task in self.tasks() if task.is_alive]
        if not live_tids:
            raise NoSuchProcessError(f"process {pid} has ended and waits for its parent to notice")
        # If the first thread has ended, only the ids of others show files and memory.
        self.live_tid = pid if pid in live_tids else live_tids[0]
        self.proc_path = Path(f"/proc/{self.live_tid}")

    def raise_if_ended(self) -> None:
        """Raise ProcessEndedError unless it is still the same process."""
        task = read_task(self._folder)
        has_ended = task is None or task.start_time != self._start_time
        if has_ended or not any(task.is_alive for task in self.tasks()):
            raise self._ended_error()

    def tasks(self) -> list[Task]:
        """Return the threads that have not ended, in the kernel's order."""
        try:
            return read_tasks(self._folder / "task")
        except FileNotFoundError:
            raise self._ended_error() from None

    def mappings(self) -> list[Mapping]:
        """Return the mapped parts of the address space.

        Raises:
            NotPermittedError: this user may not see them.
            ProcessEndedError: the process has ended.
        """
        try:
            text = (self.proc_path / "maps").read_bytes().decode("utf-8", "surrogateescape")  # "\r" is part of a path
        except PermissionError:
            raise not_permitted(self.pid, f"reading the memory map of process {self.pid} is not permitted") from None
        except (FileNotFoundError, ProcessLookupError):
            raise self._ended_error() from None
        if not text:
            raise self._ended_error()
        return parse_maps(text)

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
