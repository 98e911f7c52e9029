"""The extensions in a CPython that is laid out differently from the one that they were compiled for.

What such a release would change is changed in a copy of this interpreter's headers, with which the check of layouts is
compiled; all else of an extension is that of the wheel.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from command_line import DEADLINE_S, ROOT
from target_process import environment

pytest.importorskip("splunk_profiler._walker")

HEADERS = Path(sysconfig.get_path("include"))
LOAD = """
import importlib.machinery, importlib.util, logging, sys
class Finder:
    def find_spec(name, path, target=None):
        if name == sys.argv[1]:
            loader = importlib.machinery.ExtensionFileLoader(name, sys.argv[2])
            return importlib.util.spec_from_file_location(name, sys.argv[2], loader=loader)
sys.meta_path.insert(0, Finder)
logging.basicConfig()
try:
    importlib.import_module(sys.argv[1])
except ImportError as error:
    print(error)
else:
    print("imported")
import splunk_profiler
splunk_profiler.start()
splunk_profiler.stop()
"""
THREAD = ("cpython/pystate.h", r"struct _ts \{")
FRAME = ("internal/pycore_frame.h", r"struct _PyInterpreterFrame \{")
if sys.version_info >= (3, 14):
    FRAME = ("internal/pycore_interpframe_structs.h", r"struct _PyInterpreterFrame \{")
elif sys.version_info < (3, 11):
    FRAME = ("cpython/frameobject.h", r"struct _frame \{")
CONTEXT = ("internal/pycore_context.h", r"struct _pycontextobject \{")


def before(header: tuple[str, str], field: str) -> tuple[str, str]:
    """A place in front of a field of the struct of a header."""
    return header[0], rf"({header[1]}.*?)(\n[^\n]*\b{field}\b[^\n;]*;)"


PLACES = {
    "the first field of a thread state": (before(THREAD, "prev"), "thread states"),
    "the frame of a thread state": (before(THREAD, r"(?:cframe|frame|current_frame)"), "thread states"),
    "the ids of a thread state": (before(THREAD, "thread_id"), "thread states"),
    "the first field of a frame": (before(FRAME, r"(?:f_func|f_code|f_executable|f_back)"), "frames"),
    "the globals of a frame": (before(FRAME, "f_globals"), "frames"),
    "the last instruction of a frame": (before(FRAME, r"(?:prev_instr|instr_ptr|f_lasti)"), "frames"),
    "the variables of a context": (before(CONTEXT, "ctx_vars"), "contexts"),
}


class Builder:
    """Links the objects of the wheel's extensions with a check of layouts that is compiled for each change."""

    def __init__(self, folder: Path, wheel_folder: Path) -> None:
        self._folder = folder
        self._objects = wheel_folder / "build" / "CMakeFiles"

    def extension(self, name: str, change: tuple[str, str] | None) -> Path:
        built, check = self._folder / f"{name}.so", self._folder / "layouts.o"
        headers = HEADERS if change is None else self._changed(*change)
        includes = (f"-I{headers}", *(f"-I{ROOT / 'native' / folder}" for folder in ("compat", "walker", "context")))
        options = ("-std=c11", "-O0", "-fPIC", "-DNDEBUG", "-D_GNU_SOURCE=1", *includes)
        _cc(*options, "-c", ROOT / "native" / "compat" / "layouts.c", "-o", check)
        others = [made for made in self._objects.glob(f"{name}.dir/**/*.o") if made.name != "layouts.c.o"]
        _cc("-shared", *others, check, "-pthread", "-ldl", "-o", built)
        return built

    def _changed(self, header: str, place: str) -> Path:
        headers = self._folder / "headers"
        shutil.rmtree(headers, ignore_errors=True)
        shutil.copytree(HEADERS, headers)
        text = (headers / header).read_text("utf-8")
        changed, count = re.subn(place, r"\1\n    void *inserted[3];\2", text, count=1, flags=re.S)
        assert count == 1, f"{header} has no such place"
        (headers / header).write_text(changed, "utf-8")
        return headers


def _cc(*arguments: str | Path) -> None:
    subprocess.run(["cc", *arguments], check=True, timeout=DEADLINE_S)


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory, wheel_folder: Path) -> Builder:
    return Builder(tmp_path_factory.mktemp("extensions"), wheel_folder)


def loaded(extension: Path) -> tuple[str, str]:
    """Import the extension, start the profiler and return the output and the log."""
    ended = subprocess.run(
        [sys.executable, "-c", LOAD, f"splunk_profiler.{extension.stem}", str(extension)],
        env=environment({"SPLUNK_PROFILER_ENABLED": "true", "SPLUNK_PROFILER_LOGS_ENDPOINT": "http://127.0.0.1:9"}),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout, ended.stderr


@pytest.mark.parametrize("name", ["_walker", "_context"])
def test_an_extension_is_imported_where_the_layouts_are_its_own(builder: Builder, name: str) -> None:
    assert loaded(builder.extension(name, None))[0] == "imported\n"


@pytest.mark.parametrize("what", PLACES)
def test_the_walker_refuses_other_layouts_and_the_portable_one_serves(builder: Builder, what: str) -> None:
    place, differs = PLACES[what]
    said, log = loaded(builder.extension("_walker", place))
    version = sys.version.split()[0]
    assert said == f"it was built for CPython {version}, and {differs} are laid out differently in {version}\n"
    assert f"the portable walker is used: the native walker is not there for cpython 3.{sys.version_info[1]}" in log
    assert said.strip() in log


def test_publishing_refuses_other_layouts(builder: Builder) -> None:
    place, _ = PLACES["the variables of a context"]
    said, log = loaded(builder.extension("_context", place))
    assert "contexts are laid out differently" in said
    assert "Traceback" not in log
