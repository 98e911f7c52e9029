"""A service whose captures go to an exporter process: ``exported_service.py [frozen|subreaper|confined]``.

Works in spans until a line ``stop``, after ``ready``. A line ``modules`` is answered with the modules that are loaded
and only an exporter needs, the names of the profiler's threads, and that of the thread that has imported gRPC, as JSON;
``wait`` with what `os.wait` finds. After ``full`` no thread can be started, until ``room``.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import sys
import threading
from collections.abc import Sequence

import seccomp
from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider

import splunk_profiler

EXPORTER_MODULES = (
    *("grpc", "google.protobuf", "opentelemetry.proto", "splunk_profiler.pipeline", "splunk_profiler.formats"),
    *("splunk_profiler.export.otlp", "splunk_profiler.export.lazy_sink", "splunk_profiler.lifecycle.local_export"),
    "_hashlib",  # with it comes OpenSSL
)
_PR_SET_CHILD_SUBREAPER = 36
_HUGE_STACK = 1 << 46


class GrpcFinder:
    """A finder that finds nothing, and notes which threads import gRPC."""

    def __init__(self) -> None:
        self.threads: list[str] = []

    def find_spec(self, name: str, _path: Sequence[str] | None, _target: object = None) -> None:
        if name == "grpc":
            self.threads.append(threading.current_thread().name)


def price_items() -> int:
    return sum(number * number for number in range(2000))


def serve(over: threading.Event) -> None:
    tracer = trace.get_tracer("service")
    while not over.is_set():
        with tracer.start_as_current_span("GET /cart"):
            price_items()


def find_child() -> str:
    try:
        return str(os.wait())
    except ChildProcessError:
        return "no child"


def confine() -> None:
    """Let no program be executed; gevent, which could have gRPC loaded on another thread, is not there."""
    seccomp.refuse("execve", errno.EACCES)
    sys.modules.update(dict.fromkeys(("gevent", "eventlet")))  # type: ignore[arg-type]


def main() -> None:
    if "frozen" in sys.argv:
        sys.frozen = True  # type: ignore[attr-defined]  # as PyInstaller sets it
    if "subreaper" in sys.argv:
        assert ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    if "confined" in sys.argv:
        confine()
    finder = GrpcFinder()
    sys.meta_path.insert(0, finder)
    trace.set_tracer_provider(TracerProvider(resource=Resource({"service.name": "exported"})))
    assert splunk_profiler.start()
    over = threading.Event()
    serving = threading.Thread(target=serve, args=(over,), name="serving")
    serving.start()
    print("ready", flush=True)
    for line in sys.stdin:
        if line.strip() == "stop":
            break
        if line.strip() == "modules":
            needless = [name for name in sys.modules if name.startswith(EXPORTER_MODULES)]
            threads = sorted(one.name for one in threading.enumerate() if one.name.startswith("splunk-profiler-"))
            found = {"needless": needless, "threads": threads, "importers": finder.threads}
            print("modules", json.dumps(found), flush=True)
        if line.strip() in ("full", "room"):
            threading.stack_size(_HUGE_STACK if line.strip() == "full" else 0)
            print(line.strip(), flush=True)
        if line.strip() == "wait":
            print("waited", json.dumps(find_child()), flush=True)
    over.set()
    serving.join()
    splunk_profiler.stop(30)


main()
