"""Takes the profiles out of what `splunk-profiler collect` has saved: one file each, for `go tool pprof`.

    python examples/extract_profiles.py profiles
    go tool pprof -top profiles/*.pprof

Reads ``logs.jsonl`` in that folder, which the OpenTelemetry Collector's file exporter writes in the same form.
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


def is_profile(record: dict[str, Any]) -> bool:
    """Whether its body is a profile, by what the record says of itself."""
    attributes = {each["key"]: each["value"].get("stringValue") for each in record.get("attributes", ())}
    return attributes.get("profiling.data.format") == "pprof-gzip-base64"


def main(folder: Path) -> None:
    """Write the profiles beside the log and print their names."""
    with (folder / "logs.jsonl").open(encoding="utf-8") as lines:
        for number, record in enumerate(filter(is_profile, log_records(lines)), 1):
            path = folder / f"{number:04}.pprof"
            path.write_bytes(base64.b64decode(record["body"]["stringValue"]))
            print(path)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "profiles"))
