"""Forks processes from one that has loaded their modules already.

Each line on standard input is JSON. A list is a process to fork: the files that are to be its standard input and
output, the variables of its environment, and its arguments. Its process id is printed. A number is the process id of
one that ends; its exit status is printed. Tests drive it through `forked_process.ForkedProcess`. Imports nothing of the
package.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Callable


def fork_processes(main: Callable[[list[str]], None]) -> None:
    """Let `main` run in a process for each list on standard input, until that ends."""
    gc.collect()
    gc.freeze()  # or each process copies what it shares, when its last collection marks all objects: 35 ms
    while line := sys.stdin.buffer.readline():
        asked = json.loads(line)
        if isinstance(asked, int):
            print(os.waitstatus_to_exitcode(os.waitpid(asked, 0)[1]), flush=True)
            continue
        given, taken, environment, *arguments = asked
        descriptors = os.open(given, os.O_RDONLY), os.open(taken, os.O_WRONLY)
        child = os.fork()
        for standard, descriptor in enumerate(descriptors):
            if child == 0:
                os.dup2(descriptor, standard)
            os.close(descriptor)
        if child == 0:
            os.environ.clear()
            os.environ.update(environment)
            main(arguments)
            return
        print(child, flush=True)
