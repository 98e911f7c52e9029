"""Commands end with one line at an error of the system, and as a shell's do where nobody reads their output."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from command_line import COMMAND, DEADLINE_S, ROOT, clean_environment, splunk_profiler
from permissions import unprivileged
from saved_samples import sample_line

from splunk_profiler.cli.view import open_files
from splunk_profiler.viewer.otlp_files import SourceError, find_files

_LONG_NAME, _LONG_HOST = "a" * 300, "\N{LATIN SMALL LETTER A WITH DIAERESIS}" * 70


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    (tmp_path / "logs.jsonl").write_text(sample_line(), "utf-8")
    return tmp_path


def _run(*arguments: str | Path, output: int) -> tuple[int, str]:
    """Run a command whose output goes to a descriptor; return its exit code and errors."""
    command = [*COMMAND, *map(str, arguments)]
    env = clean_environment()
    ended = subprocess.run(
        command, env=env, cwd=ROOT, stdout=output, stderr=subprocess.PIPE, text=True, timeout=DEADLINE_S, check=False
    )
    return ended.returncode, ended.stderr


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("report", _LONG_NAME), "File name too long"),
        (("view", _LONG_NAME), "File name too long"),
        (("view", _LONG_NAME, "--store", "store.db"), "File name too long"),
        (("view", "logs.jsonl", "--host", _LONG_HOST), "encoding of hostname failed"),
        (("collect", "--port", "0", "--host", _LONG_HOST), "too long"),  # the rest is of CPython's version
    ],
)
def test_name_that_the_system_refuses_is_one_line(saved: Path, arguments: tuple[str, ...], reason: str) -> None:
    ended = splunk_profiler(*arguments, env={"PYTHONPATH": str(ROOT)}, cwd=saved)
    assert (ended.returncode, ended.stdout) == (1, "")
    (line,) = ended.stderr.splitlines()
    assert line.startswith("splunk-profiler: error: ")
    assert reason in line


@pytest.mark.parametrize("look", [find_files, open_files])
@pytest.mark.parametrize(
    ("mode", "place"), [(0o333, "."), (0o444, "."), (0o444, "logs.jsonl"), (0o000, "."), (0o000, "logs.jsonl")]
)
def test_directory_that_may_not_be_used_is_an_error(mode: int, place: str, look: Callable[[Path], object]) -> None:
    with TemporaryDirectory() as name:
        directory = Path(name)
        (directory / "logs.jsonl").write_text(sample_line(), "utf-8")
        directory.chmod(mode)
        try:
            with unprivileged(), pytest.raises(SourceError, match=name):
                look(directory / place)
        finally:
            directory.chmod(0o700)


@pytest.mark.parametrize("words", [("report",), ("report", "--json"), ("--help",), ("report", "--help")], ids=" ".join)
def test_full_disk_below_the_output_is_one_line(saved: Path, words: tuple[str, ...]) -> None:
    with Path("/dev/full").open("wb") as full:
        code, errors = _run(*words, *[saved] * (words[-1] != "--help"), output=full.fileno())
    assert (code, errors) == (1, "splunk-profiler: error: [Errno 28] No space left on device\n")


@pytest.mark.parametrize(
    "words",
    [("report",), ("report", "--json"), ("report", "--help"), ("--help",), ("--version",)],
    ids=" ".join,
)
def test_output_that_nobody_reads_ends_as_in_a_shell(saved: Path, words: tuple[str, ...]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        assert _run(*words, *[saved] * (words[0] == "report"), output=writer) == (141, "")
    finally:
        os.close(writer)
