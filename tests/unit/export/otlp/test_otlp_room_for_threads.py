"""Exports from a process that can make no more threads, or has no memory for them: gRPC would abort it."""

from __future__ import annotations

import re
import sys

import pytest
from logs_collector import Collector, running
from short_programs import run_code

walker = pytest.importorskip("splunk_profiler._walker")

# glibc gives each thread of a program that is executed with this limit a stack for which there is no room.
_EXECUTE = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_STACK, (1 << 60, resource.getrlimit(resource.RLIMIT_STACK)[1]))
os.execv(sys.executable, [sys.executable, "-c", %r])
"""
# Enough for the stacks of the threads. The C library reserves further 64 MiB for each at its first allocation.
_LIMIT_MEMORY = """
import os, resource
size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + (300 << 20), resource.getrlimit(resource.RLIMIT_AS)[1]))
"""
_EXPORT = """
import sys
sys.path[:0] = %r
from sample_factory import make_sample
from splunk_profiler.config.otlp_transport import Transport
from splunk_profiler.config.parsers import parse_endpoint
from splunk_profiler.export.otlp.exporter import OtlpSink
from splunk_profiler.samples import Batch

%s
sink = OtlpSink(parse_endpoint(%r), lambda _: b"", Transport())
status, text = sink.export(Batch((make_sample(1),)))[:2]
print(status.name, text)
sink.shutdown()
"""

# Exports on the connection of the trace exporter in the steps of a test.
_SHARE = """
import os, resource, sys, threading
sys.path[:0] = %r
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from sample_factory import make_sample
from splunk_profiler.config.otlp_transport import Transport
from splunk_profiler.config.parsers import parse_endpoint
from splunk_profiler.export.otlp.exporter import OtlpSink
from splunk_profiler.samples import Batch

url = "http://127.0.0.1:%d"
provider = TracerProvider(shutdown_on_exit=False)
provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=url)))
sink = OtlpSink(parse_endpoint(url), lambda _: b"", Transport(timeout_s=2), lambda: provider)

def export():
    print(sink.export(Batch((make_sample(1),))).export_status.name, flush=True)

%s
os._exit(0)
"""
_LIMIT = """
limits = resource.getrlimit(resource.RLIMIT_AS)
size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + (4 << 20), limits[1]))
"""
_LIFT = "resource.setrlimit(resource.RLIMIT_AS, limits)"
# No thread of Python can start in between, but those of gRPC can.
_FAIL_THREADS, _ALLOW_THREADS = "threading.stack_size(1 << 46)", "threading.stack_size(0)"


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "https://127.0.0.1:9"])
def test_export_without_room_for_threads_of_grpc_is_tried_again(url: str) -> None:
    _assert_has_no_room(run_code(_EXECUTE % (_EXPORT % (sys.path, "", url))))


def test_export_without_memory_for_threads_of_grpc_is_tried_again() -> None:
    _assert_has_no_room(run_code(_EXPORT % (sys.path, _LIMIT_MEMORY, "http://127.0.0.1:9")))


def test_shared_connection_is_left_alone_without_room_for_a_thread() -> None:
    said = _share(_LIMIT, "export()", _LIFT, "export()", "export()", "provider.shutdown()")
    assert said == ["RETRY", "DELIVERED", "DELIVERED"]


def test_shared_connection_that_could_start_no_thread_is_used_no_more() -> None:
    said = _share(_FAIL_THREADS, "export()", _ALLOW_THREADS, "export()", "export()")
    assert said == ["RETRY", "DELIVERED", "DELIVERED"]


def test_stuck_shared_connection_is_used_no_more_after_a_lack_of_room() -> None:
    steps = [_FAIL_THREADS, "export()", _ALLOW_THREADS, _LIMIT, "export()", _LIFT]
    assert _share(*steps, "export()", "export()") == ["RETRY", "RETRY", "DELIVERED", "DELIVERED"]


def _share(*steps: str) -> list[str]:
    """Return the results of exports on a shared connection to a running collector."""
    with running(Collector()) as port:
        # With an arena of its own, each thread of gRPC that begins to work would take more than the limit leaves.
        return run_code(_SHARE % (sys.path, port, "\n".join(steps)), MALLOC_ARENA_MAX="1").splitlines()


def _assert_has_no_room(said: str) -> None:
    assert re.fullmatch(r"RETRY there is no room for the \d+ threads that gRPC may need\n", said)


def test_process_with_room_for_threads_has_it_again_and_again() -> None:
    assert all(walker.has_room_for_threads(64) for _ in range(100))


@pytest.mark.parametrize("count", [-1, 65, 1 << 70, "8"])
def test_number_of_threads_that_cannot_be_made_at_once_is_an_error(count: object) -> None:
    with pytest.raises((ValueError, OverflowError, TypeError)):
        walker.has_room_for_threads(count)
