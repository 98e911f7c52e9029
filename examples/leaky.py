"""A service with a leak: a cache whose key has the time in it, so that nothing is ever found in it again.

The profiler names the line that the lost memory comes from:

    splunk-profiler collect &
    OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4317 SPLUNK_PROFILER_MEMORY_ENABLED=true \
        SPLUNK_PROFILER_DATA_FORMAT=pprof-gzip-base64 splunk-profiler run -- python examples/leaky.py 30
    splunk-profiler report
"""

from __future__ import annotations

import json
import sys
import time

CACHE: dict[tuple[str, int], dict[str, object]] = {}
DOCUMENT = json.dumps({"items": [{"id": number, "name": f"item {number}"} for number in range(50)]})


def load(name: str) -> dict[str, object]:
    """Read a document; most of what this allocates lives for one request."""
    document: dict[str, object] = json.loads(DOCUMENT)
    return {**document, "name": name}


def cached(name: str) -> dict[str, object]:
    """Return a document from the cache."""
    key = (name, time.monotonic_ns())  # the mistake
    if key not in CACHE:
        CACHE[key] = load(name)
    return CACHE[key]


def serve(seconds: float) -> int:
    """Answer requests one after another; return their number."""
    until, answered = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        json.dumps(load("start page"))
        if answered % 10 == 0:
            cached("basket")
        answered += 1
    return answered


if __name__ == "__main__":
    print(f"{serve(float(sys.argv[1])) if sys.argv[1:] else serve(10)} requests, {len(CACHE)} documents in the cache")
