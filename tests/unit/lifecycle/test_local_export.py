"""The pipeline and the exporter in threads of this process."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from recorded_stream import record_run

from splunk_profiler.config import Config, from_config
from splunk_profiler.lifecycle import local_export
from splunk_profiler.lifecycle.local_export import LocalExport
from splunk_profiler.otel.runtime_id import ResourceTagger, RuntimeId
from splunk_profiler.stream.captured import Item
from splunk_profiler.stream.codec import encode
from splunk_profiler.stream.records import HEADER, LostRecord


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


class SlowPipeline:
    """A pipeline that takes an item until the test lets go; it notes what is called on it."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.is_taking, self.may_end = threading.Event(), threading.Event()

    def take(self, _: Item) -> None:
        self.calls.append("take")
        self.is_taking.set()
        self.may_end.wait()
        self.calls.append("taken")

    def tick(self, _: int) -> None:
        """Nothing is due."""

    def close(self) -> None:
        self.calls.append("close")


@pytest.mark.parametrize(("timeout_s", "calls"), [(0.0, ["take", "taken"]), (60.0, ["take", "taken", "close"])])
def test_pipeline_that_takes_an_item_is_not_closed_meanwhile(
    timeout_s: float, calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = SlowPipeline()
    monkeypatch.setattr(local_export, "make_pipeline", lambda *_: pipeline)
    tagger = ResourceTagger(RuntimeId.new(), on_spans=False)
    output = LocalExport(from_config(Config(enabled=True), {}), tagger, lambda found: found, None, loads_at_start=False)
    sampler = threading.Thread(target=output.send, args=(HEADER + encode(LostRecord(1)),))
    sampler.start()
    pipeline.is_taking.wait()
    stopper = threading.Thread(target=output.stop, args=(timeout_s,))
    stopper.start()
    if not timeout_s:
        stopper.join()
    pipeline.may_end.set()
    sampler.join()
    stopper.join()
    assert pipeline.calls == calls
    assert output.send(b"late")
    assert pipeline.calls == calls
