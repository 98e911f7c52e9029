"""One schema for native data: the native walker makes the named tuples of `raw`, or is not imported."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import splunk_profiler
from splunk_profiler import raw

pytest.importorskip("splunk_profiler._walker")
pytest.importorskip("splunk_profiler._context")

TUPLES = [
    "RawThread",
    "RawSnapshot",
    "RecordedEvent",
    "TickerCounters",
]
PROGRAM = """
import sys
from collections import namedtuple
from splunk_profiler import raw
name, fields = sys.argv[1], sys.argv[2].split()
setattr(raw, name, namedtuple(name, fields))
from splunk_profiler.capture.walker import choose_walker
print(choose_walker("auto"))
import splunk_profiler._walker
"""


@pytest.mark.parametrize("name", TUPLES)
@pytest.mark.parametrize("change", ["another field", "another order"])
def test_a_walker_built_for_other_fields_is_not_imported(name: str, change: str) -> None:
    fields = list(getattr(raw, name)._fields)
    changed = [*fields, "more"] if change == "another field" else fields[::-1]
    command = [sys.executable, "-c", PROGRAM, name, " ".join(changed)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert "portable" in done.stdout, done.stderr
    expected = f'raw.{name} has the fields "{" ".join(changed)}", and this build was made for "{" ".join(fields)}"'
    assert f"ImportError: splunk_profiler.{expected}" in done.stderr


def test_the_named_tuples_under_test_are_all_there_are() -> None:
    assert {name for name, value in vars(raw).items() if hasattr(value, "_fields")} == set(TUPLES)


def test_states_of_threads_are_those_of_the_native_walker() -> None:
    walker = importlib.import_module("splunk_profiler._walker")
    names = [name for name in vars(raw) if name.startswith("STATE_")]
    assert len(names) == 3
    assert {name: getattr(walker, name) for name in names} == {name: getattr(raw, name) for name in names}


def _declared(body: list[ast.stmt]) -> set[str]:
    """Return the names that a stub gives to functions, classes, constants and fields."""
    named = [node.name for node in body if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
    return {*named, *(ast.unparse(node.target) for node in body if isinstance(node, ast.AnnAssign))}


def _visible(value: object) -> set[str]:
    return {name for name in vars(value) if not name.startswith("_")}


@pytest.mark.parametrize("extension", ["_walker", "_context"])
def test_a_stub_declares_what_the_extension_has_and_nothing_else(extension: str) -> None:
    module = importlib.import_module(f"splunk_profiler.{extension}")
    stub = ast.parse((Path(splunk_profiler.__file__).parent / f"{extension}.pyi").read_text("utf-8"))
    assert {name for name in _declared(stub.body) if not name.startswith("_")} == _visible(module)
    for node in stub.body:
        if isinstance(node, ast.ClassDef):
            own = getattr(module, node.name)
            declared = {name for name in _declared(node.body) if not name.startswith("_")}
            assert declared == (set(own._fields) if hasattr(own, "_fields") else _visible(own)), node.name
            if hasattr(own, "_fields"):
                assert [item.target.id for item in node.body if isinstance(item, ast.AnnAssign)] == list(own._fields)  # type: ignore[union-attr]
