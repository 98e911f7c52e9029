"""A service that host profilers send to; it logs all there is to its output.

Says ``ready`` with the path of its socket and the ids of a transaction that is under way. On each line that it reads it
says how much memory it has (``memory``, in KiB: now, and the most ever); at the end of them it ends the transaction and
says how many ids are on it (``ids``).
"""

from __future__ import annotations

import logging
import re
import sys
from pathlib import Path

from marked_work import say
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from own_memory import OwnMemory
from published_process import wait_for_storage

import splunk_profiler


def _memory_kib() -> list[int]:
    status = Path("/proc/self/status").read_text("utf-8")
    return [int(found) for found in re.findall(r"^(?:VmRSS|VmHWM):\s+(\d+)", status, re.MULTILINE)][::-1]


def main() -> None:
    logging.basicConfig(level=logging.DEBUG, stream=sys.stdout)
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    OwnMemory()
    splunk_profiler.start()
    tracer = trace.get_tracer("flood_receiver")
    storage = wait_for_storage()
    span = tracer.start_span("transaction")
    ids = span.get_span_context()
    say("ready", [str(storage.socket), f"{ids.trace_id:032x}{ids.span_id:016x}"])
    for _ in sys.stdin:
        say("memory", _memory_kib())
    span.end()
    provider.force_flush()
    (ended,) = (one for one in exporter.get_finished_spans() if one.name == "transaction")
    attributes = ended.attributes or {}
    found = attributes.get("elastic.profiler_stack_trace_ids", ())
    assert isinstance(found, tuple)
    say("ids", [len(found), len(set(found))])
    splunk_profiler.stop()


if __name__ == "__main__":
    main()
