"""One schema for native data: the native walker makes the named tuples of `raw`, or is not imported."""

from __future__ import annotations

import subprocess
import sys

import pytest

from splunk_profiler import raw

pytest.importorskip("splunk_profiler._walker")

TUPLES = ["RawThread", "RawSnapshot", "RawCollection", "TickerCounters", "ThreadChange", "IdleSpan"]
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
