"""Tests of the demo's processes, and of its summary of its host agent."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from target_process import Target

from splunk_profiler.cli.demo_processes import make_ptrace_hook, summarize_agent_log

UNSEEN = {"event": "unseen", "pid": 1, "reasons": [{"code": "library-not-loaded", "text": "no library is loaded"}]}

# A signal comes while the demo waits for the new process to execute its program.
INTERRUPTED_PROGRAM = """
import os, signal, sys
from pathlib import Path
from splunk_profiler.cli.demo_processes import run_verb

def end(number, frame):
    raise SystemExit(number)

def interrupt():
    (folder / "pid").write_text(str(os.getpid()))
    os.kill(os.getppid(), signal.SIGTERM)

folder = Path(sys.argv[1])
signal.signal(signal.SIGTERM, end)
with run_verb("waiting", ["collect", "--port", "0", "--output", str(folder)], os.environ, folder, preexec=interrupt):
    pass
"""


def saying(folder: Path, *lines: str | dict[str, Any]) -> str:
    log = folder / "host-agent.log"
    log.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines), "utf-8")
    return summarize_agent_log(log)


def totals(**numbers: int) -> dict[str, Any]:
    return {"event": "totals", "processes": 1, "samples": 0, "lost_samples": 0, **numbers}


def test_sent_and_lost_samples_are_reported(tmp_path: Path) -> None:
    assert saying(tmp_path, UNSEEN, totals(samples=1234)) == "sent 1,234 samples of transactions to the service"
    assert saying(tmp_path, totals(samples=5, lost_samples=2)).endswith("to the service; 2 were lost")


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        (["splunk-profiler: error: process 7 may not be read"], "process 7 may not be read"),
        ([UNSEEN, totals(processes=0)], "no library is loaded"),
        ([], "it does not say why"),
        (["17"], "17"),
    ],
)
def test_an_agent_that_could_not_follow_is_reported_in_one_line(tmp_path: Path, lines: list[Any], why: str) -> None:
    assert saying(tmp_path, *lines) == f"could not follow the service, and the demo went on without it: {why}"


@pytest.mark.skipif(sys.platform != "linux", reason="there is nothing like it elsewhere")
def test_a_process_becomes_another_program_all_the_same(tmp_path: Path) -> None:
    set_ptracer = make_ptrace_hook(os.getpid())
    said = subprocess.run(
        [sys.executable, "-c", "print('here')"], preexec_fn=set_ptracer, capture_output=True, check=True, cwd=tmp_path
    )
    assert said.stdout == b"here\n"


def test_process_that_is_starting_when_a_signal_comes_is_ended(tmp_path: Path) -> None:
    with Target(sys.executable, "-c", INTERRUPTED_PROGRAM, str(tmp_path)) as demo:
        assert demo.finish() == signal.SIGTERM, demo.output
        assert not Path("/proc", (tmp_path / "pid").read_text("utf-8")).exists()
