"""The way of a listener into and out of the application's providers, and its errors, which stay inside."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.id_generator import IdGenerator

from splunk_profiler.otel.local_roots import LocalRootTracker
from splunk_profiler.otel.runtime_id import ResourceTagger, RuntimeId
from splunk_profiler.otel.span_processors import SpanListener, SpanStartInstaller
from splunk_profiler.otel.trace_selector import TraceSelector


class Refusing(TracerProvider):
    """A provider that rejects span processors."""

    def add_span_processor(self, _span_processor: SpanProcessor) -> None:
        raise ValueError("mine")


class Listening(SpanListener):
    """A listener that counts spans."""

    heard = 0

    def on_start(self, span: Any, parent_context: Any = None) -> None:  # noqa: ARG002  # the SDK's signature
        self.heard += 1


def test_provider_that_refuses_is_asked_once_and_the_next_is_listened_to(caplog: pytest.LogCaptureFixture) -> None:
    refusing, listener = Refusing(shutdown_on_exit=False), Listening()
    for _ in range(3):
        listener.attach(refusing)
    assert len(caplog.records) == 1
    accepting = TracerProvider(shutdown_on_exit=False)
    listener.attach(accepting)
    accepting.get_tracer("tests").start_span("heard")
    listener.detach()
    accepting.get_tracer("tests").start_span("not heard")
    assert listener.heard == 1


def test_no_call_waits_for_a_lock_that_its_own_thread_may_hold() -> None:
    # The state in a signal handler that interrupts `add_span_processor`.
    provider = TracerProvider(shutdown_on_exit=False)
    processors = vars(provider)["_active_span_processor"]
    listener, others = Listening(), SpanStartInstaller(lambda *_, **__: None)

    def count() -> int:
        return len(vars(processors)["_span_processors"])

    with vars(processors)["_lock"]:
        listener.attach(provider)
        assert others.attach(processors)
    listener.attach(provider)
    assert count() == 2
    with vars(processors)["_lock"]:
        listener.detach()
        others.detach()
    assert count() == 0


class OddId(int):
    """An unhashable id of the application."""

    def __hash__(self) -> int:
        raise ValueError("odd")


class OddIds(IdGenerator):
    def generate_trace_id(self) -> int:
        return OddId(1)

    def generate_span_id(self) -> int:
        return OddId(2)


class OddSpan:
    """A span whose attributes all raise."""

    def __getattr__(self, name: str) -> Any:
        raise ValueError(name)


def selecting() -> SpanListener:
    made = TraceSelector(1.0)
    made.begin(lambda: None)
    return made


@pytest.mark.parametrize("make", [lambda: LocalRootTracker(lambda _: None), selecting])
def test_errors_of_a_listener_do_not_reach_the_application(make: Any, caplog: pytest.LogCaptureFixture) -> None:
    provider, listener = TracerProvider(id_generator=OddIds(), shutdown_on_exit=False), make()
    listener.attach(provider)
    processors: Any = provider._active_span_processor
    for _ in range(3):
        provider.get_tracer("t").start_span("one").end()
        processors.on_start(OddSpan())
        processors.on_end(OddSpan())
    listener.detach()
    assert [record.levelname for record in caplog.records] == ["WARNING"]  # errors of one kind


def test_a_span_that_takes_no_resource_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    provider = TracerProvider(resource=Resource({}), shutdown_on_exit=False)
    vars(provider).pop("_tracers", None)  # an older SDK, where each span is tagged
    identified = ResourceTagger(RuntimeId.new(), on_spans=True)
    identified.attach(provider)
    processors: Any = provider._active_span_processor
    processors.on_start(OddSpan())
    identified.detach()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
