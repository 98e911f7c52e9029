"""An HTTP server on a thread of the test, with scripted answers. Imports nothing of the package.

    with Answering(b"HTTP/1.1 200 OK\\r\\nContent-Length: 0\\r\\n\\r\\n") as server:
        post_to(server.port)
    assert server.requests[0].startswith(b"POST ")

Each connection gets the next answer; the last one repeats. With an answer of None the connection stays open until the
client closes it. With a `path` the server is a Unix socket there; with a `tls` context it speaks HTTPS.
"""

from __future__ import annotations

import re
import socket
import ssl
import threading
from pathlib import Path
from types import TracebackType


def http_response(status: int, text: str = "", *fields: str) -> bytes:
    """Return a whole answer."""
    head = [f"HTTP/1.1 {status} So", *fields, f"Content-Length: {len(text)}", "", text]
    return "\r\n".join(head).encode()


class AnsweringServer:
    """A running server.

    Attributes:
        port: where it listens on 127.0.0.1.
        requests: whole requests of clients.
    """

    def __init__(self, *answers: bytes | None, path: Path | None = None, tls: ssl.SSLContext | None = None) -> None:
        self._answers = list(answers)
        self._tls = tls
        if path is None:
            self._listener = socket.create_server(("127.0.0.1", 0))
            self.port: int = self._listener.getsockname()[1]
        else:
            self._listener = socket.socket(socket.AF_UNIX)
            self._listener.bind(str(path))
            self._listener.listen()
        self.requests: list[bytes] = []
        self._arrived = threading.Condition()
        self._is_stopping = False
        self._thread = threading.Thread(target=self._serve, name="answering-server")
        self._thread.start()

    def wait(self, count: int, timeout_s: float = 60) -> None:
        """Return once there have been `count` requests."""
        with self._arrived:
            assert self._arrived.wait_for(lambda: len(self.requests) >= count, timeout_s), self.requests

    def _serve(self) -> None:
        while True:
            accepted, _ = self._listener.accept()
            if self._is_stopping:
                accepted.close()
                return
            try:
                connection = accepted if self._tls is None else self._tls.wrap_socket(accepted, server_side=True)
            except OSError:  # a client that does not trust the certificate
                accepted.close()
                continue
            with connection:
                request = _read_request(connection)
                if not request:
                    continue  # a check that a server is here
                response = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
                with self._arrived:
                    self.requests.append(request)
                    self._arrived.notify_all()
                if response is None:
                    connection.settimeout(60)
                    assert connection.recv(1) == b"", "the client closes it"
                else:
                    connection.sendall(response)

    def __enter__(self) -> AnsweringServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_stopping = True
        with socket.socket(self._listener.family) as last:
            last.connect(self._listener.getsockname())
        self._thread.join()
        self._listener.close()


def _read_request(connection: socket.socket) -> bytes:
    content = b""
    length = None
    while length is None or len(content) < length:
        more = connection.recv(65536)
        if not more:
            break
        content += more
        if length is None and (head := re.match(rb"(?s).*?\r\n\r\n", content)):
            found = re.search(rb"(?i)\r\ncontent-length: (\d+)", head[0])
            length = len(head[0]) + int(found[1]) if found else len(head[0])
    return content
