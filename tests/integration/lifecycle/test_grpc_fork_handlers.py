"""The handlers of forks that gRPC registers with us, with a library in its place that counts their calls."""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from target_process import TESTS, Target

pytestmark = [
    pytest.mark.skipif(find_spec("splunk_profiler._context") is None, reason="the native publisher is not built"),
    pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler"),
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
    library = tmp_path / "cygrpc.so"
    source = TESTS / "targets" / "fork_handlers.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source], check=True)
    with Target(sys.executable, "-c", PROGRAM, str(library)) as target:
        assert target.finish() == 0, target.output
        assert target.line("called") == "[1, 2, 3, 4] False"
