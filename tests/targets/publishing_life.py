"""A service that publishes to host profilers as its environment says: ``publishing_life.py HOW [COUNT]``.

HOW is ``fork`` (forks COUNT times when told so; parent and children say what they show and end when told so),
``first_span`` (forks COUNT times, each time right after the first span of a provider; says how many children did not
become visible),
``first_message`` (forks COUNT times, each time right after a host profiler's first message, and stops right after
that; says how many children did not get a message of their own),
``fork_in_c`` (C code forks, and the child's service gets its name late; says the child's status),
``census`` (says which threads there are after the start, and after a host profiler's first message),
``threads`` (COUNT threads start and stop the profiler, over and over, while others work in spans) or ``serve`` (works
in one span until told to end). Says ``ready`` once it runs, and what is published as JSON: the process storage, and
whether the span and labels that a thread shows are its own.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from pathlib import Path
from typing import Any

from host_profiler import HostProfiler
from marked_work import say
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from own_memory import OwnMemory
from published_process import ids_of, published_ids, published_labels, read_storage, wait_for_storage
from socket_reader_threads import wait_for_receiving_threads

import splunk_profiler
from splunk_profiler.system.threads import NAME_PREFIX, wait_until

_STARTS = 15  # of each thread
_WORKERS = 4
_MAX_WRONG = 5

trace.set_tracer_provider(TracerProvider(resource=Resource.create({"deployment.environment.name": "test"})))
TRACER = trace.get_tracer("publishing")


def _state() -> dict[str, Any]:
    """Return the published values, as this process reads them from its own memory."""
    storage = read_storage()
    with (
        TRACER.start_as_current_span("root", Context()) as root,
        splunk_profiler.labels(process=os.getpid()),
        TRACER.start_as_current_span("inner") as inner,
    ):
        right = published_ids() == ids_of(inner, root) and published_labels() == {"process": str(os.getpid())}
    return {
        "pid": os.getpid(),
        "storage": storage and [storage.name, storage.environment, str(storage.socket)],
        "socket": bool(storage and storage.socket.is_socket()),
        "right": right,
        "sockets_open": sorted(_sockets()),
    }


def _sockets() -> list[str]:
    """Sockets with a name in the file system that this process has open."""
    own = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            own.add(str(descriptor.readlink()))
        except OSError:
            continue  # it was the one that lists the directory
    rows = [line.split() for line in Path("/proc/self/net/unix").read_text("utf-8").splitlines()]
    # The name of an exporter's listener, which may be starting, is in none.
    return [row[7] for row in rows if len(row) > 7 and row[7][0] != "@" and f"socket:[{row[6]}]" in own]


def _fork(count: int) -> None:
    say("state", _state())
    sys.stdin.readline()
    pipe, kept = os.pipe()
    children = []
    with TRACER.start_as_current_span("forking") as span:
        for _ in range(count):
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    os.close(kept)
                    still = published_ids() == ids_of(span)
                    say("child", {**_state(), "shows_its_span_at_once": still})
                    os.read(pipe, 1)
                    splunk_profiler.stop()
                    status = 0 if read_storage() is None and not _sockets() else 2
                finally:
                    os._exit(status)
            children.append(child)
        say("forked")
        sys.stdin.readline()
        os.close(kept)
        say("statuses", [os.waitpid(child, 0)[1] for child in children])
    say("after", _state())
    sys.stdin.readline()


def _fork_at_first_span(count: int) -> None:
    failed = 0
    for number in range(count):
        splunk_profiler.start()
        tracer = TracerProvider(resource=Resource({"service.name": f"late {number}"})).get_tracer("late")
        with tracer.start_as_current_span("first"):
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    wait_for_storage()
                    status = 0
                finally:
                    os._exit(status)
        _, status = os.waitpid(child, 0)
        failed += status != 0
        wait_for_storage()
        splunk_profiler.stop()
    say("failed", failed)


def _fork_in_c() -> None:
    splunk_profiler.start()
    child = ctypes.PyDLL(None).fork()
    if child == 0:
        status = 1
        try:
            splunk_profiler.start()
            with (
                TracerProvider(resource=Resource({"service.name": "late"}))
                .get_tracer("late")
                .start_as_current_span("a")
            ):
                status = 0 if wait_for_storage().name == "late" else 2
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    say("status", status)


def _fork_at_first_message(count: int) -> None:
    failed = 0
    for number in range(count):
        splunk_profiler.start()
        with HostProfiler(wait_for_storage().socket) as host:
            host.register(0, f"parent {number}", minor=2)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                with HostProfiler(_own_socket()) as host:
                    host.register(0, f"child {number}", minor=2)
                wait_for_receiving_threads(1)
                splunk_profiler.stop()
                wait_for_receiving_threads(0)
                status = 0 if read_storage() is None and not _sockets() else 2
            finally:
                os._exit(status)
        splunk_profiler.stop()
        _, status = os.waitpid(child, 0)
        failed += status != 0
        wait_for_receiving_threads(0)
    say("failed", failed)


def _own_socket() -> Path:
    """Return the path of this process's socket, not of its parent's."""
    own = wait_for_storage().socket
    assert f"-{os.getpid()}-" in own.name
    return own


def _census() -> None:
    """Say the names of our threads, and how many more than the main thread the kernel knows."""
    setting_up = {"splunk-profiler-auditor"}
    wait_until(lambda: not setting_up & {thread.name for thread in threading.enumerate()}, 60)
    with TRACER.start_as_current_span("first"):
        say("idle", _names_and_tasks())
        with HostProfiler(_own_socket()) as host:
            host.register(0)
        wait_for_receiving_threads(1)
        say("told", _names_and_tasks())
    splunk_profiler.stop()


def _names_and_tasks() -> tuple[list[str], int]:
    names = sorted(thread.name.removeprefix(NAME_PREFIX) for thread in threading.enumerate())
    return names, len([*Path("/proc/self/task").iterdir()])


def _threads(count: int) -> None:
    stopping = threading.Event()
    failures: list[BaseException] = []

    def turn() -> None:
        for _ in range(_STARTS):
            splunk_profiler.start()
            splunk_profiler.stop()

    def work() -> None:
        memory = OwnMemory()
        wrong_in_a_row = 0
        try:
            while not stopping.is_set():
                with TRACER.start_as_current_span("work") as span, splunk_profiler.labels(route="/"):
                    record = memory.elastic()
                    if record is not None and record.present:
                        assert record.valid, record
                        # A switch that has begun when publishing begins is not seen; the thread's next one is, unless
                        # publishing begins once more meanwhile.
                        is_wrong = record.span_id not in (span.get_span_context().span_id, 0)
                        wrong_in_a_row = wrong_in_a_row + 1 if is_wrong else 0
                        assert wrong_in_a_row < _MAX_WRONG, (record, span)
            splunk_profiler.stop()
            assert memory.elastic() is None
            assert memory.labels() is None
        except BaseException as error:
            failures.append(error)
            raise

    turning = [threading.Thread(target=turn) for _ in range(count)]
    working = [threading.Thread(target=work) for _ in range(_WORKERS)]
    for thread in (*turning, *working):
        thread.start()
    for thread in turning:
        thread.join()
    splunk_profiler.stop()
    stopping.set()
    for thread in working:
        thread.join()
    say("failures", [repr(failure) for failure in failures])
    say("off", {"storage": read_storage() is None, "sockets": _sockets(), "threads": threading.active_count()})
    splunk_profiler.start()
    wait_for_storage()
    say("again", _state())


def main(how: str, count: int) -> None:
    OwnMemory()  # loads the libraries: a reader within the process needs them
    if how == "first_span":
        _fork_at_first_span(count)
        return
    if how == "first_message":
        _fork_at_first_message(count)
        return
    if how == "fork_in_c":
        _fork_in_c()
        return
    splunk_profiler.start()
    wait_for_storage()
    say("ready", os.getpid())
    if how == "fork":
        _fork(count)
    elif how == "census":
        _census()
    elif how == "threads":
        _threads(count)
    else:
        with TRACER.start_as_current_span("serving"):
            say("state", _state())
            sys.stdin.readline()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 1)
