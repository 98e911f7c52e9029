"""A collector in a separate process that counts records and keeps nothing.

Run as a program it serves: prints its port, then one line of JSON with the totals for each line of standard input.
`CountingSink` starts and asks it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import grpc
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse

SERVICE = "opentelemetry.proto.collector.logs.v1.LogsService"


@dataclass(frozen=True, slots=True)
class Totals:
    """Counts of records, bytes of their requests, snapshots (distinct times), and records in spans."""

    records: int
    size: int
    snapshots: int
    in_spans: int


class CountingSink:
    """The running process; `url` is its endpoint."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self.url = f"http://127.0.0.1:{int(self._process.stdout.readline())}"

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


class Counter:
    """The handler of the service."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._records = self._size = self._in_spans = 0
        self._times: set[int] = set()

    def export(self, message: bytes, _call: object) -> ExportLogsServiceResponse:
        """Count one request."""
        request = ExportLogsServiceRequest.FromString(message)
        records = [
            record for group in request.resource_logs for part in group.scope_logs for record in part.log_records
        ]
        with self._lock:
            self._records += len(records)
            self._size += len(message)
            self._in_spans += sum(bool(record.span_id) for record in records)
            self._times.update(record.time_unix_nano for record in records)
        return ExportLogsServiceResponse()

    def line(self) -> str:
        """Return the totals as JSON."""
        with self._lock:
            counts = {"records": self._records, "size": self._size, "in_spans": self._in_spans}
            return json.dumps({**counts, "snapshots": len(self._times)})


def serve() -> None:
    """Serve until standard input ends."""
    counter = Counter()
    export = grpc.unary_unary_rpc_method_handler(
        counter.export, None, response_serializer=ExportLogsServiceResponse.SerializeToString
    )
    server = grpc.server(ThreadPoolExecutor(2), [grpc.method_handlers_generic_handler(SERVICE, {"Export": export})])
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    server.start()
    for _ in sys.stdin:
        print(counter.line(), flush=True)
    server.stop(None).wait()


if __name__ == "__main__":
    serve()
