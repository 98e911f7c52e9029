"""The stack that C code of ours takes of the application's threads, as the compiler says it."""

from __future__ import annotations

import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest
from source_tree import ROOT

MAX_FRAME_BYTES = 1024  # a thread of an application may have 32 KiB in all
NATIVE = ROOT / "native"
# They run on threads of the profiler (`allocations_drain`, with what it calls), or on a stack of their own (spawn.c).
ELSEWHERE = {"lock_holders.c", "spawn.c", "tasks.c"}
DRAINS = {"allocations_drain", "merge_ended"}


@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not there")
def test_no_thread_of_the_application_has_large_frames_of_ours(tmp_path: Path) -> None:
    sources = [path for folder in ("walker", "context") for path in (NATIVE / folder).rglob("*.c")]
    folders = (
        sysconfig.get_path("include"),
        *(NATIVE / name for name in ("compat", "walker", "context", "context/hooks")),
    )
    options = ["-std=c11", "-O2", "-DNDEBUG", "-D_GNU_SOURCE=1", "-fPIC", "-fstack-usage", "-c"]
    subprocess.run(["gcc", *options, *(f"-I{folder}" for folder in folders), *sources], cwd=tmp_path, check=True)
    frames = [line.split("\t") for path in tmp_path.glob("*.su") for line in path.read_text("utf-8").splitlines()]
    large = set()
    for place, size, _ in frames:
        path, _, _, function = place.split(":")
        if int(size) > MAX_FRAME_BYTES and Path(path).name not in ELSEWHERE and function.split(".")[0] not in DRAINS:
            large.add((function, size))
    assert len(frames) > len(sources)
    assert not large
