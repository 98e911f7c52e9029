"""Takes the profiles out of what `splunk-profiler collect` has saved: one file each, for `go tool pprof`.

    python examples/extract_profiles.py profiles
    go tool pprof -top profiles/*[0-9].pprof

Reads ``logs.jsonl`` in that folder, or the file that is named: the OpenTelemetry Collector's file exporter writes the
same form. Names of profiles of selected traces end in ``-snapshot.pprof``: what these tell is in the others as well.
Those of profiles of allocations have ``-allocation``, since they cannot be added to the others.
"""

from __future__ import annotations

import base64
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def log_records(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    """The records of all requests, one request in a line."""
    for line in lines:
        if not line.endswith("\n"):
            return  # the collector is writing it
        for resource in json.loads(line).get("resourceLogs", ()):
            for scope in resource.get("scopeLogs", ()):
                yield from scope.get("logRecords", ())


def said_of(record: dict[str, Any]) -> dict[str, str | None]:
    """The attributes of a record that are texts."""
    return {each["key"]: each["value"].get("stringValue") for each in record.get("attributes", ())}


def main(path: Path) -> None:
    """Write the profiles beside the log and print their names."""
    log = path / "logs.jsonl" if path.is_dir() else path
    number = 0
    os.umask(0o077)  # profiles are for their owner's eyes
    with log.open(encoding="utf-8") as lines:
        for record in log_records(lines):
            attributes = said_of(record)
            if attributes.get("profiling.data.format") != "pprof-gzip-base64":
                continue
            number += 1
            kind = "-allocation" if attributes.get("profiling.data.type") == "allocation" else ""
            kind += "-snapshot" if attributes.get("profiling.instrumentation.source") == "snapshot" else ""
            profile = log.parent / f"{number:04}{kind}.pprof"
            profile.write_bytes(base64.b64decode(record["body"]["stringValue"]))
            print(profile)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "profiles"))
