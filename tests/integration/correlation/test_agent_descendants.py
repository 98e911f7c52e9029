"""Processes that others have forked are found."""

from __future__ import annotations

import os
import sys

from target_process import Target

from splunk_profiler.inspector.proc_files import find_descendants

FAMILY = r"""
import os, sys, threading
def fork_in_a_thread(pids):
    thread = threading.Thread(target=lambda: pids.append(os.fork() or generation(1)))
    thread.start()
    thread.join()
def generation(left):
    child = os.fork() if left else 0
    if child:
        os.write(1, b"child %d\n" % child)
    elif left:
        generation(left - 1)
    sys.stdin.read()
    os._exit(0)
pids = []
fork_in_a_thread(pids)
os.write(1, b"child %d\n" % pids[0])
sys.stdin.read()
"""


def test_all_generations_are_found_also_those_of_other_threads() -> None:
    with Target(sys.executable, "-W", "ignore", "-c", FAMILY) as family:
        children = {int(line) for line in family.lines(2, "child")}
        assert find_descendants([family.pid]) == children
        assert find_descendants(children) | children == children
        assert find_descendants([family.pid, os.getpid()]) >= children | {family.pid}
        assert find_descendants([]) == set()


def test_a_process_that_is_gone_has_none() -> None:
    with Target(sys.executable, "-c", "") as target:
        target.finish()
    assert find_descendants([target.pid]) == set()
