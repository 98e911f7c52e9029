"""The launcher has the labels library in the initial set of the command, and changes nothing else about it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import COMMAND, DEADLINE_S, UNREACHABLE_URL, clean_environment, splunk_profiler

import splunk_profiler as package

pytest.importorskip("splunk_profiler._context")

from splunk_profiler.host_profilers.libraries import labels_library

LIBRARY = str(labels_library())
ASK_THE_SHELL = ("sh", "-c", 'echo "$LD_PRELOAD"')
REPORTER = """
import json, os, sys
mapped = {line.split()[-1] for line in open("/proc/self/maps") if "/" in line}
print(json.dumps({"mapped": sorted(mapped), "preload": os.environ.get("LD_PRELOAD"), "arguments": sys.argv[1:]}))
"""


def launched(*command: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
    return splunk_profiler("run", "--", *command, env={"SPLUNK_PROFILER_LOGS_ENDPOINT": UNREACHABLE_URL, **env})


def preloaded(**env: str) -> str:
    return launched(*ASK_THE_SHELL, **env).stdout.strip()


def test_library_is_loaded_before_python_and_arguments_are_unchanged() -> None:
    # -I keeps Python from starting the profiler: what is mapped has been preloaded.
    ended = launched(sys.executable, "-I", "-c", REPORTER, "two words", "")
    said = json.loads(ended.stdout)
    assert LIBRARY in said["mapped"]
    assert said["arguments"] == ["two words", ""]
    assert not any("elastic-jvmti" in path for path in said["mapped"])


def test_what_is_preloaded_already_stays_in_its_place(tmp_path: Path) -> None:
    other = str(shutil.copy(LIBRARY, tmp_path / "other.so"))  # one that does nothing when it is loaded
    assert preloaded(LD_PRELOAD=other) == f"{other}:{LIBRARY}"
    assert preloaded(LD_PRELOAD=LIBRARY) == LIBRARY
    ended = launched(*COMMAND, "run", "--", *ASK_THE_SHELL)
    assert ended.stdout.strip() == LIBRARY


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, LIBRARY),
        ({"SPLUNK_PROFILER_CUSTOM_LABELS_ENABLED": "false"}, ""),
        ({"SPLUNK_PROFILER_CUSTOM_LABELS_ENABLED": "false", "SPLUNK_PROFILER_PRELOAD_ENABLED": "true"}, ""),
        ({"SPLUNK_PROFILER_PRELOAD_ENABLED": "false"}, ""),
        ({"SPLUNK_PROFILER_PRELOAD_ENABLED": "true"}, LIBRARY),
        ({"SPLUNK_PROFILER_ENABLED": "false"}, ""),
        ({"SPLUNK_PROFILER_ENABLED": "false", "SPLUNK_PROFILER_CUSTOM_LABELS_ENABLED": "true"}, LIBRARY),
        ({"OTEL_SDK_DISABLED": "true"}, ""),
    ],
)
def test_it_is_preloaded_exactly_where_labels_are_published(settings: dict[str, str], expected: str) -> None:
    assert preloaded(**settings) == expected


def the_preload_of_a_child(**env: str) -> str:
    code = f"import os, subprocess; subprocess.run({ASK_THE_SHELL})"
    return launched(sys.executable, "-c", code, **env).stdout.strip()


def test_children_of_a_python_process_are_preloaded_only_if_enabled(tmp_path: Path) -> None:
    other = str(shutil.copy(LIBRARY, tmp_path / "other.so"))
    assert the_preload_of_a_child() == ""
    assert the_preload_of_a_child(LD_PRELOAD=other) == other
    assert the_preload_of_a_child(SPLUNK_PROFILER_PRELOAD_ENABLED="true") == LIBRARY


def test_a_child_in_a_chroot_runs_as_without_us(tmp_path: Path) -> None:
    # Statically linked programs load nothing: this one has the loader and the C library that it needs.
    ldd = subprocess.run(["ldd", "/bin/true"], capture_output=True, text=True, check=True).stdout
    for needed in ["/bin/true", *(word for word in ldd.split() if word.startswith("/"))]:
        (tmp_path / needed[1:]).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(needed, tmp_path / needed[1:])
    if subprocess.run(["chroot", tmp_path, "/bin/true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("chroot is not allowed")
    code = f"import subprocess; subprocess.run(['chroot', {str(tmp_path)!r}, '/bin/true'], check=True)"
    ended = launched(sys.executable, "-c", code)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    ended = launched(sys.executable, "-c", code, SPLUNK_PROFILER_PRELOAD_ENABLED="true")
    assert "cannot be preloaded" in ended.stderr


def test_library_path_that_ld_preload_cannot_hold_is_reported_and_skipped(tmp_path: Path) -> None:
    there = tmp_path / "with space"
    shutil.copytree(Path(package.__file__).parent, there / "splunk_profiler")
    for built in Path(LIBRARY).parent.glob("*.so"):
        shutil.copy(built, there / "splunk_profiler")
    path = os.pathsep.join([str(there), *(entry for entry in sys.path if entry and "splunk" not in entry)])
    main = "import splunk_profiler.__main__ as m; raise SystemExit(m.main())"
    ended = subprocess.run(
        [sys.executable, "-S", "-c", main, "run", "--", *ASK_THE_SHELL],
        env={**clean_environment(), "PYTHONPATH": path},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "\n"
    assert "LD_PRELOAD cannot carry" in ended.stderr


def test_a_command_that_may_not_be_preloaded_runs_as_without_us(tmp_path: Path) -> None:
    setuid = tmp_path / "setuid"
    shutil.copy(shutil.which("true") or "/bin/true", setuid)
    setuid.chmod(0o4755)
    ended = launched(setuid)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    assert launched("sh", "-c", "exit 9").returncode == 9
