"""The reasons for not using `importlib.metadata` where the profiler reads installed distributions."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import DistributionFinder, distributions
from pathlib import Path
from typing import Any

import pytest

from splunk_profiler.code_origin.classifier import CodeClassifier

OURS = (
    "from splunk_profiler.code_origin.classifier import CodeClassifier\n"
    "read = CodeClassifier(lambda: [{site!r}], monotonic=lambda: 0.0).read\n"
)
THEIRS = (
    "from importlib.metadata import DistributionFinder, MetadataPathFinder\n"
    "context = DistributionFinder.Context(path=[{site!r}])\n"
    "read = lambda: [(one.name, one.version, one.files) for one in MetadataPathFinder.find_distributions(context)]\n"
)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Return a directory with one distribution."""
    metadata = tmp_path / "one-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Name: one\nVersion: 1.0\n")
    (metadata / "RECORD").write_text("one.py,,\n")
    (tmp_path / "one.py").touch()
    return tmp_path


class ApplicationFinder(DistributionFinder):
    """A finder of the application, which counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def find_spec(self, *_: object) -> None:
        """Find nothing."""

    def find_distributions(self, context: Any = None) -> Iterator[Any]:  # noqa: ARG002
        self.calls += 1
        return iter(())


def test_importlib_metadata_calls_finders_of_the_application(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finder = ApplicationFinder()
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, finder])
    assert CodeClassifier(lambda: [str(site)], monotonic=lambda: 0.0).read()
    assert finder.calls == 0
    assert [one.version for one in distributions(path=[str(site)])] == ["1.0"]
    assert finder.calls == 1


@pytest.mark.parametrize(("reader", "imports"), [(OURS, False), (THEIRS, True)])
def test_importlib_metadata_imports_modules_as_it_reads(site: Path, reader: str, imports: bool) -> None:
    code = (
        f"import json, sys\n{reader.format(site=str(site))}\n"
        "before = set(sys.modules)\nread()\nprint(json.dumps(sorted(set(sys.modules) - before)))\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert bool(json.loads(ended.stdout)) is imports
