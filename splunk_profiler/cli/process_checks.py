"""Checks of a running process: its environment, the profiler in it, and its connections.

Linux only: reads ``/proc``. Runs on the main thread of `doctor`; changes nothing in the other process.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from splunk_profiler.cli.checks import Finding, failure, good, note, warning
from splunk_profiler.cli.errors import CommandError
from splunk_profiler.cli.unix_peers import UnixSocket, unix_peers
from splunk_profiler.config import Resolved
from splunk_profiler.exporter_process import TITLE
from splunk_profiler.exporter_process.launch import THREADS_NOTE
from splunk_profiler.system.threads import NAME_PREFIX, read_proc_file

_WALKER = "/splunk_profiler/_walker"
_ESTABLISHED = "01"
_MAX_COMM_LENGTH = 15  # the kernel's limit for the name of a thread


def environment_of(pid: int) -> dict[str, str] | None:
    """Return the environment that a process was started with; None if it has written its title over it.

    Raises:
        CommandError: there is no such process, or it may not be read.
    """
    try:
        text = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="surrogateescape")
    except FileNotFoundError:
        raise CommandError(f"there is no process {pid}") from None
    except PermissionError:
        if os.geteuid() in (0, user_of(pid)):  # as in a container, of a process that has changed its user
            raise CommandError(f"process {pid} may not be read without CAP_SYS_PTRACE") from None
        raise CommandError(f"process {pid} belongs to another user; run this as that user or as root") from None
    except OSError as error:
        raise CommandError(f"process {pid} cannot be examined: {error.strerror}") from None
    entries = text.removesuffix("\0").split("\0") if text else []
    if not all("=" in entry for entry in entries):  # setproctitle, and servers of their own, pad what they overwrite
        return None
    pairs = (entry.partition("=") for entry in entries)
    return {name: value for name, _, value in pairs}


def user_of(pid: int) -> int:
    """Return the effective user id of a process; root's if it has ended."""
    return _read_status(pid, r"Uid:\s*\d+\s*(\d+)")


def shares_namespace(pid: int, kind: str) -> bool:
    """Return True if a process is in the namespace of this one; `kind` is its name in ``/proc/PID/ns``."""
    return _read_link(_root_of(pid) / "ns" / kind) == _read_link(Path("/proc/self/ns") / kind)


class ExporterEnd(NamedTuple):
    """The exporter process that serves a process, and its end of the connection, which has the name of its socket."""

    pid: int
    end: UnixSocket


def find_exporter(pid: int) -> ExporterEnd | None:
    """Return the exporter process that serves `pid`; None if there is none, or it is not seen."""
    exporters = _find_exporters()
    peers = unix_peers() if exporters else {}
    # A forked child that the profiler does not run in has its parent's connection.
    own = _socket_inodes(_root_of(pid)) - _socket_inodes(_root_of(_read_status(pid, r"PPid:\s*(\d+)")))
    ends = {peers[inode] for inode in own if inode in peers}
    found = ((exporter, end) for exporter in exporters for end in ends if end.inode in _socket_inodes(exporter))
    return next((ExporterEnd(int(exporter.name), end) for exporter, end in found), None)


def check_settings(pid: int, resolved: Resolved | None, exporter: ExporterEnd | None) -> list[Finding]:
    """Return why the settings in effect in process `pid` are not known; nothing if `resolved` has them.

    `resolved` is what the environment at its start says; None if that cannot be read.
    """
    if resolved is None:
        fact = "not known: the process has overwritten the environment that it was started with, as setproctitle does"
        remedy = "ask in the environment of the service: splunk-profiler run -- splunk-profiler doctor"
    else:
        is_on = not resolved.sdk_disabled and (resolved.samples if exporter else resolved.runs)
        if is_on or not (exporter or _find_profiler(pid)):
            return []
        fact = "not known: its environment at the start leaves the profiler off, so its code has switched it on"
        remedy = "the log of the process says them at the start (logger splunk_profiler, INFO)"
    if exporter or _find_threads(pid):
        return [warning("settings", fact, remedy)]
    # The walker stays loaded when the profiler is stopped.
    return [failure("settings", f"{fact}; neither an exporter process nor threads of the profiler are seen", remedy)]


def check_process(pid: int, target: str, exporter_pid: int | None, *, needs_walker: bool = False) -> Iterator[Finding]:
    """Look for the profiler in process `pid`; `target` is ``host:port`` of its collector, or empty.

    `needs_walker` says that it would have the native walker, if it runs with the interpreter of this process.
    """
    root = _root_of(pid)
    executable = _read_link(root / "exe")
    command = read_proc_file(root / "cmdline").replace("\0", " ").strip()
    yield note("process", f"{pid}: {command[:200]}")
    own = Path(sys.executable).resolve()
    is_other = bool(executable) and Path(executable) != own
    if is_other:
        fact = f"it runs {executable}, this is {own}: what is said of Python and packages is about the latter"
        yield note("process", fact, "run the doctor with its interpreter")
    maps = read_proc_file(root / "maps")
    if "python" not in maps and "python" not in executable:
        yield failure("process", "no Python in it", "name the Python process itself, perhaps a child of this one")
        return
    profiler = _find_profiler(pid)
    yield good("profiler", profiler) if profiler else _missing_profiler(fails=needs_walker and not is_other)
    publishing_libraries = [name for name in ("elastic-jvmti-linux-", "libcustomlabels") if f"/{name}" in maps]
    if publishing_libraries:
        fact = f"libraries that they look for are loaded ({', '.join(publishing_libraries)}…)"
        yield good("host profilers", fact, f"to see what they would read: splunk-profiler inspect {pid}")
    if not profiler and exporter_pid is None:
        return  # gRPC and connections are perhaps the application's
    if exporter_pid is None and _find_exporters() and not (unix_peers() and shares_namespace(pid, "net")):
        fact = "an exporter process runs here, and the kernel does not say whether it serves this process"
        yield note("exporter", fact, "ask as root in the network namespace of the process")
        return
    yield _exporter_finding(exporter_pid, maps, needs_grpc=bool(target))
    if not target:
        return
    port = int(target.rpartition(":")[2])
    count = _count_connections(_root_of(exporter_pid or pid), port)
    if count:
        yield good("connection", f"{count} open to port {port}")
    else:
        yield warning("connection", f"none open to port {port} ({target}) at this moment")


def _find_profiler(pid: int) -> str:
    """Return what is seen of the profiler in process `pid`; empty if nothing is."""
    if threads := _find_threads(pid):
        return f"its threads run ({', '.join(threads)})"
    if _WALKER in read_proc_file(_root_of(pid) / "maps"):
        return "its native walker is loaded, so it was started"
    return ""


def _missing_profiler(*, fails: bool) -> Finding:
    fact = "not seen: neither its native walker nor its threads"
    if fails:
        ways = "splunk-profiler run -- COMMAND, opentelemetry-instrument or splunk_profiler.start()"
        remedy = f"start it by one of: {ways}; or name a worker, perhaps a child; else see its log"
        return failure("profiler", f"{fact}, so it does not run", remedy)
    remedy = "see whether the process logged why it did not start"
    return warning("profiler", f"{fact} (with the portable walker that can be so)", remedy)


def _find_threads(pid: int) -> list[str]:
    """Return the names of the profiler's threads in process `pid`; before CPython 3.14 the native walker gives them."""
    tasks = [task for task in _list_directory(_root_of(pid) / "task") if task.name != str(pid)]
    names = {read_proc_file(task / "comm").strip() for task in tasks}
    return sorted(name for name in names if name.startswith(NAME_PREFIX[:_MAX_COMM_LENGTH]))


def _exporter_finding(exporter_pid: int | None, maps: str, *, needs_grpc: bool) -> Finding:
    if exporter_pid is not None:
        return good("exporter", f"process {exporter_pid} makes records and sends them")
    fact, reason = "no exporter process is connected to it", _thread_export_reason(maps)
    has_grpc = "/cygrpc" in maps
    if needs_grpc and not has_grpc:
        return warning("exporter", f"{fact}, and no gRPC is in it: it has not sent anything yet")
    if has_grpc or reason:
        fact = f"{fact}: threads of its own make records and send them{reason and f': {reason}'}"
        return good("exporter", fact, "the log of the process says what becomes of them (logger splunk_profiler)")
    return note("exporter", f"{fact}: threads of its own make records, or it has not sent anything yet")


def _thread_export_reason(maps: str) -> str:
    """Return the reason that the process itself has noted; empty if it has not."""
    noted = re.search(rf"/memfd:{re.escape(THREADS_NOTE)}(.*?)( \(deleted\))?$", maps, re.MULTILINE)
    if noted:
        return noted[1]
    return "" if _WALKER in maps else "the portable walker is in use"


def _find_exporters() -> list[Path]:
    """Return the directories of all exporter processes."""
    title = f"\0{TITLE} "
    return [
        process
        for process in _list_directory(Path("/proc"))
        if process.name.isdigit() and title in read_proc_file(process / "cmdline")
    ]


def _root_of(pid: int) -> Path:
    return Path("/proc") / str(pid)


def _read_status(pid: int, pattern: str) -> int:
    """Return the number that `pattern` finds at the beginning of a line of the process's status; 0 without one."""
    found = re.search(f"^{pattern}", read_proc_file(_root_of(pid) / "status"), re.MULTILINE)
    return int(found[1]) if found else 0


def _count_connections(root: Path, port: int) -> int:
    """Count the established TCP connections of the process to `port` of any host."""
    inodes = _socket_inodes(root)
    count = 0
    for table in ("tcp", "tcp6"):
        for line in read_proc_file(root / "net" / table).splitlines()[1:]:
            columns = line.split()
            remote, state, inode = columns[2], columns[3], int(columns[9])
            count += state == _ESTABLISHED and int(remote.rpartition(":")[2], 16) == port and inode in inodes
    return count


def _socket_inodes(root: Path) -> set[int]:
    links = (_read_link(descriptor) for descriptor in _list_directory(root / "fd"))
    return {int(link[len("socket:[") : -1]) for link in links if link.startswith("socket:[")}


def _list_directory(directory: Path) -> list[Path]:
    with suppress(OSError):
        return list(directory.iterdir())
    return []


def _read_link(path: Path) -> str:
    with suppress(OSError):
        return str(path.readlink())
    return ""
