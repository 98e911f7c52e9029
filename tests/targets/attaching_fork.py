"""A process that forks on command, while another thread attaches a context in the middle of each fork.

Says ``ready``, forks once at the first line of standard input, says ``forked``, and ends at the second.
"""

from __future__ import annotations

import os
import sys
import threading

from opentelemetry import context

import splunk_profiler


def _attach() -> None:
    context.detach(context.attach(context.get_current()))


def _attach_elsewhere() -> None:
    thread = threading.Thread(target=_attach)
    thread.start()
    thread.join()


os.register_at_fork(before=_attach_elsewhere)  # it runs after that of the profiler, which is registered later
splunk_profiler.start()
print("ready", flush=True)
sys.stdin.readline()
child = os.fork()
if child == 0:
    os._exit(0)
os.waitpid(child, 0)
print("forked", flush=True)
sys.stdin.readline()
