"""The two facts that follow from a stack alone: an internal thread, and the object of a wait.

Pure: functions of a `Stack` for `Stack.derive`.

Specification: Splunk profiling conventions, "Call Stack Filtering"; the free text of the metadata line.
"""

from __future__ import annotations

from splunk_profiler.model import Frame, Stack
from splunk_profiler.pipeline.waits import call_kind, is_bootstrap

GIL = "GIL"  # what a thread waits for that has got all else: no stack tells
_STARTUP_NAMESPACES = ("threading.", "weakref.", "_weakrefset.")  # a garbage collection may run in the start
_INTERNAL_NAMESPACES = ("splunk_profiler.", "opentelemetry.sdk.", "opentelemetry.exporter.", "grpc.")
_LABELS_NAMESPACE = "splunk_profiler.user_labels."  # its decorator calls what the application gave it
_INTERNAL_THREAD_NAMES = ("splunk-profiler-", "OtelBatch", "OtelPeriodic")
_INTERNAL_TARGETS = ("(channel_spin)", "(_poll_wrapper)")  # functions of gRPC, as `Thread` adds them to its names
# Its other threads are the application's: they serve its calls, iterate over its requests, or run its callbacks alone.
_GRPC_THREAD_FUNCTIONS = frozenset({"channel_spin", "_poll_connectivity"})

_WAIT_NAMES = {
    ("threading", "wait"): "condition",
    ("threading", "acquire"): "lock",
    ("threading", "_wait_for_tstate_lock"): "thread to end",
    ("threading", "join"): "thread to end",
    ("queue", "get"): "queue",
    ("queue", "put"): "queue",
    ("multiprocessing.queues", "get"): "queue",
    ("multiprocessing.connection", "wait"): "connection",
    ("multiprocessing.connection", "_recv"): "connection",
    ("multiprocessing.synchronize", "wait"): "condition",
    ("concurrent.futures.thread", "_worker"): "work",
    ("concurrent.futures._base", "wait"): "futures",
    ("selectors", "select"): "select",
    ("selectors", "_select"): "select",
    ("asyncio.base_events", "_run_once"): "select",
    ("socket", "readinto"): "socket",
    ("socket", "accept"): "connection",
    ("socket", "create_connection"): "connect",
    ("socket", "getaddrinfo"): "name look-up",
    ("ssl", "read"): "socket",
    ("ssl", "recv"): "socket",
    ("ssl", "recv_into"): "socket",
    ("ssl", "do_handshake"): "TLS handshake",
    ("subprocess", "_try_wait"): "process to end",
    ("subprocess", "_communicate"): "process output",
    ("popen_fork", "poll"): "process to end",
    ("gevent.hub", "run"): "events",
    ("grpc._channel", "_blocking"): "gRPC",
    ("grpc._server", "_serve"): "events",
    ("uvicorn.server", "run"): "events",
    ("asyncio.runners", "run"): "events",
}


def waiting_on(stack: Stack) -> str:
    """Return what an idle thread with this stack waits for; empty if not known."""
    if not stack.frames:
        return ""
    top = stack.frames[0]
    module = top.namespace
    wait = _WAIT_NAMES.get((module, top.function))
    while wait is None and "." in module:  # the namespace may have a class: threading.Condition
        module = module.rpartition(".")[0]
        wait = _WAIT_NAMES.get((module, top.function))
    return wait or call_kind(top.call)


def hides_first_function(stack: Stack) -> bool:
    """Return True if the frames do not tell what a thread runs: its first function is in C, or was left out."""
    return stack.truncated or is_bootstrap(stack.frames[0].namespace, stack.frames[0].function)


def has_internal_name(name: str) -> bool:
    """Return True for names that the profiler, the OpenTelemetry SDK or gRPC gives its threads.

    Meant for stacks that hide the first function only, as a user may give any name to any thread.
    """
    return name.startswith(_INTERNAL_THREAD_NAMES) or name.endswith(_INTERNAL_TARGETS)


def is_internal(stack: Stack) -> bool:
    """Return True for threads of the profiler, the OpenTelemetry SDK, gRPC's clients and those without Python frames.

    The thread's first function decides, whatever its name. A truncated stack counts as the application's, and so does
    one that ends with `Thread.run`: the application has given it a function in C, such as ``run_forever`` of uvloop.
    """
    if stack.truncated:
        return False
    is_starting = not stack.frames
    for frame in reversed(stack.frames):
        if not is_bootstrap(frame.namespace, frame.function):
            # Threads that are starting or ending run no application code; they count as internal.
            return (is_starting and frame.namespace.startswith(_STARTUP_NAMESPACES)) or _is_internal_frame(frame)
        is_starting = frame.function != "run" or frame.line == frame.first_line  # there it has called nothing yet
    return is_starting


def _is_internal_frame(frame: Frame) -> bool:
    if not frame.namespace.startswith(_INTERNAL_NAMESPACES) or frame.namespace.startswith(_LABELS_NAMESPACE):
        return False
    return not frame.namespace.startswith("grpc.") or frame.function in _GRPC_THREAD_FUNCTIONS
