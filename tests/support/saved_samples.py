"""Lines of a collector's files, made up: samples as texts, and spans. Imports nothing of the package."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def _text(value: str) -> dict[str, Any]:
    return {"stringValue": value}


def sample_line(
    *calls: str, service: str = "shop", time_ns: int = 5_000_000_000, span: str = SPAN, state: str = "running"
) -> str:
    """Return a sample of one second; `calls` are leaf first, as ``module.function(/file.py:7)``."""
    header = f'"main" #1 prio=0 os_prio=0 cpu=0 elapsed=0 tid=0x1 nid=0x1 {state}'
    body = "\n".join([header, "", *(f"  at {call}" for call in calls or ["shop.rank(/srv/shop.py:7)"]), ""])
    record = {
        "timeUnixNano": str(time_ns),
        "body": _text(body),
        "traceId": TRACE,
        "spanId": span,
        "attributes": [{"key": "source.event.period", "value": {"intValue": "1000"}}],
    }
    return _log_line(service, record)


def allocation_line(allocated: int, *, time_ns: int = 5_000_000_000) -> str:
    """Return a sampled allocation that stands for so many bytes."""
    described: list[dict[str, Any]] = [
        {"key": "profiling.data.type", "value": _text("allocation")},
        {"key": "memory.allocated", "value": {"intValue": str(allocated)}},
    ]
    request = json.loads(sample_line(time_ns=time_ns))
    request["resourceLogs"][0]["scopeLogs"][0]["logRecords"][0]["attributes"] = described
    return json.dumps(request) + "\n"


def profile_line(body: str, *, service: str = "shop", time_ns: int = 5_000_000_000) -> str:
    """Return a profile; `body` is gzip in base64."""
    described = {"profiling.data.format": "pprof-gzip-base64", "profiling.data.type": "cpu"}
    attributes = [{"key": key, "value": _text(value)} for key, value in described.items()]
    return _log_line(service, {"timeUnixNano": str(time_ns), "body": _text(body), "attributes": attributes})


def _log_line(service: str, record: dict[str, Any]) -> str:
    resource = {"attributes": [{"key": "service.name", "value": _text(service)}]}
    logs = {"resource": resource, "scopeLogs": [{"scope": {"name": "otel.profiling"}, "logRecords": [record]}]}
    return json.dumps({"resourceLogs": [logs]}) + "\n"


def span_line(
    name: str,
    span: str = SPAN,
    parent: str = "",
    times_ns: tuple[int, int] = (0, 0),
    host_stacks: tuple[str, ...] = (),
    *,
    service: str = "",
) -> str:
    """Return a span of that name."""
    start_ns, end_ns = times_ns
    stacks = {"arrayValue": {"values": [_text(stack) for stack in host_stacks]}}
    found = {
        "traceId": TRACE,
        "spanId": span,
        "parentSpanId": parent,
        "name": name,
        "startTimeUnixNano": str(start_ns),
        "endTimeUnixNano": str(end_ns),
        "attributes": [{"key": "elastic.profiler_stack_trace_ids", "value": stacks}],
    }
    described = [{"key": "service.name", "value": _text(service)}] if service else []
    spans = {"resource": {"attributes": described}, "scopeSpans": [{"spans": [found]}]}
    return json.dumps({"resourceSpans": [spans]}) + "\n"


def append(path: Path, content: str) -> None:
    """Add lines to a file."""
    with path.open("a", encoding="utf-8") as file:
        file.write(content)
