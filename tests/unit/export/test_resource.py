"""The resource that detectors of OpenTelemetry's SDK describe."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

_DETECTOR = """
import threading
from opentelemetry.sdk.resources import Resource, ResourceDetector
class Detector(ResourceDetector):
    def detect(self):
        size = threading.stack_size()  # this sets the default
        threading.stack_size(size)
        return Resource({"stack.size": size})
"""
_CODE = """
import threading
threading.stack_size(1 << 16)
from splunk_profiler.export.resource import detect_resource
print(detect_resource({}).attributes["stack.size"], threading.stack_size())
"""


def test_detectors_have_threads_with_the_stack_that_they_need(tmp_path: Path) -> None:
    (tmp_path / "sizes.py").write_text(_DETECTOR, "utf-8")
    metadata = tmp_path / "sizes-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Name: sizes\nVersion: 1.0\n", "utf-8")
    (metadata / "entry_points.txt").write_text("[opentelemetry_resource_detector]\nsizes=sizes:Detector\n", "utf-8")
    variables = {"PYTHONPATH": str(tmp_path), "OTEL_EXPERIMENTAL_RESOURCE_DETECTORS": "sizes"}
    done = subprocess.run(
        [sys.executable, "-c", _CODE], env={**os.environ, **variables}, check=True, capture_output=True, text=True
    )
    assert [int(size) for size in done.stdout.split()] == [256 << 10, 1 << 16]
