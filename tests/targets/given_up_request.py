"""A receiver and its senders: a request waits behind another until its sender has given up, and a third one comes.

Prints what was saved, and how many requests were not, as JSON.
"""

from __future__ import annotations

import json
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

import grpc
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from splunk_profiler.cli import receiver
from splunk_profiler.system.threads import wait_until

SERVICE = "/opentelemetry.proto.collector.{0}.v1.{1}Service/Export"


class HeldStore:
    """Saves the text of each request, once it is released."""

    path, size = Path("nowhere"), 0

    def __init__(self) -> None:
        self.saved: list[str] = []
        self.is_saving, self.is_released = threading.Event(), threading.Event()

    def append(self, request: Any, *, is_traces: bool) -> None:  # noqa: ARG002  # there are only logs
        self.is_saving.set()
        self.is_released.wait()
        (record,) = request["resourceLogs"][0]["scopeLogs"][0]["logRecords"]
        self.saved.append(record["body"]["stringValue"])

    def close(self) -> None:
        pass


def request(text: str) -> bytes:
    message = ExportLogsServiceRequest()
    message.resource_logs.add().scope_logs.add().log_records.add().body.string_value = text
    return bytes(message.SerializeToString())


def handling() -> int:
    """Return how many requests are being handled: one that waits behind another has not come to the store."""
    stacks = map(traceback.walk_stack, sys._current_frames().values())
    codes = ({(frame.f_code.co_filename, frame.f_code.co_name) for frame, _ in stack} for stack in stacks)
    return sum((receiver.__file__, "handle") in each for each in codes)


def main() -> None:
    store = HeldStore()
    server = receiver.Receiver(store, "127.0.0.1", 0, 1 << 20, print)
    with grpc.insecure_channel(server.address) as channel:
        export, metrics = (channel.unary_unary(SERVICE.format(name.lower(), name)) for name in ("Logs", "Metrics"))
        first = export.future(request("first"))
        store.is_saving.wait()
        second = export.future(request("given up"))
        wait_until(lambda: handling() == 2, 60)
        second.cancel()
        metrics(b"")  # comes after its end
        store.is_released.set()
        first.result()
        export(request("third"))
        wait_until(lambda: len(store.saved) + server.counts().refusals.not_saved == 3, 60)
    server.stop()
    print(json.dumps([store.saved, server.counts().refusals.not_saved]))


if __name__ == "__main__":
    main()
