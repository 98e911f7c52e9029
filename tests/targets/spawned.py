"""A program started by `spawn_exporter`: it says as JSON on descriptor 3 how it finds itself, and ends when told."""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

STATUS = dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text("utf-8").splitlines())
STATE: dict[str, Any] = {
    "pid": os.getpid(),
    "parent": os.getppid(),
    "session": os.getsid(0),
    "nice": os.nice(0),
    "policy": os.sched_getscheduler(0),
    "descriptors": {},
    "blocked": int(STATUS["SigBlk"], 16),
    "ignored": int(STATUS["SigIgn"], 16),
    "caught": int(STATUS["SigCgt"], 16),
    "arguments": sys.argv[1:],
    "environment": dict(os.environ),
}
for number in os.listdir("/proc/self/fd"):  # noqa: PTH208
    try:
        STATE["descriptors"][number] = os.readlink(f"/proc/self/fd/{number}")  # noqa: PTH115
    except OSError:
        continue  # of the listing itself

with socket.socket(fileno=3) as host:
    host.setblocking(True)
    host.sendall(json.dumps(STATE).encode() + b"\n")
    host.recv(1)
