"""The exporting half of the profiler as a process of its own, without sampling; driven by lines on standard input.

Configured by its environment alone, as a service is. Commands, each answered by one line of JSON:
``record N [frames [width]]`` queues N records whose functions have names of ``width`` characters; ``flush SECONDS``
→ whether nothing waits any longer; ``counters``; ``trace NAME`` ends a span of that name, exported by a trace
exporter of the SDK to the same endpoint;
``untrace`` shuts the trace exporter down; ``fork`` forks as the profiler does, lets the child send a record named
``child``, and gives its exit status; ``stop SECONDS`` ends the exporter. Log lines come as ``{"log": …}`` in
between. It begins with ``ready``. Processes are forked from one (see `forked_processes`), so that gRPC is loaded once.
Tests drive them through `exporting_process.ExportingProcess`.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from itertools import count
from typing import Any

from forked_processes import fork_processes
from opentelemetry.sdk.resources import Resource
from scripted_sink import wait_until_sent

from splunk_profiler.config import Resolved, from_env
from splunk_profiler.export.otlp.exporter import OtlpSink
from splunk_profiler.export.otlp.sample_records import SampleEncoder
from splunk_profiler.formats.text import BodyFormatter
from splunk_profiler.model import Frame, SpanRef, Stack
from splunk_profiler.pipeline.batch_exporter import BatchExporter
from splunk_profiler.pipeline.record_memory import estimate_size
from splunk_profiler.samples import Sample, Thread, ThreadSample
from splunk_profiler.system.threads import Worker


def say(**line: Any) -> None:
    sys.stdout.write(json.dumps(line) + "\n")  # in one call: the exporting thread writes its log as well
    sys.stdout.flush()


class Lines(logging.Handler):
    """Log records of all loggers as lines of standard output."""

    def emit(self, record: logging.LogRecord) -> None:
        """One record."""
        say(log=record.getMessage(), level=record.levelname, logger=record.name)


def sample(number: int, name: str, frames: int, width: int = 20) -> Sample:
    function = "total".ljust(width, "_")
    stack = Stack(tuple(Frame("shop.cart.Cart", function, "shop/cart.py", line + 1) for line in range(frames)), False)
    thread = Thread(index=1, name=name, ident=1, native_id=1)
    seen = ThreadSample(thread, stack, cpu_ns=0, start_ns=None, os_priority=0, running=True, waiting_on="")
    return Sample(number, 1_000_000_000, seen, SpanRef(number, number, 1))


class Exporter:
    """Exporter, sink and thread as `profiler` joins them."""

    def __init__(self, resolved: Resolved, *, share: bool = True) -> None:
        self.provider: Any = None
        resource = Resource({"service.name": "exporting", "process.pid": os.getpid()})
        assert resolved.endpoint is not None
        self.sink = OtlpSink(
            resolved.endpoint,
            SampleEncoder(lambda: resource, BodyFormatter().parts).encode,
            resolved.transport,
            (lambda: self.provider) if share else None,
        )
        self.batch_exporter = BatchExporter(self.sink, export_interval_ns=20_000_000, size_of=estimate_size)
        self.thread = Worker("exporter", self.batch_exporter.run)
        self.thread.start()


class Commands:
    """The commands that standard input accepts; each method's result is printed."""

    def __init__(self) -> None:
        self._resolved = from_env()
        for warning in self._resolved.warnings:
            logging.getLogger("splunk_profiler").warning(warning)
        self._exporter = Exporter(self._resolved)
        self._numbers = count(1)

    def record(self, how_many: str, frames: str = "3", width: str = "20") -> int:
        """Queue records."""
        numbers = [next(self._numbers) for _ in range(int(how_many))]
        self._exporter.batch_exporter.record([sample(number, "worker", int(frames), int(width)) for number in numbers])
        return len(numbers)

    def flush(self, seconds: str) -> bool:
        """Wait until what is queued has been sent."""
        return wait_until_sent(self._exporter.batch_exporter, float(seconds))

    def counters(self) -> dict[str, int]:
        """Return the exporter's counts of records."""
        return self._exporter.batch_exporter.counters()._asdict()

    def trace(self, name: str) -> bool:
        """End a span."""
        if self._exporter.provider is None:
            self._exporter.provider = self._make_provider()
        self._exporter.provider.get_tracer("app").start_span(name).end()
        return bool(self._exporter.provider.force_flush())

    def untrace(self) -> None:
        """Shut the trace exporter down."""
        self._exporter.provider.shutdown()

    def fork(self) -> int:
        """Fork, and let the child send."""
        self._exporter.batch_exporter.hold_for_fork(0.5)
        child = os.fork()
        if child == 0:
            exporter = Exporter(self._resolved, share=False)
            exporter.batch_exporter.record([sample(1, "child", 1)])
            exporter.batch_exporter.stop(10)
            os._exit(0 if exporter.batch_exporter.counters().delivered == 1 else 1)
        self._exporter.batch_exporter.release_after_fork()
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    def stop(self, seconds: str) -> dict[str, int]:
        """End the exporter."""
        self._exporter.batch_exporter.stop(float(seconds))
        self._exporter.thread.join(float(seconds))
        return self.counters()

    def _make_provider(self) -> Any:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

        assert self._resolved.endpoint is not None
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=self._resolved.endpoint.url)))
        return provider


def serve(_arguments: list[str]) -> None:
    """Serve until standard input ends."""
    logging.basicConfig(level=logging.INFO, handlers=[Lines()])
    commands = Commands()
    say(ready=True)
    for line in sys.stdin:
        name, *arguments = line.split()
        say(answer=getattr(commands, name)(*arguments))


if __name__ == "__main__":
    fork_processes(serve)
