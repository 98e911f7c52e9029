"""Readings of a host profiler from one held context after the other: ids, local roots, labels.

The scenes are those of `targets/held_contexts.py`, which says at each moment what OpenTelemetry itself would say.
"""

from __future__ import annotations

from typing import Any

import pytest
from publishing_target import SERVICE, iter_moments, publishing_target

from splunk_profiler.inspector import Reader
from splunk_profiler.inspector.model import ThreadReading

pytest.importorskip("splunk_profiler._context", reason="the native publisher is not built for this interpreter")

pytestmark = pytest.mark.usefixtures("high_priority")


def _shown_context(reading: ThreadReading) -> dict[str, Any]:
    """Return the published values in the form of the expected ones; both ABIs must agree."""
    labels = {label.key.decode(): label.value.decode() for label in reading.labels or ()}
    assert len(labels) == len(reading.labels or ())
    record = reading.correlation
    ids: dict[str, Any] | None = None
    if record is not None:
        assert record.valid == 1
        if record.trace_present:
            names = ("trace_id", "span_id", "transaction_id", "trace_flags")
            ids = {name: getattr(record, name) for name in names}
    shown = tuple(labels.pop(name, None) for name in ("trace_id", "span_id", "local_root_span_id"))
    assert shown == ((ids["trace_id"], ids["span_id"], ids["transaction_id"]) if ids else (None, None, None))
    return {"ids": ids, "labels": labels}


def _read_context(pid: int, tid: int, strict_host: bool) -> dict[str, Any]:
    """Return what a reader that has never seen the process before is shown of a thread."""
    with Reader(pid, strict_host=strict_host) as reader:
        reading = next(thread for thread in reader.sample() if thread.tid == tid)
    assert not reading.problems
    return _shown_context(reading)


@pytest.mark.parametrize(
    "scenes",
    [
        "nested remote_parent other_threads second_provider links not_recording user_labels",
        "late_activation",
        "unsampled",  # each of these has a sampler of its own
        "by_parent",
    ],
)
def test_a_thread_shows_the_context_that_it_is_in(scenes: str) -> None:
    wrong = []
    with publishing_target("held_contexts.py", *scenes.split()) as target:
        moments = 0
        for moment in iter_moments(target):
            moments += 1
            for strict_host in (False, True):
                shown_context = _read_context(target.pid, moment["tid"], strict_host)
                if shown_context != {"ids": moment["ids"], "labels": moment["labels"]}:
                    wrong.append(f"{moment} but {shown_context} with strict_host={strict_host}")
        assert target.finish() == 0
        assert "splunk_profiler" not in target.output
    assert moments >= 2 * len(scenes.split())
    assert not wrong, "\n".join(wrong)


def test_labels_are_cut_to_what_readers_take_and_logged_once() -> None:
    with publishing_target("held_contexts.py", "limits") as target:
        for moment in iter_moments(target):
            for strict_host in (False, True):
                shown_context = _read_context(target.pid, moment["tid"], strict_host)
                assert shown_context == {"ids": moment["ids"], "labels": moment["labels"]}, moment
        assert target.finish() == 0
        assert target.output.count("is cut: it has") == 1
        assert target.output.count("is not published: readers show 7") == 1


def test_readings_after_a_stop_are_empty_and_after_a_start_complete() -> None:
    with publishing_target("held_contexts.py", "stop_and_start") as target:
        for moment in iter_moments(target):
            with Reader(target.pid) as reader:
                report = reader.read()
                by_tid = {thread.tid: thread for thread in report.threads}
            shown = by_tid.pop(moment["tid"])
            others = [thread for thread in by_tid.values() if thread.correlation or thread.labels is not None]
            if "stopped" in moment["moment"]:
                assert report.storage is None
                assert (shown.correlation, shown.labels, others) == (None, None, [])
            else:
                assert report.storage is not None
                assert report.storage.service_name == SERVICE
                assert report.socket_accepted
                assert _shown_context(shown)["ids"] == moment["ids"]
        assert target.finish() == 0
