"""The hooks for context switches in processes of their own: late modules, other interpreters, C code, forks, storms."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from c_library import NEEDS_COMPILER, compile_library
from target_process import TESTS, Target, environment

pytest.importorskip("splunk_profiler._context", reason="the native publisher is not built for this interpreter")

PATH = environment()["PYTHONPATH"] + os.pathsep + str(TESTS / "support")
HAS_INTERPRETERS = any(find_spec(name) is not None for name in ("_interpreters", "_xxsubinterpreters"))


def facts(*command: str, **env: str) -> dict[str, Any]:
    """Run a scenario of the target and return its facts."""
    with Target("switching.py", *command, env={"PYTHONPATH": PATH, **env}) as target:
        assert target.finish() == 0
        found: dict[str, Any] = target.json("facts")
    return found


@pytest.mark.skipif(not find_spec("uvloop"), reason="uvloop is not installed")
def test_c_loop_that_is_imported_later_is_noticed_from_its_first_switch() -> None:
    assert facts("uvloop_imported_later") == {"right": 201}


@pytest.mark.skipif(not find_spec("gevent"), reason="gevent is not installed")
def test_greenlets_that_are_imported_later_are_noticed_in_every_thread() -> None:
    assert facts("gevent_imported_later") == {"right": 208}


@pytest.mark.skipif(not find_spec("gevent"), reason="gevent is not installed")
def test_threads_that_are_greenlets_are_noticed() -> None:
    assert facts("gevent_patched") == {"right": 202}


@pytest.mark.skipif(not HAS_INTERPRETERS, reason="this interpreter has no module for subinterpreters")
def test_contexts_of_other_interpreters_run_as_ever_and_are_none_of_ours() -> None:
    found = facts("subinterpreters")
    assert found["ran"] == found["right"]
    assert (found["failed"], found["noticed"]) == (0, 0)


def test_a_forked_child_keeps_noticing() -> None:
    assert facts("forked") == {"right": 201, "wrong in the child": 0}


@pytest.fixture(
    scope="module",
    params=[
        ("-Wl,-z,lazy", "-Wl,-z,norelro"),
        ("-Wl,-z,lazy", "-Wl,-z,relro"),
        ("-Wl,-z,now", "-Wl,-z,relro"),
        ("-Wl,-z,now", "-Wl,-z,relro", "-fno-plt", "-DNO_PLT"),
    ],
    ids=lambda options: " ".join(options).replace("-Wl,", ""),
)
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_library("entered_contexts.c", tmp_path_factory.mktemp("library"), *request.param)


@NEEDS_COMPILER
@pytest.mark.parametrize("loaded", ["preloaded", "before", "later"])
def test_contexts_that_c_code_enters_are_noticed_however_it_was_linked(library: Path, loaded: str) -> None:
    preload = {"LD_PRELOAD": str(library)} if loaded == "preloaded" else {}
    seen = facts("c_code", str(library), loaded, **preload)
    assert seen.pop("restored", 2) == 2, "the module still calls our function"
    assert seen == {"right": 8, "protected as before": 2, "noticed without the hooks": 0}


@NEEDS_COMPILER
def test_a_module_that_is_still_being_loaded_is_left_to_the_linker(tmp_path: Path) -> None:
    library = compile_library("entered_contexts.c", tmp_path, "-Wl,-z,now", "-Wl,-z,relro")
    needs_call_sites = sys.version_info < (3, 14)
    assert facts("half_loaded", str(library)) == ({"not noticed": 1, "right": 1} if needs_call_sites else {"right": 2})


def test_hooks_may_come_and_go_in_eight_threads_while_others_switch() -> None:
    with Target("switch_storm.py", "30", env={"PYTHONPATH": PATH}) as target:
        target.line("ready")
        assert target.finish(timeout_s=240) == 0
        target.line("ok")
