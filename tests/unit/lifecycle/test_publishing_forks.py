"""Publishing to host profilers in a forked child, from its first moment on."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from opentelemetry.context import Context
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

pytest.importorskip("splunk_profiler._context")

from published_process import provider, publishing

from splunk_profiler.system.threads import Worker


def test_transactions_wait_from_the_first_one_of_a_forked_child_on(monkeypatch: pytest.MonkeyPatch) -> None:
    exporter = InMemorySpanExporter()
    shop = provider("shop")
    shop.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = shop.get_tracer("t")
    with TemporaryDirectory(prefix="s") as directory, publishing(Path(directory)) as life:
        with tracer.start_as_current_span("first"):
            life.run_pending_work()
        for participant in (life.publisher, life.correlator):
            participant.hold_for_fork(60)
        child = os.fork()
        if child == 0:
            monkeypatch.setattr(Worker, "start", lambda _: None)  # its thread comes later
            life.reset_after_fork()
            before = len(exporter.get_finished_spans())
            tracer.start_span("of the child", Context()).end()
            os._exit(len(exporter.get_finished_spans()) - before)
        for participant in (life.publisher, life.correlator):
            participant.release_after_fork()
        assert os.waitpid(child, 0)[1] == 0, "it was exported before a host profiler could say something of it"
