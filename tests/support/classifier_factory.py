"""Classifiers of code, and the folders of packages that they read."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from splunk_profiler.code_origin.classifier import CodeClassifier


def make_classifier(entries: Iterable[object] = (), parent: CodeClassifier | None = None) -> CodeClassifier:
    """Return a classifier whose clock stands still: one `read` reads all entries, also on a busy machine."""
    return CodeClassifier(lambda: entries, parent=parent, monotonic=lambda: 0.0)


def put(folder: Path, files: dict[str, str]) -> Path:
    """Write `files` (path → text) under `folder`."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, "utf-8")
    return folder


def site_of(folder: Path, count: int) -> Path:
    """Install `count` distributions of one package each; return the directory."""
    for number in range(count):
        record = "".join(f"p{number}/m{module}.py,,\n" for module in range(20))
        put(folder, {f"p{number}-1.{number}.dist-info/RECORD": record})
    return folder
