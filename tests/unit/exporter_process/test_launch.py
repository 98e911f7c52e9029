"""Which interpreter the exporter has, and what of the host it gets."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import pytest

from splunk_profiler.exporter_process.__main__ import VARIABLE, PostponedModule
from splunk_profiler.exporter_process.launch import (
    ALLOCATION,
    Launcher,
    LaunchError,
    connection_variables,
    find_interpreter,
)

LAUNCHER = Launcher(find_interpreter())
_OWN = ("SPLUNK_PROFILER_LOGS_HEADERS", "SPLUNK_PROFILER_TREE", "SPLUNK_SNAPSHOT_PROFILER_ENABLED", "DD_TAGS")
_PROVIDER = "OTEL_PYTHON_EXPORTER_OTLP_GRPC_{}CREDENTIAL_PROVIDER"
NAME = f"python{sys.version_info.major}.{sys.version_info.minor}{sys.abiflags}"


def _environment(env: dict[str, str]) -> dict[str, str]:
    """Return the environment of an exporter that is started with the host's."""
    return Launcher(find_interpreter(), variables=connection_variables(env)).environment(env, "token")


def _make_program(folder: Path, name: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text("#!/bin/sh\n", "utf-8")
    path.chmod(0o755)
    return path


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Leave no interpreter to be found; return an empty folder."""
    uwsgi = str(_make_program(tmp_path / "server", "uwsgi"))
    monkeypatch.setattr(sys, "executable", uwsgi)
    monkeypatch.setattr(sys, "_base_executable", "", raising=False)
    for name in ("prefix", "exec_prefix", "base_exec_prefix"):
        monkeypatch.setattr(sys, name, str(tmp_path / "missing"))
    return tmp_path


def test_a_path_that_no_program_can_be_given_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [f"/srv/{number:0100}" for number in range(1300)])
    with pytest.raises(LaunchError, match=r"sys\.path has 1300 entries, more than a program can be given"):
        _environment({})


def test_interpreter_is_the_running_one() -> None:
    found = find_interpreter()
    assert (found.path, found.origin, found.rejected) == (sys.executable, "sys.executable", ())


def test_interpreter_that_is_missing_everywhere_is_an_error_with_reasons(nowhere: Path) -> None:
    with pytest.raises(LaunchError) as caught:
        find_interpreter()
    text = str(caught.value)
    assert f"no {NAME.replace('python', 'Python ')} was found" in text
    assert f"sys.executable '{nowhere}/server/uwsgi' is another program" in text
    assert "sys._base_executable '' is not an absolute path" in text
    assert f"sys.exec_prefix '{nowhere}/missing/bin/{NAME}' cannot be executed" in text


@pytest.mark.parametrize("attribute", ["exec_prefix", "base_exec_prefix"])
def test_interpreter_of_an_embedding_program_is_found_by_the_prefix(
    attribute: str, nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = _make_program(nowhere / "python" / "bin", NAME)
    monkeypatch.setattr(sys, attribute, str(nowhere / "python"))
    found = find_interpreter()
    assert (found.path, found.origin) == (str(program), f"sys.{attribute}")
    assert "is another program" in found.rejected[0]


def test_interpreter_is_found_by_the_virtual_environment(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = _make_program(nowhere / "base", NAME)
    (nowhere / "pyvenv.cfg").write_text(f"version = 1\nhome = {nowhere}/base\n", "utf-8")
    monkeypatch.setattr(sys, "prefix", str(nowhere))
    assert find_interpreter().path == str(program)


def test_interpreter_without_a_version_in_its_name_must_be_the_running_one(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(_make_program(nowhere, "python3")))
    with pytest.raises(LaunchError, match="python3' may be another version"):
        find_interpreter()
    running = Path("/proc/self/exe").resolve()
    (nowhere / "python").mkdir()
    monkeypatch.setattr(sys, "executable", str(nowhere / "python" / "python3"))
    try:
        os.link(running, nowhere / "python" / "python3")
    except OSError:
        pytest.skip("the interpreter is on another file system")
    assert find_interpreter().origin == "sys.executable"


def test_interpreter_of_another_version_is_not_taken(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(_make_program(nowhere, "python3.9")))
    with pytest.raises(LaunchError, match=r"python3\.9' may be another version"):
        find_interpreter()


def test_frozen_application_has_no_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    with pytest.raises(LaunchError, match="frozen"):
        find_interpreter()


def test_environment_has_what_export_needs_and_nothing_else() -> None:
    needed = {
        "OTEL_EXPERIMENTAL_RESOURCE_DETECTORS": "1",
        "HTTPS_PROXY": "1",
        "https_proxy": "1",
        "no_proxy": "1",
        "LC_ALL": "1",
        "PATH": "1",
        "PYTHONHOME": "1",
    }
    other = {
        **dict.fromkeys(("AWS_SECRET_ACCESS_KEY", "DD_API_KEY", "LD_PRELOAD", "PYTHONPATH", "PYTHONSTARTUP"), "1"),
        **dict.fromkeys(("OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES"), "1"),  # of one host; an exporter has several
        **dict.fromkeys(("OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS"), "1"),
        **dict.fromkeys(_OWN, "1"),
        **dict.fromkeys(("OTEL_EXPORTER_OTLP_METRICS_HEADERS", "OTEL_EXPORTER_JAEGER_PASSWORD"), "1"),
        **dict.fromkeys(("SPLUNK_ACCESS_TOKEN", "path", "dd_tags", "LANGUAGE", "MY_PROXY_PASSWORD", "my_proxy"), "1"),
    }
    made = _environment({**needed, **other})
    assert made.keys() - {VARIABLE, *ALLOCATION} == needed.keys()


@pytest.mark.parametrize(
    ("name", "value", "leaves"),
    [
        ("SSL_CERT_FILE", "/ca.pem", True),
        ("SSL_CERT_FILE", "ca.pem", False),
        ("LD_LIBRARY_PATH", "/lib:lib", False),
        ("PATH", "/bin:", False),
        ("TMPDIR", "", True),
    ],
)
def test_directory_is_left_if_no_variable_has_a_relative_path(name: str, value: str, leaves: bool) -> None:
    made = _environment({name: value})
    assert made[name] == value
    assert json.loads(made[VARIABLE])["leaves_directory"] is leaves


@pytest.mark.parametrize("kind", ["", "LOGS_"])
def test_environment_for_a_credential_provider_is_the_hosts(kind: str) -> None:
    name = _PROVIDER.format(kind)
    needed = {name: "cloud", "AWS_SECRET_ACCESS_KEY": "1", "GOOGLE_APPLICATION_CREDENTIALS": "1"}
    interpreter = ("LD_PRELOAD", "LD_AUDIT", "PYTHONPATH", "PYTHONSTARTUP")
    other = dict.fromkeys((*interpreter, *_OWN[:-1], "OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES"), "1")
    made = _environment({**needed, **other})
    assert made.keys() - {VARIABLE, *ALLOCATION} == needed.keys()
    assert json.loads(made[VARIABLE])["leaves_directory"] is False
    assert _environment({**needed, name: " "}).keys() == {VARIABLE, *ALLOCATION}


def test_connection_variables_are_those_of_the_start() -> None:
    provider = _PROVIDER.format("")
    launcher = Launcher(find_interpreter(), variables={"https_proxy": "first", provider: "cloud"})
    made = launcher.environment({"HTTPS_PROXY": "late", "all_proxy": "late", "AWS_SECRET_ACCESS_KEY": "late"}, "token")
    assert made.keys() - {VARIABLE, *ALLOCATION} == {"https_proxy", provider}
    assert made["https_proxy"] == "first"


def test_environment_carries_the_path_of_the_host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", "a:b", "/ü", 1])
    path = json.loads(LAUNCHER.environment({}, "token")[VARIABLE])["path"]
    needed, entries = path[:-3], path[-3:]
    assert entries == [str(tmp_path), str(tmp_path / "a:b"), "/ü"]
    assert (Path(needed[0]) / "splunk_profiler" / "exporter_process").is_dir()
    shutil.rmtree(tmp_path)
    path = json.loads(LAUNCHER.environment({}, "token")[VARIABLE])["path"]
    assert path == [*needed, "/ü"]  # there is no working directory


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        (["/usr/bin/gunicorn", "app"], "gunicorn"),
        (["/srv/shop/__main__.py"], "shop"),
        ([""], "python"),
        (["/x/two\nlines"], "two\\nlines"),
        (["/x/" + "long" * 100], "long" * 16),
        ([b"bytes"], "python"),
        ([None], "python"),
    ],
)
def test_title_names_the_host(argv: list[object], name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", argv)
    assert LAUNCHER.arguments({})[-1] == f"splunk-profiler exporter for PID {os.getpid()} ({name})"


def test_title_is_escaped_where_the_locale_lacks_its_characters() -> None:
    code = r"""
import os, sys
from splunk_profiler.exporter_process.launch import Launcher, find_interpreter
sys.argv = ["/srv/l\xe4den"]
print(os.fsencode(Launcher(find_interpreter()).arguments({})[-1]).decode("ascii"))
"""
    env = {**os.environ, "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, timeout=60, env=env)
    assert done.stdout.endswith(rb" (l\xe4den)" + b"\n")


@pytest.mark.parametrize("is_written", [True, False])
def test_exporter_writes_bytecode_as_its_host_does(is_written: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", not is_written)
    assert ("-B" in LAUNCHER.arguments({})) is not is_written


@pytest.mark.parametrize(("prefix", "passed"), [(None, []), ("/cache", ["pycache_prefix=/cache"])])
def test_exporter_has_the_bytecode_of_its_host(
    prefix: str | None, passed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "pycache_prefix", prefix)
    arguments = LAUNCHER.arguments({})
    assert [after for word, after in pairwise(arguments) if word == "-X"] == passed


def test_postponed_module_is_loaded_once_by_threads_that_use_it_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    names = [f"late_{number}" for number in range(50)]
    for name in names:
        (tmp_path / f"{name}.py").write_text("value = object()\n", "utf-8")
        monkeypatch.setitem(sys.modules, name, PostponedModule(name))
    postponed = [sys.modules[name] for name in names]
    start = threading.Barrier(3)

    def use() -> list[object]:
        start.wait()
        return [module.value for module in postponed]

    usual_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(3) as pool:
            first, *others = (future.result() for future in [pool.submit(use) for _ in range(3)])
    finally:
        sys.setswitchinterval(usual_s)
    assert [*others] == [first, first]


@pytest.mark.parametrize("use", ["import late; late.value", "from late import value", "import late.part"])
def test_postponed_module_is_loaded_when_something_of_it_is_used(
    use: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "late").mkdir()
    (tmp_path / "late" / "__init__.py").write_text("value = 7\n", "utf-8")
    (tmp_path / "late" / "part.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    postponed = PostponedModule("late")
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "late", postponed)
        patched.setitem(sys.modules, "late.part", None)
        del sys.modules["late.part"]
        exec("import late", {})  # noqa: S102
        assert find_spec("late") is not None
        assert sys.modules["late"] is postponed
        exec(use, {})  # noqa: S102
        assert sys.modules["late"].__file__ == str(tmp_path / "late" / "__init__.py")
        assert postponed.value == 7


def test_sessions_that_need_tls_at_once_get_it_while_it_is_loaded() -> None:
    code = """
import threading
from splunk_profiler.exporter_process.__main__ import postpone_modules
postpone_modules()
from splunk_profiler.export.deadline_stream import client_context
start, made = threading.Barrier(3), []
def use():
    start.wait()
    made.append(client_context())
threads = [threading.Thread(target=use) for _ in range(3)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(len(made))
"""
    command = [sys.executable, "-S", "-c", f"import sys; sys.path[:] = {sys.path!r}\n{code}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("3\n", "")


@pytest.mark.skipif((3, 12) <= sys.version_info < (3, 14), reason="dataclasses reads annotations by inspect there")
def test_classes_with_slots_do_not_load_what_is_postponed() -> None:
    code = (
        "import sys\n"
        "from splunk_profiler.exporter_process.__main__ import PostponedModule, postpone_modules\n"
        "postpone_modules()\n"
        "from dataclasses import dataclass\n"
        "@dataclass(frozen=True, slots=True)\n"
        "class Point:\n"
        "    'A place.'\n"
        "    x: int\n"
        "print(Point(3), type(sys.modules['inspect']) is PostponedModule)\n"
    )
    command = [sys.executable, "-S", "-c", f"import sys; sys.path[:] = {sys.path!r}\n{code}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("Point(x=3) True\n", "")
