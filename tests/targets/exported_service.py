"""A service whose captures go to an exporter process: ``exported_service.py [CONDITION]``, or a change at the start.

Works in spans until a line ``stop``, after ``ready``. A line ``price`` is a request, answered with that word;
``modules`` is answered with the modules that are loaded and only an exporter needs, the names of the profiler's
threads, and that of the thread that has imported gRPC, as JSON; ``wait`` with how many children `os.wait` finds, the
only one and those that it leaves. ``refused N`` waits until the connection to the exporter has refused N further pieces
of the stream. After ``full`` no thread can be started, until ``room``. After ``no process`` no process can be; after
``no program`` none is in reach; after ``another user`` it is nobody's. After ``daemon`` it is another process, without
the descriptors that it knows nothing of.
"""

from __future__ import annotations

import ctypes
import errno
import json
import logging
import os
import random
import resource
import socket
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import seccomp
from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider

import splunk_profiler
from splunk_profiler.lifecycle.process_export import ProcessExport

# The SDK's fork hook uses it. If it is imported after a provider is made, a child waits in that hook for its lock.
import_module("concurrent.futures.thread")

EXPORTER_MODULES = (
    *("grpc", "google.protobuf", "opentelemetry.proto", "splunk_profiler.samples"),
    *("splunk_profiler.pipeline", "splunk_profiler.formats"),
    *("splunk_profiler.export.otlp", "splunk_profiler.export.lazy_sink", "splunk_profiler.lifecycle.local_export"),
    "_hashlib",  # with it comes OpenSSL
)
_PR_SET_CHILD_SUBREAPER = 36
# gRPC is loaded beside a thread that never pauses.
BUSY = [[""], ["frozen"], ["no exec"], ["no interpreter"], ["subreaper"]]
_MAX_REUSED = 256
_HUGE_STACK = 1 << 60
_NOBODY = 65534
_UNUSED_USER = 100_000
_CAPABILITIES_VERSION, _CAP_DAC_OVERRIDE = 0x20080522, 1
_DEPTH, _DESCENDING = 500, 8
# Waits at the end of a stack that no other call has: `turns` has a bit for each of its lines. The names are short: a
# text of all its lines is made for each sample.
_DESCEND = """
def d(turns, depth):
    if depth == 0:
        wait(0.002)
    elif turns & 1:
        d(turns >> 1, depth - 1)
    else:
        d(turns >> 1, depth - 1)
"""


class GrpcFinder:
    """A finder that finds nothing, and notes which threads import gRPC."""

    def __init__(self) -> None:
        self.threads: list[str] = []

    def find_spec(self, name: str, _path: Sequence[str] | None, _target: object = None) -> None:
        if name == "grpc":
            self.threads.append(threading.current_thread().name)


class EndlessModule(Loader):
    """A module ``endless`` whose import never ends; `has_begun` is set by it."""

    def __init__(self) -> None:
        self.has_begun = threading.Event()

    def find_spec(self, name: str, _path: Sequence[str] | None, _target: object = None) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name == "endless" else None

    def exec_module(self, _module: object) -> None:
        self.has_begun.set()
        threading.Event().wait()


def price_items() -> int:
    if sys.argv[1:] not in BUSY:
        time.sleep(0.005)
    return sum(number * number for number in range(2000))


def serve(over: threading.Event) -> None:
    tracer = trace.get_tracer("service")
    while not over.is_set():
        with tracer.start_as_current_span("GET /cart"):
            price_items()


def start_serving() -> tuple[threading.Event, threading.Thread]:
    over = threading.Event()
    serving = threading.Thread(target=serve, args=(over,), name="serving", daemon=True)
    serving.start()
    return over, serving


def leave_orphan() -> None:
    """Make a child that leaves a child of its own."""
    if os.fork() == 0:
        os.fork()
        os._exit(0)


def count_children() -> int:
    """Wait until there is no child; return how many have ended."""
    for count in range(1000):
        try:
            os.wait()
        except ChildProcessError:
            return count
    raise AssertionError("they do not end")


class RefusedPieces:
    """Counts the pieces of the stream that connections to an exporter refuse.

    Attributes:
        are_wanted: set while the count is waited for.
    """

    def __init__(self) -> None:
        self._count = self._delivered = 0
        self._counted = threading.Condition()
        self.are_wanted = threading.Event()

    def install(self) -> None:
        send = ProcessExport.send

        def counted(output: ProcessExport, data: bytes) -> bool:
            is_sent = send(output, data)
            with self._counted:
                self._count += not is_sent
                self._delivered = output.counters().delivered
                self._counted.notify_all()
            return is_sent

        ProcessExport.send = counted  # type: ignore[assignment, method-assign]

    def wait_for_report(self) -> None:
        """Wait until the exporter has said that it has delivered something."""
        with self._counted:
            self._counted.wait_for(lambda: self._delivered > 0)

    def wait_for(self, further: int) -> None:
        self.are_wanted.set()
        with self._counted:
            expected = self._count + further
            self._counted.wait_for(lambda: self._count >= expected)
        self.are_wanted.clear()


REFUSED = RefusedPieces()


def start_descending() -> None:
    names: dict[str, Any] = {"__name__": "d", "wait": threading.Event().wait}
    exec(compile(_DESCEND, "d", "exec"), names)  # noqa: S102  # the file has a short name, too

    def run() -> None:
        while REFUSED.are_wanted.wait():
            names["d"](random.getrandbits(_DEPTH), _DEPTH)

    for _ in range(_DESCENDING):
        threading.Thread(target=run, daemon=True).start()


def overflow() -> None:
    """Have stacks that are all new, and say what becomes of them."""
    logging.basicConfig(format="%(message)s")
    logging.getLogger("splunk_profiler").setLevel(logging.DEBUG)
    REFUSED.install()
    start_descending()


def hide_interpreter() -> None:
    """Have `sys` name other places, as in a program that has Python in it."""
    sys.executable = "/usr/sbin/apache2"
    sys._base_executable = ""  # type: ignore[attr-defined]
    sys.prefix = sys.exec_prefix = sys.base_exec_prefix = "/nowhere"


def leave_no_room() -> None:
    """Let this user have no further process or thread."""
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
    if os.getuid() == 0:
        os.setuid(_NOBODY)  # the limit does not hold for root


def start_without_room() -> None:
    """Start the profiler as a user who has reached the limit on processes, which does not hold for root."""
    os.setresuid(_UNUSED_USER, 0, 0)  # keeps root's access to files
    kept = 1 << _CAP_DAC_OVERRIDE
    header, data = struct.pack("Ii", _CAPABILITIES_VERSION, 0), struct.pack("6I", kept, kept, 0, 0, 0, 0)
    assert ctypes.CDLL(None).capset(header, data) == 0
    limits = resource.getrlimit(resource.RLIMIT_NPROC)
    resource.setrlimit(resource.RLIMIT_NPROC, (0, limits[1]))
    assert not splunk_profiler.start()
    resource.setrlimit(resource.RLIMIT_NPROC, limits)


def become_nobody() -> None:
    os.setgroups([])
    os.setgid(_NOBODY)
    os.setuid(_NOBODY)


def leave_programs() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chroot(folder)


def become_daemon() -> None:
    os.chdir("/")
    if os.fork():
        os._exit(0)
    os.setsid()
    if os.fork():
        os._exit(0)
    os.closerange(3, 1024)
    print("daemon", os.getpid(), flush=True)


def answer_request() -> None:
    with trace.get_tracer("service").start_as_current_span("GET /price"):
        price_items()


def reuse_descriptors() -> None:
    """Close those of gRPC and all after them, and have their numbers for sockets of the application."""
    first = _MAX_REUSED
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            first = min(first, int(entry.name)) if "eventpoll" in str(entry.readlink()) else first
    os.closerange(first, _MAX_REUSED)
    REUSED.extend(socket.socketpair() for _ in range(20))


def count_received() -> None:
    """Say how many bytes have come to the sockets."""
    received = 0
    for one in (end for pair in REUSED for end in pair):
        with suppress(BlockingIOError):
            received += len(one.recv(1 << 20, socket.MSG_DONTWAIT))
    print("bytes", received, flush=True)


REUSED: list[tuple[socket.socket, socket.socket]] = []
CHANGES: dict[str, Callable[[], object]] = {
    "close all": lambda: os.closerange(3, 1024),
    "reuse": reuse_descriptors,
    "received": count_received,
    "full": lambda: threading.stack_size(_HUGE_STACK),
    "price": answer_request,
    "room": lambda: threading.stack_size(0),
    "another user": become_nobody,
    "no process": leave_no_room,
    "no program": leave_programs,
    "reported": REFUSED.wait_for_report,
}


def leave_interpreters() -> None:
    """Change to the root that the environment names, as a daemon does."""
    os.chroot(os.environ["CHROOT"])
    os.chdir("/")


def replace_interpreter() -> None:
    sys.executable = os.environ["INTERPRETER"]


def confine() -> None:
    """Let no program be executed for now; gevent, which could have gRPC loaded on another thread, is not there."""
    seccomp.refuse("execve", errno.EAGAIN)
    sys.modules.update(dict.fromkeys(("gevent", "eventlet")))  # type: ignore[arg-type]


def become_subreaper() -> None:
    assert ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0


def run_below_subreaper() -> None:
    """Go on in a child of a process that adopts orphans and waits until it has no child."""
    become_subreaper()
    if os.fork():
        count_children()
        os._exit(0)


def freeze() -> None:
    sys.frozen = True  # type: ignore[attr-defined]  # as PyInstaller sets it


def import_for_ever() -> None:
    module = EndlessModule()
    sys.meta_path.insert(0, module)
    threading.Thread(target=import_module, args=("endless",), daemon=True).start()
    module.has_begun.wait()


def allow_exporter_no_threads() -> None:
    """Have programs that are executed from now on need more memory for a thread than there can be."""
    resource.setrlimit(resource.RLIMIT_STACK, (_HUGE_STACK, resource.getrlimit(resource.RLIMIT_STACK)[1]))


CONDITIONS: dict[str, Callable[[], None]] = {
    "below a subreaper": run_below_subreaper,
    "chroot": leave_interpreters,
    "confined": confine,
    "crowded": lambda: seccomp.refuse_vfork(errno.EAGAIN),  # as where the limit on processes is reached
    "deep stacks": overflow,
    "frozen": freeze,
    "importing": import_for_ever,
    "informed": lambda: logging.basicConfig(format="%(message)s", level=logging.INFO),
    "no exec": lambda: seccomp.refuse("execve"),
    "no interpreter": hide_interpreter,
    "no room": start_without_room,
    "no threads there": allow_exporter_no_threads,
    "other interpreter": replace_interpreter,
    "subreaper": become_subreaper,
}


def main() -> None:
    condition = "".join(sys.argv[1:])
    if condition in CONDITIONS:
        CONDITIONS[condition]()
    finder = GrpcFinder()
    sys.meta_path.insert(0, finder)
    trace.set_tracer_provider(TracerProvider(resource=Resource({"service.name": "exported"})))
    assert splunk_profiler.start()
    if condition and condition not in CONDITIONS:
        CHANGES[condition]()
    over, serving = start_serving()
    print("ready", flush=True)
    for line in sys.stdin:
        if line.strip() == "stop":
            break
        if line.strip() == "modules":
            needless = [name for name in sys.modules if name.startswith(EXPORTER_MODULES)]
            threads = sorted(one.name for one in threading.enumerate() if one.name.startswith("splunk-profiler-"))
            found = {"needless": needless, "threads": threads, "importers": finder.threads}
            print("modules", json.dumps(found), flush=True)
        if line.strip() in CHANGES:
            CHANGES[line.strip()]()
            print(line.strip(), flush=True)
        if line.strip() == "daemon":
            become_daemon()
            over, serving = start_serving()
        if line.strip() == "wait":
            leave_orphan()
            print("waited", count_children(), flush=True)
        if line.startswith("refused"):
            REFUSED.wait_for(int(line.split()[1]))
            print(line.strip(), flush=True)
    over.set()
    serving.join()
    splunk_profiler.stop(30)


main()
