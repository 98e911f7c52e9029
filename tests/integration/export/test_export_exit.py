"""The end of a profiled process: it comes soon and in order, whatever the collector does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from receiver_process import Receiver

ROOT = Path(__file__).resolve().parents[3]
_BOUND_S = 20  # for a process on a busy machine to end; a hang is far longer

# Ends on command, and prints the seconds that the end took. Has loaded gRPC as a service that exports its spans.
SERVICE = """
import atexit, sys, threading, time

begun = []
atexit.register(lambda: print(f"{time.monotonic() - begun[0]:.3f}", flush=True))  # runs last

import splunk_profiler
import splunk_profiler.export.otlp.exporter, splunk_profiler.export.resource

class Busy(threading.Thread):
    def run(self):
        while True:
            sum(range(1000))

Busy(daemon=True).start()
splunk_profiler.start()
print("ready", flush=True)
sys.stdin.readline()
begun.append(time.monotonic())
"""


def end_of_a_service(endpoint: str, receiver: Receiver | None) -> tuple[subprocess.Popen[str], str]:
    """The service after its end, and what it wrote; fails if it does not end in time.

    It is told to end once the receiver has been called, or, without one, once it has said that there is none.
    """
    env = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "SPLUNK_", "GRPC_"))}
    env |= {
        "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path[1:]]),
        "SPLUNK_PROFILER_ENABLED": "true",
        "SPLUNK_PROFILER_LOGS_ENDPOINT": endpoint,
        "SPLUNK_PROFILER_CALL_STACK_INTERVAL": "10",
        "SPLUNK_PROFILER_MAX_OVERHEAD": "off",
        "SPLUNK_PROFILER_EXPORT_INTERVAL": "10",
        "OTEL_EXPORTER_OTLP_TIMEOUT": "600",
        "OTEL_SERVICE_NAME": "ending",
    }
    service = subprocess.Popen(
        [sys.executable, "-c", SERVICE],
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert service.stdout is not None
        assert service.stdout.readline() == "ready\n"
        assert service.stderr is not None
        said = ""
        if receiver is not None:
            receiver.exports(1)
        else:
            said = service.stderr.readline()
        _, errors = service.communicate("end\n", timeout=_BOUND_S)
    finally:
        service.kill()
        service.communicate()
    return service, said + errors


@pytest.mark.parametrize("mode", ["hang", "refuse UNAUTHENTICATED", "refuse UNAVAILABLE"])
def test_a_service_ends_in_order_with_an_export_in_flight(mode: str) -> None:
    with Receiver(mode=mode) as receiver:
        service, errors = end_of_a_service(receiver.url, receiver)
    assert service.returncode == 0, errors


def test_a_service_ends_in_order_without_a_collector() -> None:
    service, errors = end_of_a_service("http://127.0.0.1:1", None)
    assert service.returncode == 0, errors
    assert "no collector can be reached at http://127.0.0.1:1" in errors
    assert "were not delivered before the process ended" in errors


def test_what_was_sampled_last_is_sent_before_the_end() -> None:
    with Receiver() as receiver:
        service, errors = end_of_a_service(receiver.url, receiver)
        assert service.returncode == 0, errors
        assert "were not delivered" not in errors
        assert receiver.records(1)


def test_a_process_whose_first_export_is_at_its_end_still_says_who_it_is() -> None:
    code = """
import atexit, os
from splunk_profiler.export.resource import current_resource
@atexit.register
def tell():
    found = current_resource({"service.name": "shop", "deployment": "blue"}).attributes
    print(found["service.name"], found["deployment"], found["process.pid"] == os.getpid())
"""
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path[1:]])}
    told = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True, timeout=60)
    assert told.stdout == "shop blue True\n"
