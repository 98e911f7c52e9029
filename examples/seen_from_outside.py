"""A FastAPI service, and beside it what a host profiler sees of it: which span and which labels each thread is in.

    python examples/seen_from_outside.py

starts the service in a process of its own, sends it requests, and reads its memory from outside with
`splunk-profiler inspect`, as an eBPF profiler on the same machine would. No samples are taken here and nothing is sent.

To read another process's memory takes the same right that a debugger needs: run it as root, or where
/proc/sys/kernel/yama/ptrace_scope is 0.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI
from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider

import splunk_profiler

ENOUGH = 5  # reads in which a thread was at work for a customer
PUBLISH = {
    "SPLUNK_PROFILER_ENABLED": "false",
    "ELASTIC_OTEL_UNIVERSAL_PROFILING_INTEGRATION_ENABLED": "true",
    "SPLUNK_PROFILER_CUSTOM_LABELS_ENABLED": "true",
}

app = FastAPI(title="primes")
trace.set_tracer_provider(TracerProvider(resource=Resource.create({"service.name": "primes"})))
tracer = trace.get_tracer("primes")


@app.get("/primes/{customer}")
def primes(customer: str, below: int = 200_000) -> dict[str, int]:
    """A threaded route. Its labels name the customer, on any thread."""
    with splunk_profiler.labels(route="/primes", customer=customer), tracer.start_as_current_span("count primes"):
        sieve = bytearray([1]) * below
        for number in range(2, below):
            if sieve[number]:
                sieve[number * 2 :: number] = bytes(len(range(number * 2, below, number)))
        return {"primes": sum(sieve) - 2}


def serve() -> None:
    """The service's process: says where it listens."""
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning")
    server = uvicorn.Server(config)
    listening = config.bind_socket()
    listening.listen()  # requests wait in line from here on
    print(listening.getsockname()[1], flush=True)
    server.run(sockets=[listening])


class Customer(threading.Thread):
    """Sends one request after another."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self._url = url
        self.stopping = False

    def run(self) -> None:
        """Body of the thread."""
        while not self.stopping:
            urllib.request.urlopen(self._url).read()


def describe(read: dict[str, Any]) -> list[str]:
    """One line for each thread that was in a span when the process was read."""
    lines = []
    for thread in read["threads"]:
        labels = {label["key"]: label["value"] for label in thread["labels"] or ()}
        if thread["correlation"] and thread["correlation"]["trace_present"]:
            ids = f"trace {labels.pop('trace_id')}, span {labels.pop('span_id')}"
            del labels["local_root_span_id"]
            lines.append(f"thread {thread['tid']}: {ids}, labels {labels}")
    return lines


def look(pid: int) -> None:
    """Read the process ten times a second until enough was seen."""
    command = [sys.executable, "-m", "splunk_profiler", "inspect", "--watch", "--interval", "0.1", "--json", str(pid)]
    seen = 0
    with subprocess.Popen(command, stdout=subprocess.PIPE) as inspector:
        assert inspector.stdout is not None
        while seen < ENOUGH:
            lines = describe(json.loads(inspector.stdout.readline()))
            seen += any("customer" in line for line in lines)
            print(*lines, sep="\n", end="\n" if lines else "", flush=True)
        inspector.terminate()


def main() -> None:
    """Start the service and the customers, look, and end them."""
    command = [sys.executable, "-m", "splunk_profiler", "run", "--", sys.executable, __file__, "serve"]
    service = subprocess.Popen(command, env={**os.environ, **PUBLISH}, stdout=subprocess.PIPE, text=True)
    try:
        assert service.stdout is not None
        port = int(service.stdout.readline())
        customers = [Customer(f"http://127.0.0.1:{port}/primes/{name}") for name in ("anna", "bo")]
        for customer in customers:
            customer.start()
        look(service.pid)
        for customer in customers:
            customer.stopping = True
            customer.join()
    finally:
        service.terminate()
        service.wait()
    print(f"{Path(__file__).name}: done")


if __name__ == "__main__":
    serve() if sys.argv[1:] == ["serve"] else main()
