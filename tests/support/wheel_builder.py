"""A builder of this checkout's wheel, as pip builds it, in a separate folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = ("splunk_profiler", "native", "CMakeLists.txt", "pyproject.toml", "README.md", "LICENSE")


def copy_sources(folder: Path) -> Path:
    """Copy the sources, so that no build leaves files in the work tree."""
    for name in SHIPPED:
        subprocess.run(["cp", "-r", str(ROOT / name), str(folder)], check=True)
    for built in [*folder.rglob("*.so"), *folder.rglob("__pycache__")]:
        subprocess.run(["rm", "-r", str(built)], check=True)
    return folder


def build_wheel(folder: Path, path: str) -> Path:
    """Build the wheel of the sources in `folder`, with `path` as the search path for programs; keep ``build``."""
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--quiet", "--wheel-dir", "wheels", "."]
    env = {**os.environ, "PATH": path, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "SKBUILD_BUILD_DIR": "build"}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = (folder / "wheels").glob("*.whl")
    return wheel
