"""Stores of samples, as tests write them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from splunk_profiler.viewer.model import DAY_NS, HOUR_NS, Selection
from splunk_profiler.viewer.store_writer import Limits, StoreWriter

NOON_NS = 20_000 * DAY_NS + 12 * HOUR_NS
WALL = Selection("wall")


@contextmanager
def writing(path: Path, limits: Limits = Limits()) -> Iterator[StoreWriter]:  # noqa: B008  # immutable
    writer = StoreWriter(path, limits)
    try:
        yield writer
    finally:
        writer.close()


def put(writer: StoreWriter, *lines: str, received_ns: int = NOON_NS) -> None:
    for line in lines:
        writer.append(json.loads(line), is_traces="resourceSpans" in line, received_ns=received_ns)


def of_version(line: str, version: str) -> str:
    """Return a request with that version of its services."""
    request = json.loads(line)
    for resource in (*request.get("resourceLogs", ()), *request.get("resourceSpans", ())):
        resource["resource"]["attributes"].append({"key": "service.version", "value": {"stringValue": version}})
    return json.dumps(request) + "\n"


def rows(path: Path, table: str) -> int:
    with sqlite3.connect(path) as connection:
        ((count,),) = connection.execute(f"SELECT count(*) FROM {table}")
    connection.close()
    return int(count)
