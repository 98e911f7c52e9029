"""A relay to an HTTP server, which answers some questions wrongly. Imports nothing of the package."""

from __future__ import annotations

import ssl
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from certificates import CertificateFiles
from command_line import DEADLINE_S

_HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class Fault(NamedTuple):
    """A way to spoil an answer, and the sentence that is to be said of it."""

    spoil: Callable[[bytes], bytes]
    said: str


_CUT, _OTHER = "ended its answer too early", "does not answer as ClickHouse does: is it its HTTP port?"
FAULTS = {
    "cut after a row": Fault(lambda answer: _HEAD + _chunk(answer[: answer.find(b"\n") + 1]), _CUT),
    "cut in a row": Fault(lambda answer: _HEAD + _chunk(answer)[:-8], _CUT),
    "cut before the last byte": Fault(
        lambda answer: b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(answer) + 1, answer), _CUT
    ),
    "error after rows": Fault(
        lambda answer: (
            _HEAD + _chunk(answer + b"Code: 159. DB::Exception: Timeout exceeded. (TIMEOUT_EXCEEDED)\n") + _chunk(b"")
        ),
        "a question took longer than the server allows",
    ),
    "no HTTP": Fault(lambda _: b"\x00\x01 no HTTP\r\n\r\n", _OTHER),
    "another service": Fault(lambda _: b"HTTP/1.1 200 OK\r\n\r\n<html>hello</html>\n", _OTHER),
    "nothing": Fault(lambda _: b"", "cannot be reached"),
}


class Relay:
    """A running relay; the question after the next `spoil_at` ones is answered by its fault."""

    def __init__(self, server_port: int) -> None:
        self.server_port = server_port
        self.fault = FAULTS["cut after a row"]
        self.spoil_at = -1
        self.questions = 0

    def answer(self, path: str, sql: bytes, headers: dict[str, str]) -> bytes:
        """Return what is sent for a question."""
        self.questions += 1
        self.spoil_at -= 1
        request = urllib.request.Request(f"http://127.0.0.1:{self.server_port}{path}", sql, headers)
        with urllib.request.urlopen(request, timeout=DEADLINE_S) as found:
            body: bytes = found.read()
        if self.spoil_at == -1:
            return self.fault.spoil(body)
        return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


@contextmanager
def run_relay(server_port: int, certificates: CertificateFiles | None = None) -> Iterator[tuple[Relay, int]]:
    """Run a relay, over TLS with the certificate of a server; yield it and its port."""
    relay = Relay(server_port)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            sql = self.rfile.read(int(self.headers["Content-Length"]))
            self.wfile.write(relay.answer(self.path, sql, {"Authorization": self.headers["Authorization"]}))

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        if certificates is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificates.cert, certificates.key)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield relay, server.server_port
        finally:
            server.shutdown()
            thread.join()
