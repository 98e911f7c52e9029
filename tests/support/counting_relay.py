"""A relay to a receiver that counts bytes, since the receiver sees only what gRPC has decompressed.

Imports nothing of the package.
"""

from __future__ import annotations

import contextlib
import socket
import threading

from receiver_process import Receiver


class CountingRelay:
    """Passes one connection on to `receiver` and counts the bytes that the client sends."""

    def __init__(self, receiver: Receiver) -> None:
        self.sent = 0
        self._target = receiver.host, receiver.port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        client, _ = self._listener.accept()
        with client, socket.create_connection(self._target) as server:
            back = threading.Thread(target=self._pass, args=(server, client))
            back.start()
            self.sent = self._pass(client, server)
            back.join()

    @staticmethod
    def _pass(source: socket.socket, target: socket.socket) -> int:
        total = 0
        with contextlib.suppress(OSError):  # an end that was reset is an end
            while chunk := source.recv(65536):
                total += len(chunk)
                target.sendall(chunk)
            target.shutdown(socket.SHUT_WR)
        return total

    def bytes_sent(self) -> int:
        """Of the whole connection, once both ends have closed it."""
        self._thread.join()
        self._listener.close()
        return self.sent
