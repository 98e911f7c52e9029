"""The sessions of an exporter process, which share its memory."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from recorded_stream import record_run
from scripted_sink import ScriptedSink

pytest.importorskip("splunk_profiler._walker")
from splunk_profiler.capture.events.allocations import ALLOCATION_KIND
from splunk_profiler.capture.recorder import ContextReader, StreamRecorder
from splunk_profiler.capture.walker import choose_walker, make_ticker
from splunk_profiler.config import Config, from_env
from splunk_profiler.config.handover import to_values
from splunk_profiler.export.deferred_sink import DeferredSink
from splunk_profiler.exporter_process import session
from splunk_profiler.exporter_process.session import SessionAccounting, StreamSession
from splunk_profiler.exporter_process.status import StatusError, decode
from splunk_profiler.model import DataType, Event
from splunk_profiler.pipeline.delivery_log import WarningLimit
from splunk_profiler.pipeline.stream_pipeline import StreamPipeline
from splunk_profiler.raw import RawEvent
from splunk_profiler.samples import Batch, ExportResult, ExportStatus, Profile
from splunk_profiler.stream.codec import encode
from splunk_profiler.stream.records import HEADER, LostRecord


def test_queues_of_many_sessions_share_a_bounded_memory() -> None:
    accounting = SessionAccounting(lambda: None)
    limits = {}
    for count in range(1, 65):
        accounting.begin(StreamSession(count, accounting))
        limits[count] = accounting.queue_bytes()
    assert limits[1] == limits[4] == 16 << 20
    assert limits[64] == 1 << 20
    assert max(count * limit for count, limit in limits.items()) == 64 << 20


def test_session_that_ended_while_its_exporter_was_loaded_does_not_count() -> None:
    accounting = SessionAccounting(lambda: None)
    ended, other = StreamSession(1, accounting), StreamSession(2, accounting)
    accounting.begin(other)
    ended.close()
    accounting.end(ended)
    accounting.begin(ended)
    assert accounting.sessions() == [other]


def test_cpu_time_is_shared_while_sessions_come_and_go() -> None:
    accounting = SessionAccounting(lambda: None)
    last, failures = StreamSession(0, accounting), []
    accounting.begin(last)

    def come_and_go(number: int) -> None:
        try:
            for _ in range(2000):
                session = StreamSession(number, accounting)
                accounting.begin(session)
                accounting.take(last)
                accounting.end(session)
        except Exception as error:  # for the main thread
            failures.append(error)

    threads = [threading.Thread(target=come_and_go, args=(number,)) for number in range(1, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert accounting.sessions() == [last]


def test_cpu_time_is_charged_to_the_sessions_whose_streams_take_it() -> None:
    accounting = SessionAccounting(lambda: None)
    light, heavy = StreamSession(1, accounting), StreamSession(2, accounting)
    for each in (light, heavy):
        accounting.begin(each)
    before_ns = accounting.take(light)
    light.feed(HEADER)
    heavy.feed(HEADER * 1000)  # a stream may begin anew at any time
    until_ns = time.process_time_ns() + 50_000_000
    while time.process_time_ns() < until_ns:
        pass
    assert 0 < (accounting.take(light) - before_ns) * 500 < accounting.take(heavy)


@pytest.mark.parametrize("name", ["shop", ""])
def test_nothing_is_exported_before_the_host_has_named_its_service(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    is_known: list[Callable[[], bool]] = []

    def make_sink(_open_sink: Any, is_service_known: Callable[[], bool]) -> DeferredSink[Any]:
        is_known.append(is_service_known)
        return DeferredSink(ScriptedSink, is_service_known)

    monkeypatch.setattr(session, "DeferredSink", make_sink)
    monkeypatch.setenv("OTEL_SERVICE_NAME", name)
    recorder = StreamRecorder(ContextReader(lambda _context: None), is_native=True)
    recorder.record_start(to_values(from_env()))
    fed = StreamSession(1, SessionAccounting(lambda: None))
    fed.feed(recorder.take())
    assert not is_known[0]()
    recorder.record_resource({"runtime-id": "7"}, "", is_final=False)
    fed.feed(recorder.take())
    assert is_known[0]() == (name != "")
    recorder.record_resource({"service.name": "shop"}, "", is_final=True)
    fed.feed(recorder.take())
    assert is_known[0]()
    recorder.record_end()
    fed.feed(recorder.take())
    while not fed.is_done:
        pass


def test_a_host_need_not_wait_until_what_exports_is_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    is_loaded = threading.Event()
    sink = ScriptedSink(ExportResult(ExportStatus.DELIVERED))

    def load() -> ScriptedSink:
        is_loaded.wait()
        return sink

    monkeypatch.setattr(session, "DeferredSink", lambda _open_sink, is_known: DeferredSink(load, is_known))
    fed = StreamSession(1, SessionAccounting(lambda: None))
    fed.feed(record_run(to_values(from_env())).data)
    assert fed.is_closing  # with the end of the stream, after which its host waits for nothing
    is_loaded.set()
    while not fed.is_done:
        pass
    (batch,) = sink.batches
    assert batch
    assert fed.end_timeout_s > 1


def test_an_error_at_the_end_loses_no_record_and_is_not_confirmed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sink = ScriptedSink(*[ExportResult(ExportStatus.DELIVERED)] * 9)
    monkeypatch.setattr(session, "DeferredSink", lambda _open_sink, is_known: DeferredSink(lambda: sink, is_known))
    monkeypatch.setattr(StreamPipeline, "close", lambda _: next(iter(())))
    accounting = SessionAccounting(lambda: None)
    fed = StreamSession(1, accounting)
    *pieces, _end = record_run(to_values(from_env())).pieces
    for data in pieces:
        fed.feed(data)
    while fed not in accounting.sessions():
        pass
    fed.close()  # as where the host was killed
    while not fed.is_done:
        pass
    assert sink.batches
    assert fed.has_failed
    assert accounting.sessions() == []
    assert "an error in ending a session" in caplog.text


def test_services_have_warnings_of_their_own_and_their_workers_share_them() -> None:
    accounting = SessionAccounting(lambda: None)

    def limit_of(**variables: str) -> WarningLimit:
        settings = {"OTEL_SERVICE_NAME": "shop", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://here:4317", **variables}
        return accounting.warning_limit(from_env(settings))

    shop = limit_of()
    assert limit_of() is shop
    others = [
        limit_of(OTEL_SERVICE_NAME="cart"),
        limit_of(OTEL_EXPORTER_OTLP_ENDPOINT="http://there:4317"),
        limit_of(OTEL_EXPORTER_OTLP_HEADERS="key=another"),
    ]
    assert len({shop, *others}) == 4
    assert limit_of() is shop
    for number in range(64):
        limit_of(OTEL_SERVICE_NAME=f"job-{number}")
    assert limit_of() is not shop


class DeadlineSink(ScriptedSink):
    """A sink that keeps the time for which it may still export."""

    timeout_s = 0.0

    def set_shutdown_deadline(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s


@pytest.mark.parametrize(("waits_s", "least_s", "most_s"), [(0, 1.5, 2), (0.2, 1.5, 2), (1.5, 1, 1.3), (600, 25, 30)])
def test_host_is_told_the_result_in_time_unless_it_hardly_waits(
    waits_s: float, least_s: float, most_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = DeadlineSink()
    monkeypatch.setattr(session, "DeferredSink", lambda _open_sink, is_known: DeferredSink(lambda: sink, is_known))
    recorder = StreamRecorder(ContextReader(lambda _context: None), is_native=True)
    recorder.record_start(to_values(from_env()))
    recorder.record_resource({"service.name": "shop"}, "", is_final=True)
    recorder.record_end(waits_s)
    fed = StreamSession(1, SessionAccounting(lambda: None))
    fed.feed(recorder.take())
    while not fed.is_done:
        pass
    assert least_s < sink.timeout_s < most_s


def test_status_says_what_became_of_records_and_of_lost_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    sink = ScriptedSink(ExportResult(ExportStatus.REJECTED, "of no use"))
    monkeypatch.setattr(session, "DeferredSink", lambda _open_sink, is_known: DeferredSink(lambda: sink, is_known))
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4317")
    fed = StreamSession(1, SessionAccounting(lambda: None))
    with pytest.raises(StatusError, match="nothing of this process, which may be new"):
        decode(fed.status())
    *pieces, end = record_run(to_values(from_env())).pieces
    lost = encode(LostRecord(7))
    for data in (*pieces, lost, lost, end):
        fed.feed(data)
    while not fed.is_done:
        pass
    status = decode(fed.status())
    counters = status.counters
    assert counters.recorded == counters.rejected > 0 == counters.waiting
    assert status.lost_snapshots == 14
    assert status.destination == "http://collector:4317 (from OTEL_EXPORTER_OTLP_ENDPOINT)"
    assert (status.failure, status.delivered_age_s) == ("of no use", None)
    assert status.failed_age_s is not None
    assert status.age_s >= status.failed_age_s >= 0
    assert status.period_ms == 0  # its captures had no deadlines


def test_stream_that_begins_anew_begins_the_heap_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    profiles: list[Profile] = []

    class ProfileSink(ScriptedSink):
        def export(self, batch: Batch[Any]) -> ExportResult:
            profiles.extend(batch.records)
            return ExportResult(ExportStatus.DELIVERED)

    monkeypatch.setattr(session, "DeferredSink", lambda _open_sink, is_known: DeferredSink(ProfileSink, is_known))
    config = Config(enabled=True, data_format="pprof-gzip-base64", memory_enabled=True)
    ticker = make_ticker(choose_walker(), None, lambda _: None, 20)
    recorder = StreamRecorder(ContextReader(lambda _context: None), is_native=True)
    recorder.record_start(to_values(from_env()._replace(config=config)))
    for live_id in (1, 2):
        ticker.capture()
        (raw,) = ticker.drain(0)
        recorder.record_snapshot(raw)
        recorder.record_event(
            RawEvent(raw.time_ns, raw.threads[0], Event(ALLOCATION_KIND, (), 1, 100), live_id=live_id)
        )
        if live_id == 1:
            fed = StreamSession(1, SessionAccounting(lambda: None))
            fed.feed(recorder.take())
            recorder.restart()
    recorder.record_end()
    fed.feed(recorder.take())
    while not fed.is_done:
        pass
    (heap,) = (profile for profile in profiles if profile.data_type is DataType.ALLOCATION)
    allocated: Counter[str] = Counter()
    for each in heap.aggregates:
        assert each.kind is not None
        allocated[each.kind.name] += each.event_amount
    assert allocated == {"allocation": 200, "live heap": 100}
