"""Virtual environments to measure in: this tree, a commit of it, and other profilers.

They are made under ``build/benchmarks``, or in another folder, and kept for the next run; ours is installed anew each
time. Needs the package index for what is not in pip's cache.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "build" / "benchmarks"
SERVICE_NEEDS = ("opentelemetry-sdk",)
SINK_NEEDS = ("grpcio", "opentelemetry-proto", "zstandard")  # to read what ddtrace sends


class MissingError(Exception):
    """An environment cannot be made; the message says why."""


@dataclass(frozen=True, slots=True)
class Installation:
    """A virtual environment.

    Attributes:
        python: its interpreter.
        version: version of the profiler in it.
    """

    python: str
    version: str


class Installer:
    """Makes the environments of one interpreter, `base`, in a folder."""

    def __init__(self, base: str, folder: Path = FOLDER) -> None:
        self._base = base
        self._folder = folder / run([base, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]).strip()

    def install_package(self, name: str) -> Installation:
        """Install the newest version of a package that the index has for this interpreter.

        Raises:
            MissingError: there is none, or it cannot be installed.
        """
        python = self._make(name)
        needs = (*SERVICE_NEEDS, *(SINK_NEEDS if name == "ddtrace" else ()))
        if not self._version(python, name):  # a wheel only: what is built here is not what a user gets
            self._pip(python, "install", "--only-binary", name, name, *needs)
        return Installation(python, self._version(python, name))

    def install_tree(self, tree: Path, name: str, extra: str = "") -> Installation:
        """Install this project from a folder, with its native parts and what `extra` names.

        Raises:
            MissingError: it cannot be built.
        """
        python = self._make(name)
        self._pip(python, "install", "--force-reinstall", "--no-deps", str(tree))
        self._pip(python, "install", f"{tree}[{extra}]" if extra else str(tree))  # what it needs
        run([python, "-I", "-c", "import splunk_profiler._walker"])
        return Installation(python, self._version(python, "splunk-profiler"))

    def install_commit(self, commit: str) -> Installation:
        """Install this project as it was at a commit, from a worktree.

        Raises:
            MissingError: there is no such commit, or it cannot be built.
        """
        tree = self._folder / "before-tree"
        if tree.exists():
            run(["git", "-C", str(ROOT), "worktree", "remove", "--force", str(tree)])
        run(["git", "-C", str(ROOT), "worktree", "add", "--force", "--detach", str(tree), commit])
        return self.install_tree(tree, "before")

    def _make(self, name: str) -> str:
        folder = self._folder / name
        python = folder / "bin" / "python"
        if not python.exists():
            shutil.rmtree(folder, ignore_errors=True)
            run([self._base, "-m", "venv", "--without-pip", str(folder)])
        return str(python)

    def _pip(self, python: str, *arguments: str) -> None:
        """Run the newest pip on an environment: an older one does not know a new interpreter."""
        own = self._folder.parent / "pip"
        if not own.exists():
            run([sys.executable, "-m", "venv", str(own)])
            run([str(own / "bin" / "pip"), "install", "--quiet", "--upgrade", "pip"])
        run([str(own / "bin" / "pip"), "--python", python, "--quiet", *arguments])

    def _version(self, python: str, package: str) -> str:
        code = f"from importlib.metadata import version; print(version({package!r}))"
        try:
            return run([python, "-c", code]).strip()
        except MissingError:
            return ""


def run(command: list[str]) -> str:
    """Run a command and return its output.

    Raises:
        MissingError: it failed; the message is the last line of what it said.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines() or [f"status {done.returncode}"]
        errors = [line for line in said if "ERROR" in line.upper()]
        raise MissingError((errors or said)[-1])
    return done.stdout
