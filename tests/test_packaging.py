"""Contents of the wheel, and agreement between the promises of the README, the Makefile and the gate.

Reads the real wheel, and builds a second one without a compiler.
"""

from __future__ import annotations

import ast
import email
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from email.message import Message
from pathlib import Path

import pytest
from source_tree import OURS, modules, nodes_of, within
from wheel_builder import build_wheel, copy_sources

import splunk_profiler

ROOT = Path(__file__).resolve().parent.parent
# The distribution of each package that ours imports; of two names the longer one comes first.
DISTRIBUTIONS = {
    "opentelemetry.proto": "opentelemetry-proto",
    "opentelemetry": "opentelemetry-sdk",
    "google.rpc": "googleapis-common-protos",
    "google.protobuf": "protobuf",
    "grpc": "grpcio",
    "click": "click",
    "rich": "rich",
    "numpy": "numpy",
    "starlette": "starlette",
    "uvicorn": "uvicorn",
}


def _metadata(wheel: zipfile.ZipFile) -> Message:
    (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    return email.message_from_bytes(wheel.read(name))


@pytest.mark.parametrize("extension", ["_walker", "_context"])
def test_the_wheel_holds_the_extensions(wheel: zipfile.ZipFile, extension: str) -> None:
    assert [name for name in wheel.namelist() if re.fullmatch(rf"splunk_profiler/{extension}\..*\.so", name)]


def test_wheel_holds_the_stubs_the_sitecustomize_and_the_page(wheel: zipfile.ZipFile) -> None:
    wanted = {"py.typed", "_walker.pyi", "_context.pyi", "cli/autostart/sitecustomize.py"}
    assert {f"splunk_profiler/{name}" for name in wanted} <= set(wheel.namelist())
    page = ROOT / "splunk_profiler" / "viewer" / "page"
    assert {str(file.relative_to(ROOT)) for file in page.iterdir()} <= set(wheel.namelist())


def test_the_wheel_holds_nothing_but_the_package_and_its_metadata(wheel: zipfile.ZipFile) -> None:
    assert {name.split("/")[0].split("-")[0] for name in wheel.namelist()} == {"splunk_profiler"}
    assert not [name for name in wheel.namelist() if name.endswith((".c", ".h", ".pyc"))]


def test_the_wheel_holds_the_licence(wheel: zipfile.ZipFile) -> None:
    assert [name for name in wheel.namelist() if name.endswith("/LICENSE")]


def test_links_on_the_package_page_lead_to_files_of_the_repository(wheel: zipfile.ZipFile) -> None:
    metadata = _metadata(wheel)
    targets = re.findall(r"]\(([^)]+)\)", str(metadata.get_payload()))
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert targets
    repository = re.escape(next(url for url in metadata.get_all("Project-URL", []) if "Homepage" in url).split()[-1])
    files = [re.sub(rf"^{repository}/(blob|raw)/main/", "", target) for target in targets]
    assert not [file for file, target in zip(files, targets, strict=True) if file == target]
    assert not [file for file in files if not (ROOT / file).exists()]


def test_dependencies_are_ranges(wheel: zipfile.ZipFile) -> None:
    required = [line for line in _metadata(wheel).get_all("Requires-Dist", []) if "extra ==" not in line]
    assert any(line.startswith("opentelemetry-sdk") for line in required)
    assert not [line for line in required if re.search(r"[^<>!=]==", line.partition(";")[0])]


def test_each_package_that_is_imported_is_declared(wheel: zipfile.ZipFile) -> None:
    required = {re.split(r"[^\w-]", line)[0] for line in _metadata(wheel).get_all("Requires-Dist", [])}
    imported = {
        name
        for path in modules().values()
        for node in nodes_of(path)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names])
        if name.partition(".")[0] not in (*sys.stdlib_module_names, OURS)
    }
    known = {name: next((each for each in DISTRIBUTIONS if within(name, each)), name) for name in imported}
    assert {DISTRIBUTIONS.get(module, module) for module in known.values()} <= required
    assert {*known.values()} == {*DISTRIBUTIONS}


def test_the_version_is_the_same_everywhere(wheel: zipfile.ZipFile) -> None:
    assert _metadata(wheel)["Version"] == splunk_profiler.__version__
    assert f" {splunk_profiler.__version__}\n" in (ROOT / "CHANGELOG.md").read_text("utf-8")


def test_the_wheel_says_where_the_command_and_the_post_instrument_hook_are(wheel: zipfile.ZipFile) -> None:
    (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/entry_points.txt")]
    text = wheel.read(name).decode()
    assert re.search(r"\[console_scripts\]\s+splunk-profiler ?= ?splunk_profiler\.__main__:main", text)
    assert re.search(r"\[opentelemetry_post_instrument\]\s+\w+ ?= ?splunk_profiler:\w+", text)


def test_without_a_compiler_the_wheel_is_built_without_the_walker(tmp_path: Path) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    for program in ("sh", "uname", "env", "cmake", "ninja"):
        if found := shutil.which(program):  # pip installs those that build unless they are there
            (programs / program).symlink_to(found)
    sources = tmp_path / "sources"
    sources.mkdir()
    with zipfile.ZipFile(build_wheel(copy_sources(sources), str(programs))) as built:
        names = built.namelist()
    assert "splunk_profiler/capture/portable.py" in names
    assert not [name for name in names if name.endswith(".so")]


def test_make_setup_fails_where_a_compiler_does_not_build_the_walker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["make", "--dry-run", "--always-make", "setup"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    (install,) = [line for line in done.stdout.splitlines() if "test-once" in line]
    name, _, value = install.partition(" ")[0].partition("=")
    monkeypatch.setenv(name, value)
    sources = copy_sources(tmp_path)
    (sources / "CMakeLists.txt").write_text('message(FATAL_ERROR "cannot be built")')
    with pytest.raises(AssertionError, match="cannot be built"):
        build_wheel(sources, os.environ["PATH"])


def _make_targets() -> set[str]:
    return set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.M))


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "docs/performance.md", "docs/reliability.md"])
def test_pages_name_only_make_targets_that_exist(page: str) -> None:
    text = (ROOT / page).read_text("utf-8")
    assert set(re.findall(r"(?:^|`)make ([a-z]+)", text, re.M)) <= _make_targets()


def test_the_gate_runs_the_commands_of_the_readme() -> None:
    readme, gate = ((ROOT / name).read_text("utf-8") for name in ("README.md", ".ci/run"))
    assert re.search(r"^make test$", readme, re.M)
    assert re.search(r"^\s+make test\b", gate, re.M)


def test_links_between_the_pages_lead_somewhere() -> None:
    dead = []
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text("utf-8")):
            if "://" not in target and not (page.parent / target).exists():
                dead.append(f"{page.name}: {target}")
    assert not dead


def test_files_that_the_pages_for_contributors_name_exist() -> None:
    pages = [ROOT / "CONTRIBUTING.md", ROOT / "docs" / "architecture.md", *(ROOT / "docs" / "internals").glob("*.md")]
    named = {name for page in pages for name in re.findall(r"`([\w.-]+(?:/[\w.-]+)+\.\w+)`", page.read_text("utf-8"))}
    assert "export/destinations.py" in named
    assert not [name for name in named if not (ROOT / name).exists() and not (ROOT / "splunk_profiler" / name).exists()]


MEASURES = sorted(
    path.stem for path in (ROOT / "benchmarks").glob("*.py") if "\ndef measure(" in path.read_text("utf-8")
)


@pytest.mark.parametrize("measure", MEASURES)
def test_every_measure_can_be_taken(measure: str) -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "run.py"), "--quick", measure]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert '"measure"' in done.stdout


def test_peers_that_cannot_be_installed_are_said_and_not_failed(tmp_path: Path) -> None:
    pip = shutil.which("pip", path=Path(sys.executable).parent)
    if pip is not None:  # or one is made, which takes longer than all else here
        (tmp_path / "pip" / "bin").mkdir(parents=True)
        (tmp_path / "pip" / "bin" / "pip").symlink_to(pip)
    command = [sys.executable, str(ROOT / "benchmarks" / "peers.py"), "--quick", "--folder", str(tmp_path), "ddtrace"]
    env = {**os.environ, "PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["missing"]
