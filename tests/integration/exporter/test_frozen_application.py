"""An application that PyInstaller has frozen, as the documentation says to: its program is no interpreter."""

from __future__ import annotations

import re
import shlex
import subprocess
import sysconfig
import venv
from pathlib import Path

import pytest
from exporter_processes import find_exporters
from receiver_process import Receiver
from target_process import TESTS, Target, environment, profiling_settings

pytest.importorskip("splunk_profiler._walker")
pytest.importorskip("PyInstaller")
from package_copy import copy_package

APPLICATION = """
import logging, sys, threading
logging.basicConfig(level="INFO")
from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
import splunk_profiler
trace.set_tracer_provider(TracerProvider(resource=Resource({"service.name": "frozen"})))
assert splunk_profiler.start()
over = threading.Event()
def price_items():
    while not over.is_set(): sum(range(1000))
def serve():
    with trace.get_tracer("shop").start_as_current_span("price"): price_items()
thread = threading.Thread(target=serve)
thread.start()
sys.stdin.readline()
over.set()
thread.join()
splunk_profiler.stop()
"""


def _documented_command() -> list[str]:
    guide = (TESTS.parent / "docs" / "getting-started.md").read_text("utf-8")
    (line,) = re.findall(r"^pyinstaller (.*)$", guide, re.MULTILINE)
    return shlex.split(line)


def _install(folder: Path) -> Path:
    """Make an environment with a copy of the package and all else of this one; return its interpreter."""
    venv.create(folder, with_pip=False, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    copy_package(packages)
    (packages / "others.pth").write_text(sysconfig.get_path("purelib"), "utf-8")
    return folder / "bin" / "python"


def test_frozen_application_exports_by_itself(tmp_path: Path) -> None:
    python = _install(tmp_path / "environment")
    (tmp_path / "application.py").write_text(APPLICATION, "utf-8")
    command = [str(python), "-m", "PyInstaller", "--log-level", "WARN", *_documented_command()]
    made = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    program = str(tmp_path / "dist" / "application" / "application")
    with Receiver() as receiver, Target(program, env=profiling_settings(receiver.url, 10)) as target:
        record = receiver.record(lambda found: ".price_items(" in found["body"] and bool(found["span_id"]))
        assert (record["resource"]["service.name"], record["resource"]["process.pid"]) == ("frozen", target.pid)
        assert find_exporters(target.pid) == []
        target.tell("stop")
        assert target.finish() == 0, target.output
    assert "threads of this process: the application is frozen: its program runs no other code" in target.output
    assert "with the native walker" in target.output
