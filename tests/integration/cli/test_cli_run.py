"""The launcher: real programs, started by ``splunk-profiler run`` without a change to them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import venv
from pathlib import Path

import click
import pytest
from command_line import COMMAND, DEADLINE_S, ROOT, UNREACHABLE_URL, clean_environment, splunk_profiler

from splunk_profiler.cli.errors import CommandError
from splunk_profiler.cli.run import AUTOSTART, find_isolating_flag, find_program, run
from splunk_profiler.host_profilers.libraries import labels_library

REPORTER = """
import json, os, sys, threading
names = [thread.name for thread in threading.enumerate()]
print(json.dumps({
    "profiled": any(name.startswith("splunk-profiler-") for name in names),
    "arguments": sys.argv[1:],
    "interval": os.environ.get("SPLUNK_PROFILER_CALL_STACK_INTERVAL"),
    "enabled": os.environ.get("SPLUNK_PROFILER_ENABLED"),
    "path": sys.path,
    "own_ran": hasattr(sys, "own_ran"),
    "sitecustomize": getattr(sys.modules.get("sitecustomize"), "__file__", None),
    "preload": [pair for pair in open("/proc/self/environ").read().split("\\0") if pair.startswith("LD_PRELOAD=")],
}), flush=True)
"""


@pytest.fixture
def reporter(tmp_path: Path) -> Path:
    """A program that says how it was started and whether the profiler runs in it."""
    path = tmp_path / "reporter.py"
    path.write_text(REPORTER, "utf-8")
    return path


def launched(*arguments: str | Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return splunk_profiler("run", *arguments, env={"SPLUNK_PROFILER_LOGS_ENDPOINT": UNREACHABLE_URL, **(env or {})})


def test_run_profiles_a_python_program_and_keeps_its_arguments(reporter: Path) -> None:
    arguments = ["two words", "--interval-ms", "*", "", "--", 'quo"te']
    env = {"SPLUNK_PROFILER_CALL_STACK_INTERVAL": "777"}
    ended = launched("--interval-ms", "250", "--", sys.executable, reporter, *arguments, env=env)
    said = json.loads(ended.stdout)
    assert ended.returncode == 0
    assert said["profiled"]
    assert said["arguments"] == arguments
    assert said["interval"] == "250", "an option overrides the environment"
    assert not [entry for entry in said["path"] if entry.endswith("autostart")]


def test_run_without_two_dashes_leaves_options_to_the_command(reporter: Path) -> None:
    ended = launched(sys.executable, "-B", reporter, "--walker", "x", "-h")
    assert json.loads(ended.stdout)["arguments"] == ["--walker", "x", "-h"]


def test_a_shell_scripts_module_is_profiled_beside_its_sitecustomize(reporter: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import sys; sys.own_ran = True", "utf-8")
    script = tmp_path / "start.sh"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m {reporter.stem} "$@"\n', "utf-8")
    script.chmod(0o755)
    path = os.pathsep.join([str(own), str(reporter.parent), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    ended = launched("--", script, "a b", env={"PYTHONPATH": path})
    said = json.loads(ended.stdout)
    assert said["profiled"], ended.stderr
    assert said["arguments"] == ["a b"]
    assert said["own_ran"]
    assert said["sitecustomize"] == str(own / "sitecustomize.py")


def test_a_script_that_names_no_interpreter_runs_as_a_shell_would_run_it(tmp_path: Path) -> None:
    script = tmp_path / "plain"
    script.write_text('echo "plain $1"\n', "utf-8")
    script.chmod(0o755)
    assert launched(script, "text").stdout == "plain text\n"


def test_python_processes_that_the_program_starts_are_profiled_too(reporter: Path, tmp_path: Path) -> None:
    parent = tmp_path / "parent.py"
    parent.write_text(f"import subprocess, sys; subprocess.run([sys.executable, {str(reporter)!r}])", "utf-8")
    assert json.loads(launched("--", sys.executable, parent).stdout)["profiled"]


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_processes_of_multiprocessing_are_profiled_too(tmp_path: Path, method: str) -> None:
    program = tmp_path / "pool.py"
    program.write_text(
        "import multiprocessing, threading\n"
        "def names():\n"
        "    return [thread.name for thread in threading.enumerate()]\n"
        "if __name__ == '__main__':\n"
        f"    with multiprocessing.get_context({method!r}).Pool(1) as pool:\n"
        "        print('\\n'.join(pool.apply(names)))\n",
        "utf-8",
    )
    ended = launched("--", sys.executable, program)
    assert "splunk-profiler-" in ended.stdout, ended.stderr


def test_a_package_that_raises_runs_unprofiled_with_one_warning(reporter: Path, tmp_path: Path) -> None:
    own = (
        "import sys\n"
        "class Damage:\n"
        "    def find_spec(name, *_):\n"
        "        if name == 'splunk_profiler':\n"
        "            raise RuntimeError('damaged')\n"
        "sys.meta_path.insert(0, Damage)\n"
    )
    (tmp_path / "sitecustomize.py").write_text(own, "utf-8")
    env = clean_environment({"PYTHONPATH": f"{AUTOSTART}{os.pathsep}{tmp_path}"})
    command = ["sh", "-c", 'SPLUNK_PROFILER_RUN_PID=$$ exec "$@"', "sh", sys.executable, str(reporter)]
    ended = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert not json.loads(ended.stdout)["profiled"]
    (line,) = ended.stderr.splitlines()
    assert "not started in this process: it cannot be imported by" in line
    assert line.endswith("damaged")


def test_error_in_the_applications_sitecustomize_is_shown_under_run(reporter: Path, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import a_module_that_is_missing", "utf-8")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    ended = launched("--", sys.executable, reporter, env={"PYTHONPATH": path})
    assert "a_module_that_is_missing" in ended.stderr
    assert json.loads(ended.stdout)["profiled"]


def test_switch_and_settings_in_the_environment_hold(reporter: Path) -> None:
    env = {"SPLUNK_PROFILER_ENABLED": "false", "SPLUNK_PROFILER_CALL_STACK_INTERVAL": "777"}
    said = json.loads(launched("--", sys.executable, reporter, env=env).stdout)
    assert not said["profiled"]
    assert (said["enabled"], said["interval"]) == ("false", "777")


def test_interpreter_without_the_package_runs_unprofiled_with_one_warning(reporter: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "bare", with_pip=False, symlinks=True)
    bare = tmp_path / "bare" / "bin" / "python"
    # With tests from the sources, PYTHONPATH would give the package to every interpreter.
    env = clean_environment()
    env.pop("PYTHONPATH", None)
    ended = subprocess.run(
        [*COMMAND, "run", "--", bare, reporter], env=env, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert not json.loads(ended.stdout)["profiled"]
    (line,) = ended.stderr.splitlines()
    assert "not started" in line
    assert f"{bare} -m pip install splunk-profiler" in line


def older_pythons() -> list[str]:
    """Interpreters that are too old, Python 2 among them, where there are any."""
    return [path for name in ("python2.7", "python3.6", "python3.8", "python3.9") if (path := _which(name))]


def _which(name: str) -> str | None:
    installed = sorted((Path.home() / ".pyenv" / "versions").glob(f"*/bin/{name}"))
    return str(installed[0]) if installed else shutil.which(name)


@pytest.mark.parametrize("other", ["bare", *older_pythons()])
def test_children_with_another_interpreter_run_as_without_us(tmp_path: Path, other: str) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import sys; sys.own_ran = True", "utf-8")
    if other == "bare":
        venv.create(tmp_path / "bare", with_pip=False, symlinks=True)
        other = str(tmp_path / "bare" / "bin" / "python")
    code = "import sys; print(sys.own_ran); print([entry for entry in sys.path if 'autostart' in entry])"
    child = f"import subprocess; subprocess.run({[other, '-c', code]!r}, check=True)"
    ended = subprocess.run(
        [*COMMAND, "run", "--endpoint", UNREACHABLE_URL, "--", sys.executable, "-c", child],
        env=clean_environment({"PYTHONPATH": str(own)}),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "True\n[]\n", "")


@pytest.mark.parametrize("old", older_pythons())
def test_too_old_interpreter_runs_unprofiled_with_one_warning(old: str) -> None:
    ended = launched("--", old, "-c", "print('ran')")
    assert (ended.returncode, ended.stdout) == (0, "ran\n")
    (line,) = ended.stderr.splitlines()
    assert "needs 3.10 or newer" in line


def test_isolated_python_runs_unprofiled_with_a_warning(reporter: Path) -> None:
    ended = launched("--", sys.executable, "-I", reporter)
    assert not json.loads(ended.stdout)["profiled"]
    assert "option -I keeps the profiler from being started" in ended.stderr


@pytest.mark.parametrize("variable", ["SPLUNK_PROFILER_ENABLED=false", "OTEL_SDK_DISABLED=true"])
def test_isolated_python_is_not_warned_of_where_nothing_is_started(variable: str) -> None:
    name, _, value = variable.partition("=")
    ended = launched("--", sys.executable, "-I", "-c", "print('ran')", env={name: value})
    assert (ended.stdout, ended.stderr) == ("ran\n", "")


@pytest.mark.parametrize(
    ("arguments", "flag"),
    [
        ("-I a.py", "-I"),
        ("-uE a.py", "-E"),
        ("-X dev -I a.py", "-I"),
        ("-Xdev -S a.py", "-S"),
        ("-bW error -E a.py", "-E"),
        ("-X -I a.py", None),
        ("-m a -I", None),
        ("-c I -I", None),
        ("a.py -I", None),
        ("-W", None),
    ],
)
def test_an_option_that_isolates_python_is_found(arguments: str, flag: str | None) -> None:
    assert find_isolating_flag(sys.executable, arguments.split()) == flag


def test_signals_reach_the_program_which_has_the_launchers_process_id(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import os, signal, sys\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])\n"  # it may come before anybody waits for it
        "print('ready', os.getpid(), flush=True)\n"
        "signal.sigwait([signal.SIGTERM])\n"
        "sys.exit(41)\n",
        "utf-8",
    )
    process = subprocess.Popen(
        [*COMMAND, "run", "--endpoint", UNREACHABLE_URL, "--", sys.executable, str(program)],
        env=clean_environment(),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == f"ready {process.pid}\n"
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 41


def test_a_closed_pipe_ends_the_program_as_it_does_without_the_launcher() -> None:
    # Python ignores SIGPIPE in itself; a program that is executed must not inherit that.
    ended = launched("--", "sh", "-c", "trap - PIPE; yes | head -n 1; echo done")
    assert ended.stdout == "y\ndone\n"
    assert "Broken pipe" not in ended.stderr


def test_no_command_is_wrong_usage() -> None:
    ended = launched("--interval-ms", "10")
    assert ended.returncode == 2
    assert "name the command to run" in ended.stderr


def test_a_value_that_a_setting_does_not_take_is_wrong_usage() -> None:
    with pytest.raises(click.UsageError, match="'0' is not usable: outside 1 to 3600000"):
        run.make_context("run", ["--interval-ms", "0", "--", "true"])


def test_a_command_that_does_not_exist_ends_with_127_as_in_a_shell() -> None:
    ended = launched("--", "no-such-program")
    assert (ended.returncode, ended.stdout) == (127, "")
    assert ended.stderr == "splunk-profiler: error: no-such-program: is not a program in PATH\n"


def test_a_file_that_may_not_be_executed_ends_with_126_as_in_a_shell(tmp_path: Path) -> None:
    (tmp_path / "data").touch()
    for path in (tmp_path / "data", tmp_path):
        with pytest.raises(CommandError) as raised:
            find_program(str(path), os.defpath)
        assert raised.value.exit_code == 126


def test_a_script_whose_interpreter_is_missing_ends_with_127(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/no/such/interpreter\n", "utf-8")
    script.chmod(0o755)
    ended = launched("--", script)
    assert ended.returncode == 127
    assert "names an interpreter that does not exist" in ended.stderr


def test_launched_twice_over_there_is_one_profiler(reporter: Path) -> None:
    ended = launched("--", *COMMAND, "run", "--", sys.executable, reporter)
    assert json.loads(ended.stdout)["profiled"]


def test_program_of_opentelemetry_instrument_is_profiled_and_preloaded(reporter: Path) -> None:
    instrument = Path(sys.executable).with_name("opentelemetry-instrument")
    exporters = {f"OTEL_{signal}_EXPORTER": "none" for signal in ("TRACES", "METRICS", "LOGS")}
    ended = launched("--", instrument, sys.executable, reporter, "a b", env=exporters)
    said = json.loads(ended.stdout)
    assert said["profiled"], ended.stderr
    assert said["arguments"] == ["a b"]
    library = labels_library()
    assert said["preload"] == [f"LD_PRELOAD={library}"] * library.is_file()
