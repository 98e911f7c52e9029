"""Connected sockets for `http.client`, plain or with TLS, with one deadline for all calls.

Runs on the exporting thread. The caller owns the socket: it closes it, and may shut it down from
another thread. TLS uses no `SSLSocket`: where gevent has replaced that class, the original fails.
"""

from __future__ import annotations

import io
import socket
import ssl
from collections.abc import Callable
from typing import Any, TypeVar

from splunk_profiler.system import clocks
from splunk_profiler.system.threads import real

_T = TypeVar("_T")
_CHUNK_BYTES = 65536


def client_context() -> ssl.SSLContext:
    """Return a context that trusts the system's authorities or the ``SSL_CERT_*`` variables'."""
    protocol = ssl.PROTOCOL_TLS_CLIENT  # first: in the exporter process this loads `ssl`, or waits until it is loaded
    context: ssl.SSLContext = real("ssl", "SSLContext")(protocol)
    context.load_default_certs()
    return context


def remaining_s(deadline_s: float) -> float:
    """Return the seconds until a deadline; `TimeoutError` if it has passed."""
    remaining = deadline_s - clocks.monotonic()
    if remaining <= 0:
        raise TimeoutError
    return remaining


class DeadlineStream(io.RawIOBase):
    """A connected socket whose calls raise `TimeoutError` after `deadline_s` (monotonic clock)."""

    def __init__(self, sock: socket.socket, deadline_s: float) -> None:
        super().__init__()
        self._socket, self._deadline_s = sock, deadline_s

    def makefile(self, _mode: str) -> io.BufferedReader:
        """Return a reader, as `socket.socket.makefile` does."""
        return io.BufferedReader(self)

    def readable(self) -> bool:
        """Return True."""
        return True

    def close(self) -> None:
        """Do nothing: `http.client` closes its socket before it has read the response."""

    def readinto(self, buffer: Any) -> int:
        """Receive bytes; return their number, 0 at the end."""
        return self._timed_socket().recv_into(buffer)

    def sendall(self, content: bytes) -> None:
        """Send all of `content`."""
        self._timed_socket().sendall(content)

    def _timed_socket(self) -> socket.socket:
        self._socket.settimeout(remaining_s(self._deadline_s))
        return self._socket


class TlsStream(DeadlineStream):
    """The encrypted side of a connection to `host`, after the handshake, which the deadline includes.

    Raises:
        OSError: the handshake fails; `ssl.SSLError` if the peer is not trusted or speaks no TLS.
    """

    def __init__(self, sock: socket.socket, deadline_s: float, context: ssl.SSLContext, host: str) -> None:
        super().__init__(sock, deadline_s)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)
        self._run_tls_step(self._tls.do_handshake)

    def readinto(self, buffer: Any) -> int:
        """Receive bytes; an end without a TLS alert, common with servers, returns 0 too."""
        try:
            content = self._run_tls_step(self._tls.read, len(buffer))
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
            return 0
        buffer[: len(content)] = content
        return len(content)

    def sendall(self, content: bytes) -> None:
        """Send all of `content`, encrypted in parts."""
        remaining = memoryview(content)
        while remaining:
            remaining = remaining[self._run_tls_step(self._tls.write, remaining[:_CHUNK_BYTES]) :]

    def _run_tls_step(self, step: Callable[..., _T], *args: object) -> _T:
        """Return the result of `step`; receive what it needs and send what it makes."""
        while True:
            try:
                result = step(*args)
            except ssl.SSLWantReadError:
                self._flush()
                if received := self._timed_socket().recv(_CHUNK_BYTES):
                    self._incoming.write(received)
                else:
                    self._incoming.write_eof()
            else:
                self._flush()
                return result

    def _flush(self) -> None:
        if content := self._outgoing.read():
            super().sendall(content)
