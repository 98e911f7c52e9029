"""Internal threads, and the objects that idle threads wait for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from splunk_profiler.model import Frame, Stack
from splunk_profiler.pipeline.stack_filters import is_internal, waiting_on


def _stack(*calls: str, truncated: bool = False) -> Stack:
    """Return a stack, leaf first, of calls as ``namespace:function``."""
    named = [call.split(":") for call in calls]
    return Stack(tuple(Frame(namespace, function, "f.py", 1) for namespace, function in named), truncated)


BOOTSTRAP = ("threading.Thread:run", "threading.Thread:_bootstrap_inner", "threading.Thread:_bootstrap")


@pytest.mark.parametrize(
    "calls",
    [
        ("threading.Condition:wait", "opentelemetry.sdk._shared_internal.BatchProcessor:worker", *BOOTSTRAP),
        ("threading.Event:wait", "opentelemetry.sdk.metrics._internal.export.PeriodicReader:_ticker", *BOOTSTRAP),
        (
            "splunk_profiler.pipeline.batch_exporter.BatchExporter:run",
            "splunk_profiler.system.threads.Worker:_run",
            *BOOTSTRAP,
        ),
        ("splunk_profiler.pipeline.batch_exporter.BatchExporter:run", "splunk_profiler.system.threads.Worker:_run"),
        ("grpc._channel._run_channel_spin_thread.<locals>:channel_spin", *BOOTSTRAP),
        ("shop:on_answer", "grpc._channel._run_channel_spin_thread.<locals>:channel_spin", *BOOTSTRAP),
        ("grpc._channel:_poll_connectivity", *BOOTSTRAP),
        BOOTSTRAP[1:],
        BOOTSTRAP[2:],
        ("threading.Condition:notify_all", "threading.Event:set", *BOOTSTRAP[1:]),
        ("threading.Thread:_delete", *BOOTSTRAP[1:]),
        ("_weakrefset.WeakSet.__init__.<locals>:_remove", *BOOTSTRAP[1:]),
        (),
    ],
)
def test_threads_of_the_profiler_the_sdk_and_grpc_are_internal(calls: tuple[str, ...]) -> None:
    assert is_internal(_stack(*calls))


@pytest.mark.parametrize(
    "calls",
    [
        ("shop:work", *BOOTSTRAP),
        ("opentelemetry.sdk.trace.Span:end", "shop:work", *BOOTSTRAP),
        ("splunk_profiler_demo:main", *BOOTSTRAP),
        ("opentelemetry.instrumentation.x:run", "__main__:<module>"),
        ("grpc.aio._server:handler", "shop:serve", *BOOTSTRAP),
        ("shop:read_parts", "grpc._channel._consume_request_iterator.<locals>:consume_request_iterator", *BOOTSTRAP),
        ("shop:on_change", "grpc._channel:_deliver", *BOOTSTRAP),
        ("shop.Tokens:intercept_service", "grpc._interceptor:_intercept", "grpc._server:_serve", *BOOTSTRAP),
        ("grpc._server:_serve", *BOOTSTRAP),
        ("concurrent.futures.thread:_worker", *BOOTSTRAP),
        ("threading.Event:wait", "threading.Timer:run", *BOOTSTRAP[1:]),
        ("shop.Thread:run", *BOOTSTRAP[1:]),
        ("shop:work", "splunk_profiler.user_labels.labels.labels.__call__.<locals>:labelled", *BOOTSTRAP),
        BOOTSTRAP,
        ("threading.Timer:run", *BOOTSTRAP[1:]),
        ("shop:handle", "splunk_profiler.user_labels.labels.labels.__call__.<locals>:labelled"),
    ],
)
def test_threads_of_the_application_are_kept_whatever_they_call(calls: tuple[str, ...]) -> None:
    assert not is_internal(_stack(*calls))


def test_thread_that_has_not_called_its_target_yet_is_internal() -> None:
    stack = _stack(*BOOTSTRAP)
    run = stack.frames[0]
    assert is_internal(Stack((replace(run, line=982, first_line=982), *stack.frames[1:]), truncated=False))
    assert not is_internal(Stack((replace(run, line=993, first_line=982), *stack.frames[1:]), truncated=False))


def test_a_stack_without_its_root_is_the_applications() -> None:
    assert not is_internal(_stack("opentelemetry.sdk.trace:worker", truncated=True))


@pytest.mark.parametrize(
    ("top", "waits"),
    [
        ("threading.Condition:wait", "condition"),
        ("threading:wait", "condition"),
        ("selectors.EpollSelector:select", "select"),
        ("concurrent.futures.thread:_worker", "work"),
        ("grpc._server:_serve", "events"),
        ("shop.threading:wait", ""),
        ("shop:compute", ""),
    ],
)
def test_a_known_wait_is_recognised_by_the_top_frame(top: str, waits: str) -> None:
    assert waiting_on(_stack(top, "shop:main")) == waits


def test_a_thread_without_frames_waits_for_nothing_known() -> None:
    assert waiting_on(_stack()) == ""
