"""TLS over a connected socket that stays in its owner's hands, who may shut it down from another thread.

Runs on the exporting thread. Not an `SSLSocket`: where gevent has replaced that, the original one does not work any
more. The socket is the caller's, who closes it.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable
from typing import TypeVar

from splunk_profiler.system.threads import real

_T = TypeVar("_T")
_CHUNK_BYTES = 65536


def client_context() -> ssl.SSLContext:
    """Return a context that trusts the system's authorities, or those of ``SSL_CERT_FILE`` and ``SSL_CERT_DIR``."""
    context: ssl.SSLContext = real("ssl", "SSLContext")(ssl.PROTOCOL_TLS_CLIENT)
    context.load_default_certs()
    return context


class TlsStream:
    """The encrypted side of a connection, with the part of a socket's methods that an exchange needs.

    Args:
        sock: connected.
        context: whom to trust.
        host: whom the certificate has to name.
        timeout_s: how long the handshake may take, in seconds.

    Raises:
        OSError: the handshake fails; `ssl.SSLError` if the other end is not trusted or speaks something else.
    """

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, host: str, timeout_s: float) -> None:
        self._socket = sock
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)
        self.settimeout(timeout_s)
        self._run_tls_step(self._tls.do_handshake)

    def settimeout(self, timeout_s: float) -> None:
        """How long each of the following calls may take in all, in seconds, counted from now."""
        self._deadline_s = time.monotonic() + timeout_s

    def send(self, content: memoryview) -> int:
        """See `socket.socket.send`."""
        return self._run_tls_step(lambda: self._tls.write(content[:_CHUNK_BYTES]))

    def recv_into(self, buffer: memoryview) -> int:
        """See `socket.socket.recv_into`. Many servers end a connection without a word of TLS: that is an end too."""
        try:
            content = self._run_tls_step(lambda: self._tls.read(len(buffer)))
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
            return 0
        buffer[: len(content)] = content
        return len(content)

    def _run_tls_step(self, step: Callable[[], _T]) -> _T:
        """The result of `step`, once what it needs from the other end is there and what it says is sent."""
        while True:
            try:
                result = step()
            except ssl.SSLWantReadError:
                self._flush()
                self._apply_timeout()
                received = self._socket.recv(_CHUNK_BYTES)
                if received:
                    self._incoming.write(received)
                else:
                    self._incoming.write_eof()
            else:
                self._flush()
                return result

    def _flush(self) -> None:
        remaining = memoryview(self._outgoing.read())
        while remaining:
            self._apply_timeout()
            remaining = remaining[self._socket.send(remaining) :]

    def _apply_timeout(self) -> None:
        remaining_s = self._deadline_s - time.monotonic()
        if remaining_s <= 0:
            raise TimeoutError
        self._socket.settimeout(remaining_s)
