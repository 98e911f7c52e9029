"""Exports from a process where gRPC lacks something: a device of random numbers, or descriptors."""

from __future__ import annotations

import os
import sys

import pytest
from short_programs import run_code

_EXPORT = """
import os, resource, sys, tempfile
sys.path[:0] = %r
import grpc._channel  # as where only the device is missing
import splunk_profiler._walker
from sample_factory import make_sample
from splunk_profiler.config.otlp_transport import Transport
from splunk_profiler.config.parsers import parse_endpoint
from splunk_profiler.export.otlp.exporter import OtlpSink
from splunk_profiler.samples import Batch

sink = OtlpSink(parse_endpoint("http://127.0.0.1:9"), lambda _: b"", Transport())
%s
status, text = sink.export(Batch((make_sample(1),)))[:2]
print(status.name, text)
"""
_CHROOT = "os.chroot(tempfile.mkdtemp())"
_LIMIT = "resource.setrlimit(resource.RLIMIT_NOFILE, (%d, %d))"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_CHROOT, "No such file or directory"),
        (_LIMIT % (3, 3), "Too many open files"),
        (_LIMIT % (6, 6), "Too many open files"),
    ],
    ids=["no device", "no descriptor", "three descriptors"],
)
def test_export_without_what_grpc_needs_is_tried_again(change: str, reason: str) -> None:
    if change == _CHROOT and os.geteuid() != 0:
        pytest.skip("chroot needs root")
    said = run_code(_EXPORT % (sys.path, change))
    assert said.startswith("RETRY gRPC would end the process: ")
    assert reason in said


_CLOSING = """
import os, sys
sys.path[:0] = %r
import grpc
from logs_collector import Collector, running
from sample_factory import make_sample
from splunk_profiler.config.otlp_transport import Transport
from splunk_profiler.config.parsers import parse_endpoint
from splunk_profiler.export.otlp.exporter import OtlpSink
from splunk_profiler.samples import Batch
from splunk_profiler.system.descriptors import HIGH_NUMBER

class ClosingAtTheSecond(Collector):
    count = 0

    def Export(self, request, context):
        self.count += 1
        if self.count == 2:
            os.closerange(HIGH_NUMBER, HIGH_NUMBER + 100)
            context.abort(grpc.StatusCode.UNAVAILABLE, "Stream removed")
        return super().Export(request, context)

batch = Batch((make_sample(1),))
with running(ClosingAtTheSecond()) as port:
    sink = OtlpSink(parse_endpoint(f"http://127.0.0.1:{port}"), lambda _: b"", Transport())
    assert sink.export(batch)[0].name == "DELIVERED"
    status, text = sink.export(batch)[:2]
    sink.shutdown()
print(status.name, text)
"""


def test_a_call_that_fails_by_closed_descriptors_is_said_to_do_so() -> None:
    """It may fail before anything has ended it: gRPC's own descriptors are among those that are closed."""
    assert run_code(_CLOSING % sys.path).startswith("RETRY the application has closed the descriptors of gRPC")
