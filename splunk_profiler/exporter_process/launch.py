"""Starts the exporter process: which interpreter it has, its arguments and its environment.

Runs in the host, on the profiler's thread. Loads the native walker with the first start only.
"""

from __future__ import annotations

import errno
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from splunk_profiler.config import environment
from splunk_profiler.exporter_process import TITLE
from splunk_profiler.exporter_process.__main__ import VARIABLE
from splunk_profiler.system.printable import printable
from splunk_profiler.system.threads import read_proc_file

if TYPE_CHECKING:
    from splunk_profiler._walker import OwnedSocket

DEFAULT_FACTORY = "splunk_profiler.exporter_process.session:make_session"
_MAX_NAME = 64
_MAX_SETTINGS_BYTES = 127 << 10  # of 128 KiB that Linux takes for one variable
THREADS_NOTE = "splunk-profiler, threads export: "  # and the reason, in the list of the process's mappings
_MAX_NOTE_BYTES = 249  # the kernel's limit
_PROGRAM = Path(__file__).with_name("__main__.py")

# What the exporter inherits of the environment. All else stays with the host: it may be secret, or change the
# interpreter (other PYTHON*, LD_PRELOAD). Settings come with the stream. Names that end in `*` are prefixes.
INHERITED_VARIABLES: Mapping[str, str] = {
    "OTEL_EXPERIMENTAL_RESOURCE_DETECTORS": "detectors of the resource; all else of OTEL_* comes with the stream",
    "GRPC_*": "gRPC's own settings: DNS, roots, logging",
    "http_proxy": "the way to the endpoint, for gRPC and HTTP",
    "https_proxy": "the same",
    "grpc_proxy": "the same",
    "all_proxy": "the same",
    "no_proxy": "the same",
    "no_grpc_proxy": "the same",
    "SSL_CERT_FILE": "trusted certificates, for OpenSSL",
    "SSL_CERT_DIR": "the same",
    "REQUESTS_CA_BUNDLE": "the same, for requests, which detectors of the resource may use",
    "LANG": "the encoding of file names and settings",
    "LC_*": "the same",
    "TZ": "times in logs and in names of files",
    "TMPDIR": "temporary files of libraries, where /tmp cannot be written",
    "HOME": "paths with ~ in settings",
    "PATH": "programs that libraries call",
    "PYTHONHOME": "Python's library, where the interpreter finds it by it only",
    "LD_LIBRARY_PATH": "libpython and libraries of wheels, where the loader finds them by it only",
}
# For glibc, which gave the memory of each request back to the kernel and took it anew: a fifth of the CPU of text.
ALLOCATION: Mapping[str, str] = {
    "MALLOC_TRIM_THRESHOLD_": str(4 << 20),
    "MALLOC_MMAP_THRESHOLD_": str(2 << 20),
}
# The exporter leaves the host's working directory, whose file system may be unmounted, if none of these is relative.
_PATHS = (
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", "TMPDIR"),
    *("LD_LIBRARY_PATH", "PATH", "PYTHONHOME"),
)
_UPPERCASE_TOO = "_proxy"
# A credential provider, which is code of the user's, may need any variable of its cloud (AWS_*, GOOGLE_*). With one of
# these the exporter inherits all but what changes the interpreter, and the resource of one host; hosts with any other
# variable have an exporter of their own.
_PROVIDERS = tuple(f"OTEL_PYTHON_EXPORTER_OTLP_GRPC_{kind}CREDENTIAL_PROVIDER" for kind in ("", "LOGS_"))
# How the endpoint is reached, what is trusted and detected. An exporter has each of these once, for all of its hosts.
# They are those of the start, as the settings are: the application may remove or load variables before a launch.
_CONNECTION_VARIABLES = (
    *("http_proxy", "https_proxy", "grpc_proxy", "all_proxy", "no_proxy", "no_grpc_proxy"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "OTEL_EXPERIMENTAL_RESOURCE_DETECTORS", *_PROVIDERS),
)
_CONNECTION_PREFIX = "GRPC_"
# Prefixes. Of ours one is the secret of the tree, and the others come with the stream.
_NEVER_INHERITED = (
    *("PYTHON", "LD_PRELOAD", "LD_AUDIT", "OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES"),
    *("SPLUNK_PROFILER_", "SPLUNK_SNAPSHOT_"),
)
_FORKED_ONLY = 0x40  # PF_FORKNOEXEC in the flags of /proc/PID/stat
RUN_COMMAND = re.compile(r"(^|[/\0])splunk[-_]profiler(/__main__\.py)?\0run\0")  # as the kernel shows it


class LaunchError(OSError):
    """Error for a process that can have no exporter process; the message says why."""


class Process1Error(LaunchError):
    """The application is process 1, which the user can change."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"{reason} and would become the exporter's parent (not under `splunk-profiler run`)")


class Interpreter(NamedTuple):
    """The program of the exporter process.

    Attributes:
        path: absolute path.
        origin: where it was found ("sys.executable").
        rejected: for each other place looked at before, why its program was not taken.
    """

    path: str
    origin: str
    rejected: tuple[str, ...]


def find_interpreter() -> Interpreter:
    """Find a program that is Python of this version; `sys.executable` is uWSGI's or Apache's in some hosts.

    Raises:
        LaunchError: no such program was found.
    """
    rejected: list[str] = []
    if getattr(sys, "frozen", False):
        raise LaunchError("the application is frozen: its program runs no other code")
    for origin, path in _candidates():
        reason = _unusable_reason(path)
        if not reason:
            return Interpreter(path, origin, tuple(rejected))
        rejected.append(f"{origin} {path!r} {reason}")
    raise LaunchError(f"no Python {_version()} was found: {'; '.join(rejected)}")


def _candidates() -> Iterator[tuple[str, str]]:
    name = f"python{_version()}"
    yield "sys.executable", sys.executable or ""
    yield "sys._base_executable", getattr(sys, "_base_executable", "") or ""
    for attribute in ("exec_prefix", "base_exec_prefix"):
        yield f"sys.{attribute}", os.path.join(getattr(sys, attribute), "bin", name)  # noqa: PTH118  # text
    for line in read_proc_file(Path(sys.prefix, "pyvenv.cfg")).splitlines():
        key, _, home = line.partition("=")
        if key.strip().lower() == "home":
            yield "pyvenv.cfg", os.path.join(home.strip(), name)  # noqa: PTH118


def _version() -> str:
    """Return what the names of this Python's programs end in. Another micro version runs the same modules."""
    return f"{sys.version_info.major}.{sys.version_info.minor}{sys.abiflags}"


def _unusable_reason(path: str) -> str:
    """Return why `path` is not surely this Python; empty if it is. Nothing is run to find out: a fork could hurt."""
    if not Path(path).is_absolute():
        return "is not an absolute path"
    if not os.access(path, os.X_OK):
        return "cannot be executed"
    names = {Path(path).name, Path(os.path.realpath(path)).name}
    if f"python{_version()}" in names:
        return ""
    if not any(re.fullmatch(r"python(3|3\.\d+)?", name) for name in names):
        return "is another program"
    with suppress(OSError):
        if Path(path).samefile("/proc/self/exe"):
            return ""
    return "may be another version"


def check_adoption() -> None:
    """Raise `LaunchError` if an exporter would become the child of the application.

    An orphan's parent is process 1, which in most containers is the application or its master.
    """
    if sys.platform != "linux":
        raise LaunchError("there are abstract sockets on Linux only")
    from splunk_profiler._walker import adopts_orphans  # noqa: PLC0415  # missing on some systems

    if os.getpid() == 1:
        raise Process1Error("this process is process 1")
    if adopts_orphans():
        raise LaunchError("this process adopts orphans (it is a subreaper) and would become the exporter's parent")
    command_line = read_proc_file("/proc/1/cmdline")
    if RUN_COMMAND.search(command_line):  # our launcher stays process 1, and adopts the exporter
        return
    is_of_application = command_line == read_proc_file("/proc/self/cmdline") != "" or _is_forked_by_process_1()
    with suppress(OSError):  # another user's
        is_of_application = is_of_application or Path("/proc/1/exe").samefile("/proc/self/exe")
    if is_of_application:
        raise Process1Error("process 1 runs the same program as this one")


def _is_forked_by_process_1() -> bool:
    """Return True if this process runs the program of process 1 since its fork, as a worker does.

    A daemon, which is the child of process 1 by adoption, has a session of its own.
    """
    flags = read_proc_file("/proc/self/stat").rpartition(")")[2].split()[6:7]
    with suppress(OSError):  # SELinux may refuse to tell the session of another process
        return bool(flags) and bool(int(flags[0]) & _FORKED_ONLY) and os.getppid() == 1 and os.getsid(0) == os.getsid(1)
    return False


def _ancestors_of_same_program() -> list[int]:
    """Return the ids of ancestors that run the program of this process, without process 1."""
    found, pid = [], os.getppid()
    while pid > 1:
        with suppress(OSError):  # another user's
            if Path(f"/proc/{pid}/exe").samefile("/proc/self/exe"):
                found.append(pid)
        parent = re.search(r"^PPid:\t(\d+)$", read_proc_file(f"/proc/{pid}/status"), re.MULTILINE)
        pid = int(parent[1]) if parent else 0
    return found


def choose_interpreter(choice: str, *, is_native: bool) -> Interpreter:
    """Return the program of the exporter process, by the setting `choice`.

    Raises:
        LaunchError: there can be none, so records are made in this process; the message says why.
    """
    if choice == "thread":
        raise LaunchError("SPLUNK_PROFILER_EXPORTER=thread")
    if not is_native:
        raise LaunchError("the portable walker is in use")
    check_adoption()
    if not _PROGRAM.is_file():
        raise LaunchError(f"{_PROGRAM} is no file that Python can run")
    return find_interpreter()


def show_thread_reason(reason: str) -> None:
    """Show `doctor --pid` why threads of this process export; nothing if empty. A missing walker is a reason itself."""
    with suppress(ImportError, OSError):
        from splunk_profiler._walker import show_in_maps  # noqa: PLC0415  # missing on some systems

        note = printable(reason and THREADS_NOTE + reason).encode("utf-8", "replace")[:_MAX_NOTE_BYTES]
        show_in_maps(note.decode("utf-8", "ignore"))


@dataclass(frozen=True, slots=True)
class Launcher:
    """A call that starts an exporter with a listening socket, for `ExporterConnection`.

    Attributes:
        interpreter: known before the call, since beside busy threads each step of a search waits for the GIL.
        factory: ``module:function`` that makes a `Session` for the process id of a host.
        variables: the connection variables, by default those of now.
    """

    interpreter: Interpreter
    factory: str = DEFAULT_FACTORY
    variables: Mapping[str, str] = field(default_factory=lambda: connection_variables(environment()))

    def __call__(self, listener: OwnedSocket, token: str) -> None:
        """Start the exporter, which proves to hosts that it knows the token.

        Raises:
            OSError: that was not possible.
        """
        from splunk_profiler._walker import spawn_exporter  # noqa: PLC0415  # missing on some systems

        env = environment()
        arguments = [os.fsencode(argument) for argument in self.arguments(env)]
        variables = [os.fsencode(f"{name}={value}") for name, value in self.environment(env, token).items()]
        # No lasting error, as without an interpreter: an upgrade puts another program there.
        if os.access(self.interpreter.path, os.X_OK) and not _PROGRAM.exists():
            reason = "is missing: no records are exported until it is back, or the service is started again"
            raise LaunchError(f"{_PROGRAM} {reason}")
        spawn_exporter(arguments, variables, listener)

    def arguments(self, env: Mapping[str, str]) -> list[str]:
        """Return the command line, from the host's environment.

        The last argument names process and application in `ps`.
        """
        # Isolated, and without `site`: no variable, directory or sitecustomize changes what runs. Isolated, it does not
        # find a library that only PYTHONHOME names, which is the one variable of Python's that it has.
        has_home = not sys.flags.ignore_environment and _is_own_home(env.get("PYTHONHOME", ""))
        prefix = sys.pycache_prefix
        flags = [
            *([] if has_home else ["-I"]),
            "-S",
            *(["-B"] if sys.dont_write_bytecode else []),
            *(["-X", f"pycache_prefix={os.path.abspath(prefix)}"] if prefix else []),  # noqa: PTH100  # may be a link
        ]
        title = f"{TITLE} {os.getpid()} ({_application_name()})"
        return [self.interpreter.path, *flags, str(_PROGRAM), title]

    def environment(self, env: Mapping[str, str], token: str) -> dict[str, str]:
        """Return the exporter's environment, from the host's; `LaunchError` if a program cannot be given so much."""
        env = {name: value for name, value in env.items() if not _is_of_connection(name)} | dict(self.variables)
        has_provider = _has_provider(env)  # any variable may be a path then
        paths = [path for name in _PATHS for path in (env.get(name) or "/").split(":")]
        settings = {
            "leaves_directory": not has_provider and all(path.startswith("/") for path in paths),
            "path": [*absolute_path()],
            "package": [*sys.modules["splunk_profiler"].__path__],
            "factory": self.factory,
            "token": token,
            "ancestors": _ancestors_of_same_program(),
            "cache_tag": sys.implementation.cache_tag,
        }
        inherited = {
            name: value
            for name, value in env.items()
            if _is_inherited(name) or (has_provider and name in self.variables)
        }
        text = json.dumps(settings)
        if len(text) > _MAX_SETTINGS_BYTES:
            entries = len(sys.path)
            raise LaunchError(errno.E2BIG, f"sys.path has {entries} entries, more than a program can be given")
        return {**inherited, **ALLOCATION, VARIABLE: text}


def _is_own_home(home: str) -> bool:
    """Return True if it is where this interpreter has its library; an application may set it for another one."""
    try:
        return bool(home) and Path(home.partition(":")[0]).samefile(sys.base_prefix)
    except OSError:
        return False


def connection_variables(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that hosts of one exporter have in common."""
    is_common = _is_of_provider if _has_provider(env) else _is_of_connection
    return {name: value for name, value in env.items() if is_common(name)}


def _has_provider(env: Mapping[str, str]) -> bool:
    return any(env.get(name, "").strip() for name in _PROVIDERS)


def _is_of_provider(name: str) -> bool:
    return not name.startswith(_NEVER_INHERITED)


def _is_of_connection(name: str) -> bool:
    return _known_name(name) in _CONNECTION_VARIABLES or name.startswith(_CONNECTION_PREFIX)


def _known_name(name: str) -> str:
    return name.lower() if name.lower().endswith(_UPPERCASE_TOO) else name


def _is_inherited(name: str) -> bool:
    known = _known_name(name)
    return known in INHERITED_VARIABLES or any(
        pattern.endswith("*") and known.startswith(pattern[:-1]) for pattern in INHERITED_VARIABLES
    )


def absolute_path() -> Iterator[str]:
    """Yield the entries of `sys.path` after those with our package, which an import hook may have found, and its needs.

    The application may have put a directory in front, with modules of the names of some that the exporter imports.
    """
    package = str(Path(__file__).parents[2])
    opentelemetry = [os.path.dirname(entry) for entry in getattr(sys.modules.get("opentelemetry"), "__path__", ())]  # noqa: PTH120  # as below
    for entry in [package, *opentelemetry, *sys.path]:
        with suppress(OSError):  # there is no working directory
            if isinstance(entry, str):
                yield os.path.abspath(entry)  # noqa: PTH100  # an entry may be a link


def _application_name() -> str:
    first = (getattr(sys, "argv", None) or [""])[0]
    path = Path(first if isinstance(first, str | os.PathLike) else "")
    name = path.parent.name if path.name == "__main__.py" else path.name
    encoding = sys.getfilesystemencoding()  # which may lack characters of a title that the application has set
    return printable(name or "python")[:_MAX_NAME].encode(encoding, "backslashreplace").decode(encoding)
