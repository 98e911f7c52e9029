"""The handlers of forks that gRPC registers with us, with a library in its place that counts their calls."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from c_library import NEEDS_COMPILER, compile_library
from target_process import Target

pytestmark = [
    pytest.mark.skipif(find_spec("splunk_profiler._context") is None, reason="the native publisher is not built"),
    NEEDS_COMPILER,
]

PROGRAM = """
import ctypes, sys
from splunk_profiler import _context
library = ctypes.PyDLL(sys.argv[1])
assert _context.keep_grpc_fork_handlers()
assert library.register_handlers() == 0
print("called", [library.fork_once(in_handler) for in_handler in (0, 0, 1, 0)], _context.is_left_out_of_grpc_fork())
"""


def test_a_fork_in_the_middle_of_a_fork_is_none_of_grpcs(tmp_path: Path) -> None:
    library = compile_library("fork_handlers.c", tmp_path, name="cygrpc.so")
    with Target(sys.executable, "-c", PROGRAM, str(library)) as target:
        assert target.finish() == 0, target.output
        assert target.line("called") == "[1, 2, 3, 4] False"
