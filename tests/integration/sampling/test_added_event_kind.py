"""A kind of event that was added in one place, in the records that a collector receives from a real process."""

from __future__ import annotations

import base64
import gzip
from collections import Counter

from profile_schema import decode
from received_profiles import read
from receiver_process import Receiver
from target_process import Target, profiling_settings


def test_events_of_another_data_type_come_in_records_of_their_own() -> None:
    with Receiver() as receiver:
        env = profiling_settings(
            receiver.url,
            10,
            SPLUNK_PROFILER_DATA_FORMAT="pprof-gzip-base64",
            SPLUNK_PROFILER_EXPORT_INTERVAL="60000",
            SPLUNK_PROFILER_MEMORY_ENABLED="true",
        )
        with Target("made_up_kind.py", env=env) as target:
            ledger = target.json("ledger")
            assert target.finish() == 0, target.output
        records = receiver.records(2)
    by_type = {record["attributes"]["profiling.data.type"]: record for record in records}
    assert (len(records), set(by_type)) == (2, {"allocation", "cpu"})
    sums: Counter[str] = Counter()
    message = decode(gzip.decompress(base64.b64decode(by_type["allocation"]["body"], validate=True)))
    text = message.string_table
    types = [(text[kind.type], text[kind.unit]) for kind in message.sample_type]
    assert types[-2:] == [("objects", "count"), ("space", "bytes")]
    functions = {place.id: text[message.function[place.line[0].function_id - 1].name] for place in message.location}
    for sample in message.sample:
        sums["objects"] += sample.value[-2]
        sums["bytes"] += sample.value[-1]
        assert "__main__.fill_cache" in [functions[place] for place in sample.location_id]
        labels = {text[label.key]: text[label.str] for label in sample.label if label.str}
        said = {"span_id": ledger["span"], "endpoint": "GET /pages", "tenant": "acme", "thread.name": "MainThread"}
        said |= {"source.event.name": "object", "source.event.object": "page"}
        assert labels.items() >= said.items()
    assert sums == {"objects": ledger["objects"], "bytes": ledger["bytes"]}
    names = Counter(sample.labels.get("source.event.name") for sample in read(by_type["cpu"]).samples)
    assert names["timer"] > 0
    assert not names["object"]
