"""Publishing to host profilers: the start of visibility, the name of the service, and the state after a stop."""

from __future__ import annotations

import logging
import os
import socket
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import opentelemetry.context as otel_context
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import (
    ConcurrentMultiSpanProcessor,
    SpanProcessor,
    SynchronousMultiSpanProcessor,
    TracerProvider,
)
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

pytest.importorskip("splunk_profiler._context")

from own_memory import OwnMemory
from published_process import ids_of, provider, published_ids, published_labels, publishing, read_storage

from splunk_profiler import labels
from splunk_profiler.host_profilers.message_socket import MessageSocket
from splunk_profiler.otel import spans
from splunk_profiler.otel.context_tracker import ContextTracker


@pytest.fixture(autouse=True, scope="module")
def _libraries_are_loaded() -> None:
    """Load the libraries: a thread of ours does that once a service is known, while the first span shows in one."""
    with TemporaryDirectory(prefix="s") as path, publishing(Path(path), {"service.name": "early"}):
        pass


@pytest.fixture
def directory() -> Iterator[Path]:
    """Yield an own directory, with a path short enough for a socket."""
    with TemporaryDirectory(prefix="s") as path:
        yield Path(path)


def test_first_span_of_a_provider_makes_the_process_visible_as_its_service(directory: Path) -> None:
    tracer = provider("shop", **{"deployment.environment.name": "test"}).get_tracer("t")
    with publishing(directory) as life:
        assert read_storage() is None
        with tracer.start_as_current_span("first") as span:
            life.run_pending_work()  # as a thread of ours does meanwhile
            seen = read_storage()
            assert published_ids() == ids_of(span)
        assert seen is not None
        assert (seen.minor, seen.name, seen.environment, seen.socket.parent) == (1, "shop", "test", directory)
        assert stat.S_ISSOCK(seen.socket.stat().st_mode)
        assert stat.S_IMODE(seen.socket.stat().st_mode) == 0o600
        assert published_ids() is None


def test_a_service_that_the_environment_names_is_visible_before_any_span(directory: Path) -> None:
    with publishing(directory, {"service.name": "early", "deployment.environment": "old%20style"}):
        seen = read_storage()
        assert seen is not None
        assert (seen.name, seen.environment) == ("early", "old style")


def test_a_provider_replaces_the_environments_service_and_keeps_the_socket(directory: Path) -> None:
    with publishing(directory, {"service.name": "early"}) as life:
        before = read_storage()
        with provider("late").get_tracer("t").start_as_current_span("first"):
            life.run_pending_work()
            after = read_storage()
        assert before is not None
        assert after is not None
        assert (before.name, after.name) == ("early", "late")
        assert before.socket == after.socket
        assert list(directory.iterdir()) == [after.socket]


def test_a_provider_that_comes_later_does_not_rename_the_service(directory: Path) -> None:
    with publishing(directory, {"service.name": "early"}) as life:
        for name in ("shop", "a library's own", "early"):
            with provider(name).get_tracer("t").start_as_current_span("one"):
                life.run_pending_work()
                seen = read_storage()
            assert seen is not None
            assert seen.name == "shop"


def test_first_span_during_a_fork_makes_the_process_visible_after_the_fork(directory: Path) -> None:
    tracer = provider("shop").get_tracer("t")

    def first_span() -> None:
        with tracer.start_as_current_span("first"):
            pass

    with publishing(directory) as life:
        for participant in (life.publisher, life.correlator):
            participant.hold_for_fork(60)
        thread = threading.Thread(target=first_span)
        thread.start()
        thread.join()
        meanwhile = read_storage()
        for participant in (life.publisher, life.correlator):
            participant.release_after_fork()
        life.run_pending_work()
        after = read_storage()
        assert meanwhile is None
        assert after is not None
        assert after.name == "shop"


def test_a_descriptor_that_is_the_applications_by_now_is_left_open(directory: Path) -> None:
    inbox = MessageSocket(str(directory))
    with (directory / "log").open("w") as file:
        number = inbox.fileno()
        os.dup2(file.fileno(), number)  # as after a daemon has closed all that it inherited
        inbox.close()
        os.write(number, b"still here")
        os.close(number)
        assert (directory / "log").read_text() == "still here"
    assert [path.name for path in directory.iterdir()] == ["log"]


def test_a_service_without_a_name_is_not_published_and_logged_once(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with publishing(directory) as life:
        for _ in range(3):
            with provider("unknown_service:python").get_tracer("t").start_as_current_span("one"):
                life.run_pending_work()
                assert read_storage() is None
                assert OwnMemory().labels()
        assert caplog.text.count("set OTEL_SERVICE_NAME") == 1
        assert not list(directory.iterdir())


def test_a_library_that_cannot_be_loaded_leaves_no_socket(
    directory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("splunk_profiler.host_profilers.publisher.elastic_library", lambda: directory / "missing.so")
    with publishing(directory, {"service.name": "shop"}) as life:
        assert read_storage() is None
        assert not list(directory.iterdir())
        life.run_pending_work()
        life.audit()
    assert "host profilers cannot find this process" in caplog.text


def test_the_socket_takes_datagrams_without_a_reader(directory: Path) -> None:
    with publishing(directory, {"service.name": "shop"}), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        seen = read_storage()
        assert seen is not None
        sender.connect(str(seen.socket))
        sender.send(b"message")


@pytest.mark.parametrize("name", ["x" * 80, "file/directory"])
def test_socket_that_cannot_be_made_is_one_warning_and_labels_go_on(
    directory: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    (directory / "file").touch()
    with publishing(directory / name, {"service.name": "shop"}):
        with provider().get_tracer("t").start_as_current_span("one"), labels(route="/"):
            assert published_labels() == {"route": "/"}
        assert read_storage() is None
    (line,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert "ELASTIC_OTEL_UNIVERSAL_PROFILING_INTEGRATION_SOCKET_DIR" in line
    assert name in line


def test_sockets_of_ended_processes_are_removed_and_others_left(directory: Path) -> None:
    stale = directory / "splunk-profiler-1-0123abcd.sock"
    living = directory / "splunk-profiler-2-0123abcd.sock"
    other = directory / "other.sock"
    plain = directory / "splunk-profiler-3-0123abcd.sock"
    plain.touch()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bound:
        bound.bind(str(living))
        for path in (stale, other):
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as gone:
                gone.bind(str(path))
        with publishing(directory, {"service.name": "shop"}):
            deadline = time.monotonic() + 60
            while stale.exists():  # a thread of ours does it
                assert time.monotonic() < deadline
        assert {living, other, plain} == set(directory.iterdir())


def test_children_and_grandchildren_have_the_root_of_their_service(directory: Path) -> None:
    tracer = provider().get_tracer("t")
    with publishing(directory):
        with tracer.start_as_current_span("root") as root:
            with tracer.start_as_current_span("child") as child:
                with tracer.start_as_current_span("grandchild") as grandchild:
                    assert published_ids() == ids_of(grandchild, root)
                assert published_ids() == ids_of(child, root)
            assert published_ids() == ids_of(root)
        with tracer.start_as_current_span("another") as another:
            assert published_ids() == ids_of(another)


def test_span_with_a_remote_parent_is_a_root_and_a_remote_span_is_none(directory: Path) -> None:
    remote = trace.NonRecordingSpan(trace.SpanContext(5, 6, is_remote=True))
    tracer = provider().get_tracer("t")
    with publishing(directory), trace.use_span(remote):
        assert published_ids() is None
        with tracer.start_as_current_span("server") as server, tracer.start_as_current_span("inner") as inner:
            assert published_ids() == ids_of(inner, server)
        assert published_ids() is None
        with trace.use_span(trace.INVALID_SPAN):
            assert published_ids() is None


def test_a_span_that_starts_on_another_thread_has_the_root_of_its_parent(directory: Path) -> None:
    tracer = provider().get_tracer("t")
    seen: list[Any] = []

    def body(context: otel_context.Context) -> None:
        with tracer.start_as_current_span("there", context=context) as span:
            seen.append((published_ids(), span))

    with publishing(directory), tracer.start_as_current_span("here") as root:
        with tracer.start_as_current_span("caller"):
            thread = threading.Thread(target=body, args=(otel_context.get_current(),))
            thread.start()
            thread.join()
        ((ids, span),) = seen
        assert ids == ids_of(span, root)


def test_spans_older_than_publishing_have_a_root_as_far_as_their_parent(directory: Path) -> None:
    tracer = provider().get_tracer("t")
    with (
        tracer.start_as_current_span("root") as root,
        tracer.start_as_current_span("middle") as middle,
        tracer.start_as_current_span("inner") as inner,
    ):
        with publishing(directory) as life:
            assert published_ids() == ids_of(inner, middle)  # that is as far up as it knows
            with trace.use_span(middle):
                assert published_ids() == ids_of(middle, root)
                with tracer.start_as_current_span("new") as new:
                    assert published_ids() == ids_of(new, root)
            life.run_pending_work()
            seen = read_storage()
            assert seen is not None
            assert seen.name == "shop"
        assert published_ids() is None


def test_a_parent_that_is_over_and_gone_counts_as_the_root(directory: Path) -> None:
    tracer = provider().get_tracer("t")
    gone = trace.SpanContext(7, 8, is_remote=False, trace_flags=trace.TraceFlags(1))
    context = trace.set_span_in_context(trace.NonRecordingSpan(gone))
    child = tracer.start_span("child", context=context)
    with publishing(directory), trace.use_span(child):
        ids = published_ids()
        assert ids is not None
        assert ids.local_root_id == 8


def test_spans_that_are_not_sampled_share_the_root_of_their_trace(directory: Path) -> None:
    tracer = TracerProvider(sampler=ALWAYS_OFF).get_tracer("t")
    with publishing(directory):
        for _ in range(2):
            with tracer.start_as_current_span("root") as root:
                assert published_ids() == ids_of(root)
                with tracer.start_as_current_span("inner") as inner:
                    assert published_ids() == ids_of(inner, root)


def test_spans_with_processors_on_other_threads_have_their_roots(directory: Path) -> None:
    concurrent = ConcurrentMultiSpanProcessor(2)
    concurrent.add_span_processor(SpanProcessor())
    tracer = TracerProvider(active_span_processor=concurrent, shutdown_on_exit=False).get_tracer("t")
    with (
        publishing(directory),
        tracer.start_as_current_span("root") as root,
        tracer.start_as_current_span("inner") as inner,
    ):
        assert published_ids() == ids_of(inner, root)
    concurrent.shutdown()


def test_a_stop_leaves_nothing_to_be_followed_and_nothing_of_ours(directory: Path) -> None:
    processors = SynchronousMultiSpanProcessor()  # type: ignore[no-untyped-call]
    processors.add_span_processor(SpanProcessor())
    own = TracerProvider(active_span_processor=processors)
    before = vars(processors)["_span_processors"]
    memory = OwnMemory()
    with publishing(directory), own.get_tracer("t").start_as_current_span("one"), labels(route="/"):
        assert vars(processors)["_span_processors"] != before
        assert memory.labels()
    assert vars(processors)["_span_processors"] == before
    assert read_storage() is None
    assert memory.elastic() is None
    assert memory.labels() is None
    assert not list(directory.iterdir())


def test_it_can_begin_again_any_number_of_times(directory: Path) -> None:
    tracer = provider().get_tracer("t")
    sockets = set()
    for _ in range(5):
        with publishing(directory) as life, tracer.start_as_current_span("one") as span, labels(route="/"):
            assert published_ids() == ids_of(span)
            assert published_labels() == {"route": "/"}
            life.run_pending_work()
            seen = read_storage()
            assert seen is not None
            sockets.add(seen.socket)
        assert read_storage() is None
    assert len(sockets) == 5


def test_each_abi_can_be_published_alone(directory: Path) -> None:
    tracer = provider().get_tracer("t")
    with publishing(directory, correlation="false"), tracer.start_as_current_span("one"):
        assert OwnMemory().labels()
        assert read_storage() is None
    with (
        publishing(directory, custom_labels="auto") as life,
        tracer.start_as_current_span("one"),
        labels(route="/"),
    ):
        life.run_pending_work()
        assert OwnMemory().elastic() is not None
        assert read_storage() is not None


def test_context_tracker_and_publishing_work_together_in_any_order(directory: Path) -> None:
    tracer = provider().get_tracer("t")
    here = threading.get_ident()
    tracker = ContextTracker(spans.runtime_context(), spans.context_variable(), lambda: None)
    for tracker_first in (True, False):
        if tracker_first:
            tracker.install()
        with publishing(directory):
            tracker.install()
            with tracer.start_as_current_span("one") as span:
                assert published_ids() == ids_of(span)
                assert trace.get_current_span(tracker.value_of(here)) is span
            assert published_ids() is None
            if not tracker_first:
                tracker.remove()
        tracker.remove()
        with tracer.start_as_current_span("after"):
            assert tracker.value_of(here) is None


def test_who_decorates_over_us_keeps_working_when_we_go(directory: Path) -> None:
    runtime = spans.runtime_context()
    tracer = provider().get_tracer("t")
    calls = []
    try:
        with publishing(directory):
            inner = runtime.attach

            def foreign(context: otel_context.Context) -> Any:
                calls.append(context)
                return inner(context)

            runtime.attach = foreign
            with tracer.start_as_current_span("one") as span:
                assert published_ids() == ids_of(span)
        assert runtime.attach is foreign
        with tracer.start_as_current_span("two") as span:
            assert trace.get_current_span() is span
            assert published_ids() is None
        assert len(calls) == 2
    finally:
        vars(runtime).pop("attach", None)


def test_a_span_processor_of_ours_neither_delays_nor_fails_a_flush(directory: Path) -> None:
    own = provider()
    with publishing(directory), own.get_tracer("t").start_as_current_span("one"):
        assert own.force_flush()
        own.shutdown()
