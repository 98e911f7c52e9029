"""Module locks of the import system, in this process: a forked child has the same."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from splunk_profiler.system import import_locks


class Gate:
    """A point at which a module waits while it is imported."""

    def __init__(self) -> None:
        self.here, self.over = threading.Event(), threading.Event()

    def enter(self) -> None:
        self.here.set()
        self.over.wait()


def importing(name: str) -> threading.Thread:
    """Start and return a thread that imports a module; ignore its exceptions."""

    def run() -> None:
        with contextlib.suppress(ImportError, KeyError):
            __import__(name)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """Make modules ``half_done``, ``half_done_extension`` and ``on_the_way``, which imports the first."""
    made = Gate()
    enter = "import gate_of_imports\ngate_of_imports.enter()\n"
    loader = "from importlib.machinery import ExtensionFileLoader as L\n__spec__.loader = L(__name__, 'none.so')\n"
    (tmp_path / "half_done.py").write_text(enter, "utf-8")
    (tmp_path / "half_done_extension.py").write_text(loader + enter, "utf-8")
    (tmp_path / "on_the_way.py").write_text("import half_done\n", "utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(sys.modules, "gate_of_imports", made)
    yield made
    made.over.set()
    for name in ("half_done", "half_done_extension", "on_the_way"):
        sys.modules.pop(name, None)


def test_who_imports_what_and_who_waits_for_whom_is_known(gate: Gate) -> None:
    first = importing("half_done")
    gate.here.wait()
    second = importing("on_the_way")
    assert first.ident is not None
    assert second.ident is not None
    assert import_locks.modules_held_by({first.ident}) == ["half_done"]
    assert import_locks.is_importing()
    assert not import_locks.is_loaded("half_done")
    while not import_locks.is_waiting_for(second.ident, first.ident):
        assert second.is_alive()
    assert not import_locks.is_waiting_for(first.ident, second.ident)
    third = importing("on_the_way")
    assert third.ident is not None
    while not import_locks.is_waiting_for(third.ident, first.ident):
        assert third.is_alive()
    gate.over.set()
    for thread in (first, second, third):
        thread.join()
    assert import_locks.is_loaded("on_the_way")
    assert not import_locks.modules_held_by({first.ident, second.ident})


def test_a_module_that_is_abandoned_half_done_is_imported_anew(gate: Gate) -> None:
    gone = importing("half_done")
    gate.here.wait()
    half_done = sys.modules["half_done"]
    assert gone.ident is not None
    import_locks.abandon({gone.ident})
    again = importing("half_done")
    gate.over.set()
    again.join()
    assert import_locks.is_loaded("half_done")
    assert sys.modules["half_done"] is not half_done
    gone.join()


def test_an_extension_that_is_abandoned_half_done_cannot_be_imported(gate: Gate) -> None:
    gone = importing("half_done_extension")
    gate.here.wait()
    assert gone.ident is not None
    import_locks.abandon({gone.ident})
    with pytest.raises(ImportError):
        __import__("half_done_extension")
    gate.over.set()
    gone.join()
