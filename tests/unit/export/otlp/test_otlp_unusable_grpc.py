"""Exports from a process that gRPC would abort: it has no device of random numbers, or too few free descriptors."""

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
