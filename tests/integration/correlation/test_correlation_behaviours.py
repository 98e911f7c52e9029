"""Transactions and their exporters while a host profiler sends messages.

Processors, socket and messages are real, in this process. `test_correlation_forks.py` and `…_ends.py`
test whole processes.
"""

from __future__ import annotations

import re
import stat
import struct
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult

pytest.importorskip("splunk_profiler._context", reason="the native publisher is not built for this interpreter")

from correlated_process import LogCapture, correlated
from host_profiler import ENCODED_STACKS, OTHER_STACK, STACK, HostProfiler, RecordingExporter
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from own_memory import OwnMemory
from published_process import ids_of, published_ids, publishing, read_storage
from published_process import provider as named_provider

_FULL = "more transactions end than can wait"


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory of its own whose path is short enough for a socket's."""
    with TemporaryDirectory(prefix="s") as path:
        yield Path(path)


class RecordOnly(Sampler):
    """Spans are recorded, and not sampled."""

    def should_sample(self, *_: Any, **__: Any) -> SamplingResult:
        """Every one."""
        return SamplingResult(Decision.RECORD_ONLY)

    def get_description(self) -> str:
        """Its name."""
        return "RecordOnly"


def remote_parent() -> Context:
    """Return a parent context as of a request from another service."""
    parent = trace.SpanContext(0x7A, 0x8B, is_remote=True, trace_flags=trace.TraceFlags(1))
    return trace.set_span_in_context(trace.NonRecordingSpan(parent))


# ---- what waits, and what does not ----


def test_sampled_local_roots_wait_and_their_children_do_not(directory: Path) -> None:
    with correlated(directory) as here:
        with here.tracer.start_as_current_span("root"), here.tracer.start_as_current_span("child"):
            pass
        with here.tracer.start_as_current_span("of another service's trace", context=remote_parent()):
            here.span("its child").end()
        assert here.exported.names == ["child", "its child"]
        here.flush()
        assert here.exported.names == ["child", "its child", "root", "of another service's trace"]


def test_transactions_that_are_not_sampled_do_not_wait(directory: Path) -> None:
    ended: list[str] = []

    class OfAll(SimpleSpanProcessor):
        """Exports what is only recorded, too."""

        def on_end(self, span: ReadableSpan) -> None:
            ended.append(span.name)

    own = TracerProvider(RecordOnly(), Resource({"service.name": "shop"}))
    with correlated(directory, provider=own, processor=OfAll, hold=False) as here:
        here.span("not sampled").end()
        assert ended == ["met", "not sampled"]


def test_nothing_waits_in_auto_before_a_profiler_is_heard_of(directory: Path) -> None:
    with correlated(directory, "auto", hold=False) as here:
        assert here.exported.names == ["met"]
        here.span("root").end()
        assert here.exported.names == ["met", "root"]
        here.start_holding()
        here.span("afterwards").end()
        assert here.exported.names == []


def test_the_first_stack_trace_is_as_good_as_a_registration_in_auto(directory: Path) -> None:
    with correlated(directory, "auto", hold=False) as here:
        begun = here.span("begun before")
        here.host.report(begun, count=2)
        here.life.audit()
        here.log.wait_for("a host profiler sends stack traces: transactions wait 1000 ms")
        begun.end()
        assert here.exported.names == ["met"]
        here.exported.wait_for("begun before")
        assert here.exported.ids("begun before") == {ENCODED_STACKS[STACK]: 2}


def test_unknown_or_broken_message_does_not_count_as_a_registration(directory: Path) -> None:
    with correlated(directory, "auto", hold=False) as here:
        here.host.send(struct.pack("=HH40s", 3, 1, b"of a later version"))
        here.host.send(struct.pack("=HH20s", 1, 1, b"cut off"))
        here.host.send(struct.pack("=HH", 2, 1))
        here.life.audit()
        here.log.wait_for("a profiler registration message that is cut off")
        here.span("root").end()
        assert here.exported.names == ["met", "root"]


@pytest.mark.parametrize("mode", ["true", "auto"])
def test_service_without_a_name_defers_nothing_and_logs_it_once(directory: Path, mode: str) -> None:
    exported = RecordingExporter()
    own = named_provider("unknown_service:python")
    own.add_span_processor(SimpleSpanProcessor(exported))
    with LogCapture().capture() as log, publishing(directory, correlation=mode, enabled=True) as life:
        for _ in range(3):
            with own.get_tracer("t").start_as_current_span("root"):
                life.run_pending_work()
                assert read_storage() is None
        assert exported.names == ["root"] * 3
        assert log.count("WARNING host profilers cannot find this process, because its service has no name") == 1
    own.shutdown()
    assert not list(directory.iterdir())


def test_after_a_stop_nothing_waits_and_what_waited_has_been_exported(directory: Path) -> None:
    with correlated(directory) as here:
        root = here.span("root")
        here.host.report(root)
        root.end()
        here.life.stop()
        assert here.exported.ids("root") == {ENCODED_STACKS[STACK]: 1}
        here.span("later").end()
        assert here.exported.names == ["root", "later"]
        assert not {"on_start", "on_end", "force_flush", "shutdown"} & vars(here.processor).keys()


def test_transactions_beyond_the_buffer_are_exported_and_logged_once(directory: Path) -> None:
    with correlated(directory, correlation_buffer_size=2) as here:
        for name in ("first", "second", "third", "fourth"):
            span = here.span(name)
            here.host.report(span)
            span.end()
        assert here.exported.names == ["third", "fourth"]
        assert here.log.count(_FULL) == 1
        assert here.log.count(f"WARNING {_FULL}") == 1
        here.flush()
        assert sorted(here.exported.names) == ["first", "fourth", "second", "third"]
        here.span("fifth").end()
        assert len(here.exported.names) == 4, "there is room again"


# ---- what is said of a transaction ----


def test_the_attribute_has_each_id_as_often_as_it_was_seen(directory: Path) -> None:
    """The example of the specification."""
    with correlated(directory) as here:
        root = here.span("root")
        here.host.report(root, STACK, 2)
        here.host.report(root, OTHER_STACK, 1)
        root.end()
        here.host.report(root, STACK, 1)
        here.flush()
        assert here.exported.ids("root") == {"YLQguzhR2dR6y5M9vnA5mw": 3, "TJMmu5gF-o-FiCwS6uckzg": 1}


def test_what_was_sent_before_a_flush_is_on_the_spans_that_it_exports(directory: Path) -> None:
    with correlated(directory) as here:
        for number in range(200):
            root = here.span(f"root {number}")
            root.end()
            here.host.report(root, STACK, number + 1)
            here.flush()
            assert here.exported.ids(f"root {number}") == {ENCODED_STACKS[STACK]: number + 1}


def test_a_transaction_of_which_nothing_was_seen_has_no_attribute(directory: Path) -> None:
    with correlated(directory) as here:
        seen, unseen = here.span("seen"), here.span("unseen")
        here.host.report(seen)
        here.host.report(unseen, count=0)
        seen.end()
        unseen.end()
        here.flush()
        assert here.exported.ids("seen") == {ENCODED_STACKS[STACK]: 1}
        assert here.exported.ids("unseen") is None


def test_the_count_of_a_message_is_unsigned(directory: Path) -> None:
    with correlated(directory) as here:
        root = here.span("root")
        here.host.report(root, count=0xFFFF)
        root.end()
        here.flush()
        assert here.exported.ids("root") == {ENCODED_STACKS[STACK]: 65_535}


def test_two_local_roots_of_one_trace_have_their_own_ids(directory: Path) -> None:
    with correlated(directory) as here:
        first, second = (here.span(name, context=remote_parent()) for name in ("first", "second"))
        here.host.report(first, STACK, 3)
        here.host.report(second, OTHER_STACK, 2)
        for span in (first, second):
            span.end()
        here.flush()
        assert here.exported.ids("first") == {ENCODED_STACKS[STACK]: 3}
        assert here.exported.ids("second") == {ENCODED_STACKS[OTHER_STACK]: 2}


def test_messages_about_unknown_transactions_change_nothing(directory: Path) -> None:
    with correlated(directory) as here:
        root = here.span("root")
        for number in range(2000):
            here.host.report_ids(number + 1, number + 1)
        here.host.report(root)
        root.end()
        here.flush()
        assert here.exported.ids("root") == {ENCODED_STACKS[STACK]: 1}


def test_messages_of_unknown_type_are_ignored_and_truncated_ones_discarded(directory: Path) -> None:
    with correlated(directory) as here:
        root = here.span("root")
        context = root.get_span_context()
        ids = context.trace_id.to_bytes(16, "big") + context.span_id.to_bytes(8, "big")
        whole = struct.pack("=HH24s16sH", 1, 7, ids, STACK, 5)
        for length in range(1, len(whole)):
            here.host.send(whole[:length])
        for message_type in (0, 3, 0xFFFF):
            here.host.send(struct.pack("=H", message_type) + whole[2:])
        here.host.send(whole + b"and a field of a later minor version")
        root.end()
        here.flush()
        assert here.exported.ids("root") == {ENCODED_STACKS[STACK]: 5}
        assert here.log.count("DEBUG a message of a host profiler was ignored: type 65535") == 1
        assert here.log.count("DEBUG a message of a host profiler was discarded") == 2
        assert not [line for line in here.log.lines if line.startswith(("WARNING", "ERROR"))]


# ---- what is said of the host ----


def test_registered_host_id_is_on_every_span_and_on_profiler_records(directory: Path) -> None:
    with correlated(directory) as here:
        own = Resource({"service.name": "shop"})
        assert here.life.correlator.resource(own) is own
        here.host.register(host_id="a-host", minor=2)
        here.log.wait_for("host.id a-host")
        with here.tracer.start_as_current_span("root"), here.tracer.start_as_current_span("child"):
            pass
        here.flush()
        for name in ("child", "root"):
            assert here.exported.one(name).resource.attributes["host.id"] == "a-host"
            assert here.exported.one(name).resource.attributes["service.name"] == "shop"
        assert here.life.correlator.resource(own).attributes == {"service.name": "shop", "host.id": "a-host"}
        assert "host.id" not in here.provider.resource.attributes


@pytest.mark.parametrize("host_id", [None, ""], ids=["absent", "empty"])
@pytest.mark.parametrize("minor", [1, 2])
def test_a_host_id_that_is_absent_or_empty_is_none(directory: Path, host_id: str | None, minor: int) -> None:
    with correlated(directory) as here:
        here.host.register(host_id=host_id, minor=minor)
        here.span("root").end()
        here.flush()
        assert "host.id" not in here.exported.one("root").resource.attributes


def test_an_own_host_id_wins_and_a_mismatch_is_warned_of_once(directory: Path) -> None:
    own = named_provider("shop", **{"host.id": "mine"})
    with correlated(directory, provider=own) as here:
        here.host.register(host_id="mine")
        here.span("equal").end()
        here.flush()
        assert here.log.count("WARNING") == 0
        for _ in range(2):
            here.host.register(host_id="another")
            here.span("different").end()
            here.flush()
        assert {span.resource.attributes["host.id"] for span in here.exported.spans} == {"mine"}
        assert here.log.count("WARNING host.id is 'mine' here, and 'another' for the host profiler") == 1
        assert here.log.count("WARNING") == 1
        assert here.life.correlator.resource(own.resource) is own.resource


# ---- what host profilers find ----


def test_the_socket_is_made_with_its_directory_and_removed_at_the_end(directory: Path) -> None:
    missing = directory / "made" / "for it"
    with correlated(missing) as here:
        (path,) = missing.iterdir()
        assert re.fullmatch(r"splunk-profiler-\d+-[0-9a-f]{8}\.sock", path.name)
        assert stat.S_ISSOCK(path.stat().st_mode)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        seen = read_storage()
        assert seen is not None
        assert seen.socket == path
        here.life.stop()
        assert list(missing.iterdir()) == []


@pytest.mark.parametrize(
    ("attributes", "environment"),
    [
        ({"deployment.environment.name": "new", "deployment.environment": "old"}, "new"),
        ({"deployment.environment": "old"}, "old"),
        ({"deployment.environment.name": "", "deployment.environment": "old"}, "old"),
        ({}, ""),
    ],
)
def test_the_environment_is_the_newer_conventions_then_the_older_ones(
    directory: Path, attributes: dict[str, str], environment: str
) -> None:
    with correlated(directory, provider=named_provider("shop", **attributes)):
        seen = read_storage()
        assert seen is not None
        assert seen.environment == environment


def test_a_span_that_is_remote_or_invalid_is_not_shown(directory: Path) -> None:
    with correlated(directory) as here:
        memory = OwnMemory()
        for context in (remote_parent(), trace.set_span_in_context(trace.INVALID_SPAN)):
            with here.tracer.start_as_current_span("root") as root:
                assert published_ids() == ids_of(root)
                (span,) = (trace.get_current_span(context),)
                with trace.use_span(span):
                    record = memory.elastic()
                    assert record is not None
                    assert (record.valid, record.present) == (1, 0)
                assert published_ids() == ids_of(root)


def test_two_host_profilers_at_once_are_both_heard(directory: Path) -> None:
    with correlated(directory) as here:
        seen = read_storage()
        assert seen is not None
        with HostProfiler(seen.socket) as other:
            other.register(minor=2, host_id="")
            root = here.span("root")
            for _ in range(20):
                here.host.report(root, STACK)
                other.report(root, OTHER_STACK, 2)
            root.end()
            here.flush()
        assert here.exported.ids("root") == Counter({ENCODED_STACKS[STACK]: 20, ENCODED_STACKS[OTHER_STACK]: 40})
