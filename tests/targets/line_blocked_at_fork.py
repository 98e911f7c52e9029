"""Forks while another thread writes a log line into a full pipe: ``line_blocked_at_fork.py LEVEL``.

Its stream stays locked in the child, and so does the handler for who writes another line there. LEVEL is that of lines
that are logged when the profiler starts; at the fork all of them are.
"""

from __future__ import annotations

import logging
import os
import sys
import threading

import splunk_profiler

_PIPE_BYTES = 1 << 16  # what a pipe holds at most


def main(level: str) -> None:
    reader, writer = os.pipe()
    logging.basicConfig(level=level, stream=os.fdopen(writer, "w", encoding="utf-8"))
    assert splunk_profiler.start()
    logging.getLogger().setLevel(logging.INFO)
    threading.Thread(target=logging.error, args=("#" * 4 * _PIPE_BYTES,), daemon=True).start()
    while b"#" not in os.read(reader, _PIPE_BYTES):
        pass
    # The thread is in the middle of its write, which nothing ends.
    child = os.fork()
    if child == 0:
        os._exit(0)
    print("child", os.waitpid(child, 0)[1], flush=True)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
