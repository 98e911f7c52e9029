"""A descriptor of the walker whose number the application takes for a file of its own is left alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from c_library import NEEDS_COMPILER, compile_library
from short_programs import run_code

pytest.importorskip("splunk_profiler._walker", reason="the native walker is not built for this interpreter")

_PROGRAM = """
import os, tempfile, threading
from splunk_profiler import _walker

with tempfile.TemporaryFile() as file:
    read_end, write_end = os.pipe()
    file.write(b"in a file")
    file.seek(0)
    os.write(write_end, b"in a pipe")
    for own in (file.fileno(), read_end):
        number = os.dup(own)
        os.close(number)  # the next one gets it
        os.environ["TAKES_NUMBER"] = str(own)
        _walker.read_thread_stat(threading.get_native_id())
        print(os.path.sameopenfile(number, own), os.read(number, 100))
        os.close(number)
    del os.environ["TAKES_NUMBER"]
    descriptors = os.listdir("/proc/self/fd")
    print(_walker.read_thread_stat(threading.get_native_id())[:1].isdigit(), _walker.read_thread_stat(2**31 - 1) == "")
    print(os.listdir("/proc/self/fd") == descriptors)
"""


@NEEDS_COMPILER
def test_application_that_takes_the_number_of_a_file_in_proc_keeps_it(tmp_path: Path) -> None:
    said = run_code(_PROGRAM, LD_PRELOAD=str(compile_library("number_taker.c", tmp_path)))
    assert said.splitlines() == ["True b'in a file'", "True b'in a pipe'", "True True", "True"]
