"""The periods of the profiles that are made of a kept stream."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from recorded_stream import record_run

from splunk_profiler.cli.replay import Playback
from splunk_profiler.config import Config


def test_replayed_heap_has_a_profile_each_interval(tmp_path: Path) -> None:
    settings = Config(enabled=True, data_format="pprof-gzip-base64", memory_enabled=True, export_interval_ms=1)
    recorded = record_run(settings.shareable())
    kept = tmp_path / "1.stream"
    kept.write_bytes(recorded.data)
    types: list[str] = []

    def add(logs: dict[str, Any]) -> None:
        for record in logs["scopeLogs"][0]["logRecords"]:
            described = {each["key"]: each["value"].get("stringValue") for each in record["attributes"]}
            types.append(described["profiling.data.type"])

    Playback(kept, add).run()
    assert types.count("allocation") > 1
