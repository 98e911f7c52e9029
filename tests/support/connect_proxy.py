"""An HTTP proxy on threads of the test, which knows one name that nobody else does. Imports nothing of the package.

    with ConnectProxy("collector.invalid", receiver.host, receiver.port) as proxy:
        run_something(env={"http_proxy": proxy.url})

It ends when all that has come through it has ended.
"""

from __future__ import annotations

import select
import socket
import socketserver
import threading
from types import TracebackType


class ConnectProxy:
    """A running proxy, which opens ways to `host` and `port` when it is asked for `name`, at whatever port.

    Attributes:
        url: its address, as variables name it.
    """

    def __init__(self, name: str, host: str, port: int) -> None:
        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                method, place, _ = self.rfile.readline().split()
                while self.rfile.readline().strip():
                    """Skip the header."""
                if (method, place.rpartition(b":")[0]) != (b"CONNECT", name.encode()):
                    self.wfile.write(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n")
                    return
                with socket.create_connection((host, port)) as way:
                    self.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
                    _relay(self.connection, way)

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, name="proxy")
        self._thread.start()

    def __enter__(self) -> ConnectProxy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()  # waits for the threads of its connections


def _relay(one: socket.socket, other: socket.socket) -> None:
    """Pass on what comes from either until one of them ends."""
    peers = {one: other, other: one}
    while True:
        for source in select.select([one, other], [], [])[0]:
            try:
                data = source.recv(65536)
            except ConnectionResetError:
                data = b""
            if not data:
                return
            peers[source].sendall(data)
