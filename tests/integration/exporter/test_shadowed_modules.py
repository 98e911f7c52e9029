"""An application with modules of the same names as those that the exporter process imports.

A server puts its directory in front of `sys.path` when it has loaded the standard library's.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from exporter_processes import find_exporters
from receiver_process import Receiver
from target_process import Target, profiling_settings

pytestmark = pytest.mark.skipif(find_spec("splunk_profiler._walker") is None, reason="the native walker is not built")

NAMES = (
    *("platform", "queue", "struct", "selectors", "signal", "datetime", "random", "copy", "uuid", "bisect", "fcntl"),
    *("inspect", "mmap", "subprocess", "zlib", "concurrent.futures", "socket", "heapq", "http.client", "grpc"),
)
APPLICATION = f"""
import sys
for name in {NAMES!r}: __import__(name)
import splunk_profiler
sys.path.insert(0, sys.argv[1])
assert splunk_profiler.start()
print("ready", flush=True)
sys.stdin.readline()
splunk_profiler.stop(30)
"""


def test_exporter_imports_no_module_of_the_application(tmp_path: Path) -> None:
    ran, modules = tmp_path / "ran", tmp_path / "modules"
    modules.mkdir()
    for name in NAMES:
        top = name.partition(".")[0]
        (modules / f"{top}.py").write_text(f"open({str(ran)!r}, 'a').write('{top} ')", "utf-8")
    with Receiver() as receiver:
        env = profiling_settings(receiver.url, 10, OTEL_SERVICE_NAME="shadowed")
        with Target(sys.executable, "-c", APPLICATION, str(modules), env=env) as target:
            receiver.records(1)
            assert len(find_exporters(target.pid)) == 1
            target.tell("stop")
            assert target.finish() == 0, target.output
    assert not ran.exists(), ran.read_text("utf-8")
