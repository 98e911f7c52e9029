"""A receiver in a separate process that counts thread samples and keeps no records.

It takes log records over OTLP/gRPC (texts and profiles), and over HTTP the profiles that ddtrace sends to an agent and
pyroscope-io to a server. Run as a program it serves: prints its ports, then one line of JSON with the totals for each
line of standard input. `CountingSink` starts and asks it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

SERVICE = "opentelemetry.proto.collector.logs.v1.LogsService"


@dataclass(frozen=True, slots=True)
class Totals:
    """The numbers of what has arrived.

    Attributes:
        records: log records, and profiles that came over HTTP.
        size: bytes of their requests.
        snapshots: distinct times of samples; 0 if they have none.
        in_spans: log records in spans.
        samples: thread samples, each counted as often as it says.
        first_s: arrival of the first, by `time.monotonic`.
        last_ns: time of the newest sample, in ns since the epoch.
        cpu_ns: sum of the CPU time of all samples.
        kinds: sums by function, of those asked for: samples, wall and cpu (ns), ran (records of a running thread),
            in_span, wrong_span (samples in a span, and in one of another function).
    """

    records: int
    size: int
    snapshots: int
    in_spans: int
    samples: int
    first_s: float | None
    last_ns: int
    cpu_ns: int
    kinds: dict[str, dict[str, int]]


class CountingSink:
    """The running process.

    Attributes:
        url: endpoint of OTLP over gRPC.
        http_url: endpoint of the profilers that send over HTTP.
    """

    def __init__(self, kinds: Sequence[str] = (), python: str = sys.executable) -> None:
        """`kinds` are the functions of `Totals.kinds`; `python` needs ``zstandard`` for what ddtrace sends."""
        self._process = subprocess.Popen(
            [python, __file__, *kinds], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self.url, self.http_url = (f"http://127.0.0.1:{port}" for port in self._process.stdout.readline().split())

    def totals(self) -> Totals:
        """Return the totals so far."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("count\n")
        self._process.stdin.flush()
        return Totals(**json.loads(self._process.stdout.readline()))

    def __enter__(self) -> CountingSink:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()


class SampleCounter:
    """The counts of the receiver. All is read when somebody asks, so as not to disturb what is measured."""

    def __init__(self, kinds: Sequence[str]) -> None:
        from received_samples import SampleReader  # noqa: PLC0415  # not in the process that asks

        self._lock = threading.Lock()
        self._reader = SampleReader(kinds)
        self._unread: list[tuple[str, bytes]] = []  # content type, empty for OTLP, and body
        self._counts: Counter[str] = Counter()
        self._first_s: float | None = None

    def export(self, message: bytes, _call: object) -> Any:
        """Count one request of OTLP."""
        from opentelemetry.proto.collector.logs.v1 import logs_service_pb2  # noqa: PLC0415

        with self._lock:
            self._arrived("", message)
        return logs_service_pb2.ExportLogsServiceResponse()

    def post(self, path: str, content_type: str, body: bytes) -> None:
        """Count one request over HTTP."""
        if path.startswith(("/profiling/", "/push.v1.")):
            with self._lock:
                self._arrived(content_type, body)

    def _arrived(self, content_type: str, body: bytes) -> None:
        self._unread.append((content_type, body))
        self._counts["size"] += len(body)
        if self._first_s is None:
            self._first_s = time.monotonic()

    def _read(self, content_type: str, body: bytes) -> None:
        from opentelemetry.proto.collector.logs.v1 import logs_service_pb2  # noqa: PLC0415

        if content_type:
            self._counts["records"] += 1
            self._reader.add_profile(content_type, body)
            return
        for group in logs_service_pb2.ExportLogsServiceRequest.FromString(body).resource_logs:
            for record in (record for part in group.scope_logs for record in part.log_records):
                self._counts["records"] += 1
                self._counts["in_spans"] += bool(record.span_id)
                if record.body.string_value.startswith('"'):
                    self._reader.add_text(record)
                else:
                    self._reader.add_profile(record.time_unix_nano, record.body.string_value)

    def line(self) -> str:
        """Return the totals as JSON."""
        with self._lock:
            unread, self._unread = self._unread, []
        for content_type, body in unread:
            self._read(content_type, body)
        counts = {name: self._counts[name] for name in ("records", "size", "in_spans")}
        return json.dumps({**counts, "first_s": self._first_s, **self._reader.sums()})


def make_http_server(counter: SampleCounter) -> ThreadingHTTPServer:
    """Make the server of the profilers that send over HTTP; it answers everything else with an empty object."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            counter.post(self.path, self.headers.get("Content-Type") or "unknown", body)
            self.do_GET()

        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    return ThreadingHTTPServer(("127.0.0.1", 0), Handler)


def serve(kinds: Sequence[str]) -> None:
    """Serve until standard input ends."""
    import grpc  # noqa: PLC0415  # not in the process that asks

    counter = SampleCounter(kinds)
    export = grpc.unary_unary_rpc_method_handler(
        counter.export, None, response_serializer=lambda answer: answer.SerializeToString()
    )
    server = grpc.server(ThreadPoolExecutor(2), [grpc.method_handlers_generic_handler(SERVICE, {"Export": export})])
    http_server = make_http_server(counter)
    print(server.add_insecure_port("127.0.0.1:0"), http_server.server_port, flush=True)
    server.start()
    threading.Thread(target=http_server.serve_forever, daemon=True).start()
    for _ in sys.stdin:
        print(counter.line(), flush=True)
    server.stop(None).wait()


if __name__ == "__main__":
    sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "support"))
    serve(sys.argv[1:])
