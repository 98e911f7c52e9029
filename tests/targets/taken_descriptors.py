"""An application that closes descriptors it does not know and takes their numbers, at each line of the connection once.

Says how many lines there are, and what happened to its own sockets. Another thread can do the same wherever the
connection gives up the GIL. The exporter is a listener that nobody serves; it gets the stream, as it was started here.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from itertools import count

from interrupted_lines import call_at_line
from marked_work import say

from splunk_profiler.exporter_process import connection as connection_module
from splunk_profiler.exporter_process.connection import ExporterConnection

_PAIRS = 4  # of sockets, more than the connection has


def _is_open(number: int) -> bool:
    with suppress(OSError):
        os.fstat(number)
        return True
    return False


def _numbers() -> set[int]:
    listed = [int(name) for name in os.listdir("/proc/self/fd")]  # noqa: PTH208
    return {*filter(_is_open, listed)}  # without that of the listing, which is the next one to be given


class Application:
    """It knows the descriptors that are open now."""

    def __init__(self) -> None:
        self._known = _numbers()
        self._own: list[socket.socket] = []

    def take_descriptors(self) -> None:
        for number in _numbers() - self._known:
            with suppress(OSError):
                os.close(number)
        for _ in range(_PAIRS):
            self._own += socket.socketpair()

    def look(self) -> list[str]:
        """Return what another has done to its sockets, and close them."""
        harm = []
        for own in self._own:
            try:
                harm.append(f"got {own.recv(1000, socket.MSG_DONTWAIT)!r}")  # nothing: the other end was closed
            except BlockingIOError:
                pass
            except OSError as error:
                harm.append(f"was closed: {error}")
        for own in self._own:
            with suppress(OSError):
                own.close()
        return harm


def _use(connection: ExporterConnection) -> None:
    connection.send(b"secret")
    connection.receive()
    connection.close(0)


def main() -> None:
    harmed = []
    for line in count(1):
        connection = ExporterConnection(lambda _listener, _token: None, os.urandom(16).hex())
        application = Application()
        was_reached = call_at_line(
            lambda: _use(connection),  # noqa: B023  # called at once
            connection_module,
            line,
            application.take_descriptors,
        )
        harmed += [f"line {line}: {harm}" for harm in application.look()]
        if not was_reached:
            break
    say("tries", line)
    say("harmed", harmed)


if __name__ == "__main__":
    main()
