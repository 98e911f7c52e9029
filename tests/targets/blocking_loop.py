"""A service whose requests block its event loop: ``blocking_loop.py ENDPOINT TASK``. Ends with its standard input."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time

from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider

import splunk_profiler


def render_pdf() -> None:
    time.sleep(0.3)


async def handle(endpoint: str) -> None:
    with trace.get_tracer("service").start_as_current_span(endpoint):
        render_pdf()
        await asyncio.sleep(0.01)


async def serve(over: threading.Event) -> None:
    endpoint, task = sys.argv[1:]
    while not over.is_set():
        await asyncio.create_task(handle(endpoint), name=task)


def main() -> None:
    logging.basicConfig(format="%(message)s")
    trace.set_tracer_provider(TracerProvider(resource=Resource({"service.name": "shop"})))
    assert splunk_profiler.start()
    over = threading.Event()

    def read_to_end() -> None:
        sys.stdin.read()
        over.set()

    threading.Thread(target=read_to_end).start()
    asyncio.run(serve(over))


main()
