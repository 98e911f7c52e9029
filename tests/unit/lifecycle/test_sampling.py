"""The stream that a run of sampling writes to its output."""

from __future__ import annotations

import gc
import threading
import time
import weakref

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

pytest.importorskip("splunk_profiler._walker")
from splunk_profiler.capture.walker import choose_walker
from splunk_profiler.config import Config, from_config
from splunk_profiler.export.stream_output import StreamOutput
from splunk_profiler.lifecycle.sampling import PublishingCalls, Sampling
from splunk_profiler.otel.runtime_id import ResourceTagger, RuntimeId
from splunk_profiler.stream.captured import CapturedSnapshot, Item, ResourceChanged
from splunk_profiler.stream.reader import StreamReader
from splunk_profiler.stream.records import EndRecord, LostRecord
from splunk_profiler.system.threads import WakeEvent


class _LossyOutput(StreamOutput):
    """An output that loses the first piece that has the end, as a connection that is lost then."""

    def __init__(self) -> None:
        self._reader = StreamReader()
        self._has_lost = False
        self.items: list[Item] = []
        self.sampled = WakeEvent()

    def send(self, data: bytes) -> bool:
        items = [*self._reader.feed(data)]
        if any(isinstance(item, EndRecord) for item in items) and not self._has_lost:
            self._has_lost = True
            return False
        self.items += items
        if any(isinstance(item, CapturedSnapshot) for item in items):
            self.sampled.set()
        return True


class _FullOutput(StreamOutput):
    """An output that takes nothing after the first samples, until it is emptied."""

    def __init__(self) -> None:
        self._reader = StreamReader()
        self._is_full = False
        self.refused: list[int] = []  # sizes
        self.items: list[Item] = []
        self.refused_often, self.emptied = threading.Event(), threading.Event()

    def send(self, data: bytes) -> bool:
        if self._is_full and not self.emptied.is_set():
            self.refused.append(len(data))
            if len(self.refused) == 6:
                self.refused_often.set()
            return False
        self.items += self._reader.feed(data)
        self._is_full = any(isinstance(item, CapturedSnapshot) for item in self.items)
        return True


class _CountedOutput(StreamOutput):
    """An output that notes that its CPU time, and then what waits in it, are read."""

    def __init__(self) -> None:
        self.counted = threading.Event()
        self._is_cpu_read = False

    def cpu_ns(self) -> int:
        self._is_cpu_read = True
        return 0

    def backlog_bytes(self) -> int:
        if self._is_cpu_read:
            self.counted.set()
        return 0


def _make_sampling(
    calls: PublishingCalls | None = None, parent: Sampling | None = None, data_format: str = "text"
) -> Sampling:
    config = Config(enabled=True, exporter="thread", call_stack_interval_ms=10, data_format=data_format)
    resolved = from_config(config, {"OTEL_SERVICE_NAME": "shop"})
    tagger = ResourceTagger(RuntimeId.new(), on_spans=False)
    calls = calls or PublishingCalls()
    choice = choose_walker("native")
    return Sampling(resolved, lambda: None, calls, tagger, choice=choice, look_for_sigterm=lambda: None, parent=parent)


def _start_sampling(output: StreamOutput, calls: PublishingCalls | None = None, data_format: str = "text") -> Sampling:
    sampling = _make_sampling(calls, data_format=data_format)
    sampling.output = output
    sampling.start()
    return sampling


def test_end_that_is_lost_is_sent_again() -> None:
    output = _LossyOutput()
    sampling = _start_sampling(output)
    assert output.sampled.wait(30)
    sampling.stop(10)
    assert [isinstance(item, EndRecord) for item in output.items].count(True) == 1
    assert isinstance(output.items[-1], EndRecord)


def test_stream_of_a_service_without_a_provider_has_its_name() -> None:
    output = _LossyOutput()
    sampling = _start_sampling(output)
    assert output.sampled.wait(30)
    sampling.stop(10)
    (changed,) = {(*item.attributes.items(), item.is_final) for item in output.items if type(item) is ResourceChanged}
    assert changed == (("service.name", "shop"), *sampling.resource_tagger.record_attributes().items(), False)


def test_published_contexts_are_compared_once_a_second_at_most() -> None:
    audited = threading.Semaphore(0)
    began_s = time.monotonic()
    sampling = _start_sampling(_LossyOutput(), PublishingCalls(audit=audited.release))
    try:
        for _ in range(3):  # the sampler has twenty occasions a second
            assert audited.acquire(timeout=30)
        assert time.monotonic() - began_s >= 2.0
    finally:
        sampling.stop(10)


def test_full_output_gets_no_stream_and_losses_are_counted() -> None:
    output = _FullOutput()
    sampling = _start_sampling(output)
    assert output.refused_often.wait(30)
    output.emptied.set()
    sampling.stop(10)
    assert output.refused[0] > 0
    assert not any(output.refused[1:])
    (lost,) = [item.snapshots for item in output.items if isinstance(item, LostRecord)]
    assert lost > 1
    assert isinstance(output.items[-1], EndRecord)


def test_limit_counts_the_output_that_has_replaced_the_first_one() -> None:
    output = _CountedOutput()
    sampling = _start_sampling(output)
    try:
        assert output.counted.wait(30)
    finally:
        sampling.stop(10)


def test_forked_child_keeps_no_span_that_its_parent_has_sampled() -> None:
    output = _LossyOutput()
    root = TracerProvider(shutdown_on_exit=False).get_tracer("test").start_span("GET")
    kept = weakref.ref(root)
    with trace.use_span(root):
        sampling = _start_sampling(output, data_format="pprof-gzip-base64")
        assert output.sampled.wait(30)
    sampling.stop(10)
    del root
    assert kept() is not None
    sampling = _make_sampling(parent=sampling, data_format="pprof-gzip-base64")
    gc.collect()
    assert kept() is None
