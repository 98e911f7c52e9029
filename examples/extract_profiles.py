"""Takes the profiles out of what a collector has saved: one file each, beside it, for `go tool pprof`.

    python examples/extract_profiles.py profiles
    go tool pprof -top profiles/*[0-9].pprof

Reads the folder of `splunk-profiler collect`, or a file that the OpenTelemetry Collector's file exporter has written.
The names of profiles of selected traces end in ``-snapshot``: what they tell is in the others as well, so that they are
not to be added to them.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def log_records(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    """The records of all requests, one request in a line."""
    for line in lines:
        for resource in json.loads(line).get("resourceLogs", ()):
            for scope in resource.get("scopeLogs", ()):
                yield from scope.get("logRecords", ())


def attributes(record: dict[str, Any]) -> dict[str, str]:
    """What the record says of itself in texts."""
    return {each["key"]: each["value"].get("stringValue", "") for each in record.get("attributes", ())}


def main(saved: Path) -> None:
    """Write the profiles beside the file that they are in, and print their names."""
    saved = saved / "logs.jsonl" if saved.is_dir() else saved
    number = 0
    with saved.open(encoding="utf-8") as lines:
        for record in log_records(lines):
            said = attributes(record)
            if said.get("profiling.data.format") != "pprof-gzip-base64":
                continue
            number += 1
            kind = "-snapshot" if said.get("profiling.instrumentation.source") == "snapshot" else ""
            path = saved.parent / f"{number:04}{kind}.pprof"
            path.write_bytes(base64.b64decode(record["body"]["stringValue"]))
            print(path)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "profiles"))
