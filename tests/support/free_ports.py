"""Free ports for servers that tests start later. Imports nothing of the package."""

from __future__ import annotations

import socket
from contextlib import ExitStack


def find_free_ports(count: int) -> list[int]:
    """Return different TCP ports of 127.0.0.1 that are free at this moment."""
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
