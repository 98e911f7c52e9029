"""Witnesses of closed descriptors, opened by some threads while others look at them."""

from __future__ import annotations

import sys

from target_process import Target

# Each place is a descriptor that stays open: in a process of its own.
_SEVERAL_THREADS = """
import os, sys, threading
from splunk_profiler.system.descriptors import open_witness, were_closed

sys.setswitchinterval(1e-6)
before, failed = len(os.listdir("/proc/self/fd")), []

def open_them():
    try:
        for place in range(300):
            open_witness(str(place))
            assert not were_closed()
    except BaseException as error:
        failed.append(error)

threads = [threading.Thread(target=open_them) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print("opened", failed, len(os.listdir("/proc/self/fd")) - before)
"""


def test_threads_open_witnesses_and_look_at_them_at_the_same_time() -> None:
    with Target(sys.executable, "-c", _SEVERAL_THREADS) as target:
        assert target.finish() == 0, target.output
        assert target.lines(1, "opened") == ["[] 300"]
