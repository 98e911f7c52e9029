"""Processes that others have forked are found, by the kernel's list and without it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection

import pytest
from target_process import Target

from splunk_profiler.inspector.descendants import descendants, search_descendants

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


@pytest.mark.parametrize("find", [descendants, search_descendants])
def test_all_generations_are_found_also_those_of_other_threads(find: Callable[[Collection[int]], set[int]]) -> None:
    with Target(sys.executable, "-W", "ignore", "-c", FAMILY) as family:
        children = {int(line) for line in family.lines(2, "child")}
        assert find([family.pid]) == children
        assert find(children) | children == children
        assert find([family.pid, os.getpid()]) >= children | {family.pid}
        assert find([]) == set()


@pytest.mark.parametrize("find", [descendants, search_descendants])
def test_a_process_that_is_gone_has_none(find: Callable[[Collection[int]], set[int]]) -> None:
    with Target(sys.executable, "-c", "") as target:
        target.finish()
    assert find([target.pid]) == set()
