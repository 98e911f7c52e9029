"""The pipeline and the exporter in threads of this process."""

from __future__ import annotations

from pathlib import Path

from recorded_stream import record_run

from splunk_profiler.config import Config, from_config
from splunk_profiler.lifecycle.local_export import LocalExport
from splunk_profiler.otel.runtime_id import ResourceTagger, RuntimeId
from splunk_profiler.stream.records import HEADER


def test_stream_that_cannot_be_read_begins_anew_and_is_exported(tmp_path: Path) -> None:
    resolved = from_config(Config(enabled=True, exporter="thread", output=f"file:{tmp_path}"), {})
    tagger = ResourceTagger(RuntimeId.new(), on_spans=False)
    output = LocalExport(resolved, tagger, lambda resource: resource, None, loads_at_start=True)
    output.start()
    assert output.send(HEADER)
    assert not output.send(bytes(100))
    assert output.send(record_run().data)
    output.stop(30)
    counters = output.counters()
    assert counters.delivered == counters.recorded > 0
    assert {path.suffix for path in tmp_path.iterdir()} == {".pprof"}
