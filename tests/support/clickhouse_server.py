"""ClickHouse's HTTP interface over its real engine, which chDB has in a process.

    python clickhouse_server.py DIRECTORY USER PASSWORD

Prints its port. One question at a time, as the engine answers them; the headers, parameters and errors are those of the
server's documentation. Ends with its standard input. Imports nothing of the package.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from base64 import b64encode
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from chdb.session import Session

_CODE = re.compile(r"Code: (\d+)")


class Handler(BaseHTTPRequestHandler):
    """Answers a question."""

    session: Any
    allowed: str
    lock = threading.Lock()

    def do_POST(self) -> None:
        sql = self.rfile.read(int(self.headers["Content-Length"])).decode()
        if self.headers.get("Authorization") != self.allowed:
            self._answer(403, b"Code: 516. DB::Exception: Authentication failed. (AUTHENTICATION_FAILED)\n", "516")
            return
        query = dict(parse_qsl(urlsplit(self.path).query, keep_blank_values=True))
        parameters = {name.removeprefix("param_"): value for name, value in query.items() if name.startswith("param_")}
        with self.lock:
            try:
                self.session.query(f"USE `{query.get('database', 'default')}`")
                found = self.session.query(sql, query.get("default_format", "TabSeparated"), params=parameters)
                self._answer(200, bytes(found.bytes() or b""))
            except Exception as error:  # whatever the engine says is the answer
                code = _CODE.search(str(error))
                self._answer(404 if code and code[1] == "60" else 500, str(error).encode(), code[1] if code else "1")

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def _answer(self, status: int, body: bytes, code: str = "") -> None:
        self.send_response(status)
        if code:
            self.send_header("X-ClickHouse-Exception-Code", code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def main(directory: str, user: str, password: str) -> None:
    engine: Any = Session
    Handler.session = engine(directory)
    Handler.allowed = f"Basic {b64encode(os.fsencode(f'{user}:{password}')).decode()}"
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_port, flush=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.read()
    server.shutdown()
    Handler.session.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
