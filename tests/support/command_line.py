"""Runs this package's commands as a user does, in processes of their own; shared by the tests of the command line.

Every wait has a deadline. Imports nothing of the package.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from forked_process import ForkedProcess

ROOT = Path(__file__).resolve().parents[2]
TARGETS = ROOT / "tests" / "targets"
COMMAND = [sys.executable, "-m", "splunk_profiler"]
DEADLINE_S = 90
UNREACHABLE_URL = "http://127.0.0.1:9"


def clean_environment(changes: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return this process's environment without settings of profiler, OpenTelemetry and Python, and with `changes`."""
    others = ("SPLUNK_", "OTEL_", "ELASTIC_", "PYTHONUNBUFFERED")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(others)}
    return {**kept, **(changes or {})}


def splunk_profiler(
    *arguments: str | Path, env: Mapping[str, str] | None = None, cwd: Path = ROOT
) -> subprocess.CompletedProcess[str]:
    """Run one command to its end."""
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        env=clean_environment(env),
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


class Sender:
    """A running ``otlp_sender.py``."""

    def __init__(self, process: ForkedProcess) -> None:
        self._process = process

    def do(self, *job: str | int) -> Any:
        """Let it do one of its jobs and return the answer."""
        print(json.dumps(job), file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())


@contextmanager
def run_sender(address: str) -> Iterator[Sender]:
    """Run a sender of requests to the collector at that address."""
    process = ForkedProcess("otlp_sender.py", address)
    try:
        yield Sender(process)
    finally:
        process.stdin.close()
        assert process.wait(DEADLINE_S), "the sender does not end"
        assert process.close() == 0


class Collector:
    """A running ``splunk-profiler collect``.

    Attributes:
        address: ``host:port``.
        directory: where it saves.
    """

    def __init__(self, process: subprocess.Popen[str], address: str, directory: Path) -> None:
        self.process = process
        self.address = address
        self.directory = directory

    def end(self) -> tuple[str, str]:
        """End it and return the output and errors that follow its first line."""
        self.process.terminate()
        output, errors = self.process.communicate(timeout=DEADLINE_S)
        assert self.process.returncode == 0, errors
        return output, errors

    def lines(self, name: str) -> list[Any]:
        """Parse each line of the file as JSON."""
        return [json.loads(line) for line in (self.directory / name).read_text("utf-8").splitlines()]


@contextmanager
def run_collector(directory: Path, *options: str) -> Iterator[Collector]:
    """Run a collector on a free port; end it with the block."""
    process = subprocess.Popen(
        [*COMMAND, "collect", "--port", "0", "--output", str(directory), *options],
        env=clean_environment(),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        first = process.stdout.readline()
        assert first.startswith("listening on "), process.communicate(timeout=DEADLINE_S)
        yield Collector(process, first.removeprefix("listening on ").strip(), directory)
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=DEADLINE_S)


def collect_program(directory: Path, program: Path, *arguments: str, env: Mapping[str, str]) -> None:
    """Collect what a Python program sends under ``splunk-profiler run``, until it has ended."""
    with run_collector(directory) as collector:
        endpoint = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{collector.address}"}
        ended = splunk_profiler("run", "--", sys.executable, program, *arguments, env={**env, **endpoint})
        assert ended.returncode == 0, ended.stderr
        collector.end()


def collect_batch(directory: Path, data_format: str, *numbers: int) -> str:
    """Collect records of ``examples/batch.py`` with these arguments; return the output of `collect`."""
    settings = {
        "SPLUNK_PROFILER_ENABLED": "true",
        "SPLUNK_PROFILER_CALL_STACK_INTERVAL": "10",
        "SPLUNK_PROFILER_DATA_FORMAT": data_format,
        "SPLUNK_PROFILER_EXPORT_INTERVAL": "600000",  # one profile, however long the job takes
        "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
    }
    with run_collector(directory) as collector:
        subprocess.run(
            [sys.executable, ROOT / "examples" / "batch.py", *map(str, numbers)],
            env=clean_environment({**settings, "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{collector.address}"}),
            capture_output=True,
            timeout=DEADLINE_S,
            check=True,
        )
        return collector.end()[0]
