"""A collector in a separate process that logs accepted records in a file, and misbehaves on demand.

Run as a program it serves: ``collector.py FILE PORT MODE``; prints its port. A line on standard input is its next mode:
``ok``, ``silent`` (calls are not answered until the mode changes), ``slow SECONDS``, ``refuse CODE [SECONDS]``. It
prints the mode when it is in force. The file outlives the process, so nothing that was accepted is forgotten when
the collector is killed. `Collector` starts, switches, kills and reads it.
"""

from __future__ import annotations

import hashlib
import os
import struct
import subprocess
import sys
import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import RetryInfo
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse

_SERVICE = "opentelemetry.proto.collector.logs.v1.LogsService"
_NOTE = struct.Struct("=Q8s")  # process id, digest of a record


class Collector:
    """The running process.

    Args:
        file: log of accepted records.

    Attributes:
        url: its endpoint, which stays the same after a restart.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._port = 0
        self._process: subprocess.Popen[str] | None = None
        self.ensure_running()
        self.url = f"http://127.0.0.1:{self._port}"

    def ensure_running(self, mode: str = "ok") -> None:
        """Start the process if it does not run."""
        if self._process is None:
            command = [sys.executable, __file__, str(self._file), str(self._port), mode]
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            self._port = int(self._answer())

    def kill_process(self) -> None:
        """Kill the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def switch(self, mode: str) -> None:
        """Change its mode, ``dead`` included, and wait until it is in force."""
        if mode == "dead":
            self.kill_process()
        elif self._process is None:
            self.ensure_running(mode)
        else:
            assert self._process.stdin is not None
            self._process.stdin.write(mode + "\n")
            self._process.stdin.flush()
            self._answer()

    def accepted(self) -> dict[int, tuple[int, int]]:
        """Return by process id the number of accepted records, and of different ones."""
        digests: defaultdict[int, list[bytes]] = defaultdict(list)
        content = self._file.read_bytes()
        for pid, digest in _NOTE.iter_unpack(content[: len(content) // _NOTE.size * _NOTE.size]):
            digests[pid].append(digest)
        return {pid: (len(found), len(set(found))) for pid, found in digests.items()}

    def _answer(self) -> str:
        assert self._process is not None
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the collector did not start")
        return line

    def __enter__(self) -> Collector:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill_process()


class Service:
    """The service: answers exports according to its mode, and logs accepted records before the answer.

    Args:
        file: log of accepted records.
        mode: initial mode.
    """

    def __init__(self, file: str, mode: str) -> None:
        self._notes = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._changed = threading.Condition()
        self._mode = mode.split()

    def switch(self, mode: str) -> None:
        """Change the mode, also for calls that wait for an answer."""
        with self._changed:
            self._mode = mode.split()
            self._changed.notify_all()

    def export(self, message: bytes, call: Any) -> Any:
        """Answer one request."""
        call.add_callback(self._wake)
        with self._changed:
            if self._mode[0] == "slow":
                self._changed.wait(float(self._mode[1]))
            self._changed.wait_for(lambda: self._mode[0] != "silent" or not call.is_active())
            mode = self._mode
        if mode[0] == "refuse" and call.is_active():
            if len(mode) > 2:
                info = RetryInfo(retry_delay=Duration(nanos=int(float(mode[2]) * 1e9)))
                call.set_trailing_metadata((("google.rpc.retryinfo-bin", info.SerializeToString()),))
            call.abort(grpc.StatusCode[mode[1]], "refused by the soak run")
        if call.is_active():
            os.write(self._notes, b"".join(_notes(ExportLogsServiceRequest.FromString(message))))
        return ExportLogsServiceResponse()

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()


def _notes(request: Any) -> list[bytes]:
    notes = []
    for group in request.resource_logs:
        pid = next(
            (pair.value.int_value for pair in group.resource.attributes if pair.key == "process.pid"), 0
        )  # of this process
        for part in group.scope_logs:
            for record in part.log_records:
                record.observed_time_unix_nano = 0  # changes when the record is sent again
                digest = hashlib.blake2b(record.SerializeToString(deterministic=True), digest_size=8)
                notes.append(_NOTE.pack(pid, digest.digest()))
    return notes


def serve(file: str, port: str, mode: str) -> None:
    """Serve until standard input ends."""
    service = Service(file, mode)
    handler = grpc.unary_unary_rpc_method_handler(
        service.export, None, response_serializer=ExportLogsServiceResponse.SerializeToString
    )
    server = grpc.server(
        ThreadPoolExecutor(64),
        [grpc.method_handlers_generic_handler(_SERVICE, {"Export": handler})],
        options=[("grpc.so_reuseport", 0)],
    )
    print(server.add_insecure_port(f"127.0.0.1:{port}"), flush=True)
    server.start()
    for line in sys.stdin:
        service.switch(line.strip())
        print(line.strip(), flush=True)
    service.switch("ok")
    server.stop(None).wait()


if __name__ == "__main__":
    serve(*sys.argv[1:])
