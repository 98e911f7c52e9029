"""Services that share an exporter process: the resource of each, and where its code is from."""

from __future__ import annotations

import gzip
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from command_line import COMMAND
from receiver_process import Receiver
from target_process import TESTS, Target, profiling_settings

pytest.importorskip("splunk_profiler._walker")
from exporter_processes import exporters_with_variable, wait_for_end

from splunk_profiler.config.tree import TREE

_SERVICE = (*COMMAND, "run", "--", sys.executable, str(TESTS / "targets" / "uninstrumented.py"))

_BUSY = "import splunk_profiler, pricing\nassert splunk_profiler.start()\npricing.calculate()\nsplunk_profiler.stop(30)"
_PRICING = "import time\ndef calculate():\n    ends = time.monotonic() + 1\n    while time.monotonic() < ends: pass\n"


def _resource_of(receiver: Receiver, target: Target, prefix: str) -> dict[str, Any]:
    """Return the attributes with this prefix of a record of this process."""
    resource = receiver.record(lambda record: record["resource"]["process.pid"] == target.pid)["resource"]
    return {key: value for key, value in resource.items() if key.startswith(prefix)}


def test_services_of_one_tree_have_resources_of_their_own() -> None:
    web = {"OTEL_SERVICE_NAME": "web", "OTEL_RESOURCE_ATTRIBUTES": "service.version=1.2,service.instance.id=web-1"}
    worker = {"OTEL_RESOURCE_ATTRIBUTES": "service.name=worker"}
    with Receiver() as receiver:
        settings = profiling_settings(receiver.url, 10, **{TREE: os.urandom(16).hex()})
        with Target(*_SERVICE, env={**settings, **web}) as first:
            described = [_resource_of(receiver, first, "service.")]
            with Target(*_SERVICE, env={**settings, **worker}) as second:
                described.append(_resource_of(receiver, second, "service."))
                (exporter,) = exporters_with_variable(f"={receiver.url}")
                for target in (second, first):
                    target.tell("stop")
                    assert target.finish() == 0, target.output
        wait_for_end(exporter)
    assert described == [
        {"service.name": "web", "service.version": "1.2", "service.instance.id": "web-1"},
        {"service.name": "worker"},
    ]


def test_detected_resource_has_nothing_of_the_exporter_process() -> None:
    detected = {
        "OTEL_EXPERIMENTAL_RESOURCE_DETECTORS": "process,os",
        "OTEL_RESOURCE_ATTRIBUTES": "service.name=shop,process.owner=me",
    }
    with Receiver() as receiver:
        with Target(*_SERVICE, env={**profiling_settings(receiver.url, 10), **detected}) as target:
            assert _resource_of(receiver, target, "os.").keys() == {"os.type", "os.version"}
            assert _resource_of(receiver, target, "process.") == {"process.pid": target.pid, "process.owner": "me"}
            (exporter,) = exporters_with_variable(f"={receiver.url}")
            target.tell("stop")
            assert target.finish() == 0, target.output
        wait_for_end(exporter)


def test_libraries_are_found_on_the_path_of_each_service(tmp_path: Path) -> None:
    installed, profiles = tmp_path / "libraries", tmp_path / "profiles"
    (installed / "pricing-2.0.dist-info").mkdir(parents=True)
    (installed / "pricing.py").write_text(_PRICING, "utf-8")
    (installed / "pricing-2.0.dist-info" / "METADATA").write_text("Name: pricing\nVersion: 2.0\n", "utf-8")
    (installed / "pricing-2.0.dist-info" / "RECORD").write_text("pricing.py,,\n", "utf-8")
    own = {"SPLUNK_PROFILER_OUTPUT": f"file:{profiles}", "PYTHONPATH": str(installed), "OTEL_SERVICE_NAME": "shop"}
    with Receiver() as receiver:
        settings = profiling_settings(receiver.url, 10, **{TREE: os.urandom(16).hex()})
        with Target(*_SERVICE, env={**settings, "OTEL_SERVICE_NAME": "web"}) as first:
            _resource_of(receiver, first, "service.")  # it has started the exporter, and has no such directory
            with Target(sys.executable, "-c", _BUSY, env={**settings, **own}) as second:
                assert second.finish() == 0, second.output
            (exporter,) = exporters_with_variable(f"={receiver.url}")
            first.tell("stop")
            assert first.finish() == 0, first.output
        wait_for_end(exporter)
    assert any(b"pricing==2.0" in gzip.decompress(profile.read_bytes()) for profile in profiles.glob("*.pprof"))
