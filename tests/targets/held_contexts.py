"""Contexts that stand still while a test looks at them: ``held_contexts.py SCENE …``.

Each moment is a line ``at {…}`` with what a host profiler has to see of a thread, by OpenTelemetry's own account; the
thread goes on when a line arrives on standard input. Ends with a line ``end``. Publishing is started by each scene,
with the settings of the environment.
"""

from __future__ import annotations

import asyncio
import contextvars
import ctypes
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from marked_work import say, wait_until_visible
from opentelemetry import trace
from opentelemetry.context import Context, attach, detach, get_current
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import Decision, ParentBased, Sampler, SamplingResult
from opentelemetry.trace import Link, NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

import splunk_profiler
from splunk_profiler import labels
from splunk_profiler.host_profilers.libraries import elastic_library

TRACER = trace.get_tracer(__name__)


class ByName(Sampler):
    """Drops the spans that are called ``dropped``."""

    def should_sample(self, *_parent_and_trace: Any, **span: Any) -> SamplingResult:
        name = span.get("name") or _parent_and_trace[2]
        return SamplingResult(Decision.DROP if name == "dropped" else Decision.RECORD_AND_SAMPLE)

    def get_description(self) -> str:
        return "ByName"


@cache
def set_provider(sampler: Sampler | None = None) -> None:
    """Set the provider, which is one for all scenes of a process."""
    trace.set_tracer_provider(TracerProvider(sampler=sampler))


def start() -> None:
    """Start publishing; return once a thread of the profiler has published the process storage."""
    assert splunk_profiler.start()
    wait_until_visible()
    # After a stop, the library is still there: only its pointer tells that the process is visible again.
    library = ctypes.CDLL(str(elastic_library()))
    storage = ctypes.c_void_p.in_dll(library, "elastic_apm_profiling_correlation_process_storage_v1")
    deadline = time.monotonic() + 60
    while not storage.value:
        assert time.monotonic() < deadline
        time.sleep(0.001)


def at(moment: str, root: trace.Span | None = None, **published_labels: str) -> None:
    """Stand still in the current context, where `root` is the local root, until the test has looked."""
    context = trace.get_current_span().get_span_context()
    ids = None
    if root is not None:
        local_root = root.get_span_context()
        assert local_root.trace_id == context.trace_id
        ids = {
            "trace_id": f"{context.trace_id:032x}",
            "span_id": f"{context.span_id:016x}",
            "transaction_id": f"{local_root.span_id:016x}",
            "trace_flags": int(context.trace_flags),
        }
    say("at", {"moment": moment, "tid": threading.get_native_id(), "ids": ids, "labels": published_labels})
    assert sys.stdin.readline()


@contextmanager
def span(name: str, **more: Any) -> Iterator[trace.Span]:
    with TRACER.start_as_current_span(name, **more) as started:
        yield started


def elsewhere(body: Callable[[], None]) -> None:
    """Run it on another thread, whose context is empty, to the end."""
    failures: list[BaseException] = []

    def guarded() -> None:
        try:
            body()
        except BaseException as error:
            failures.append(error)
            raise

    thread = threading.Thread(target=guarded)
    thread.start()
    thread.join()
    assert not failures


def remote(trace_id: int = 0xABCDEF, flags: int = 1) -> Context:
    """A context that came in with a request."""
    context = SpanContext(trace_id, 0x1234, is_remote=True, trace_flags=TraceFlags(flags))
    return set_span_in_context(NonRecordingSpan(context), Context())


def nested() -> None:
    """Spans in spans, siblings, and a root inside another trace."""
    set_provider()
    start()
    at("before the first span")
    with span("root") as root:
        at("in the root", root)
        with span("child"):
            at("in a child", root)
            with span("grandchild"):
                at("in a grandchild", root)
            with span("other root", context=Context()) as other:
                at("in another trace", other)
                with span("child of the other"):
                    at("in a child there", other)
            at("in the child again", root)
        with span("second child"):
            at("in a second child", root)
    at("after the last span")


def remote_parent() -> None:
    """A request from elsewhere: the span that serves it is the local root; the caller's is never shown."""
    set_provider()
    start()
    token = attach(remote())
    at("the caller's span is current")
    with span("serves") as root:
        at("serving", root)
        with span("child"):
            at("in a child", root)
            inner = attach(remote(0xFEDCBA))
            at("another caller's span is current")
            detach(inner)
            at("in the child again", root)
    detach(token)
    at("served")


def late_activation() -> None:
    """Publishing starts while spans are open, some of them current on no thread."""
    set_provider()
    held = TRACER.start_span("root")
    in_root = set_span_in_context(held, Context())
    middle = TRACER.start_span("middle", in_root)
    with span("first root") as first, span("open child"):
        start()
        at("publishing starts in a child", first)
        with span("later child"):
            at("in a child that started later", first)
    token = attach(set_span_in_context(TRACER.start_span("leaf", set_span_in_context(middle, Context())), Context()))
    at("in a new span below two that nobody has seen", held)
    detach(token)
    token = attach(set_span_in_context(middle, Context()))
    at("in one of them", held)
    detach(token)


def other_threads() -> None:
    """A context that is attached on another thread, and a span that is ended there."""
    set_provider()
    start()
    with span("root") as root, span("child") as child:
        context = get_current()

        def body() -> None:
            at("a new thread has no span")
            token = attach(context)
            at("in the context of another thread", root)
            with span("grandchild"):
                at("in a span of its own below it", root)
            detach(token)
            at("without it again")

        elsewhere(body)
        at("the first thread", root)
        elsewhere(child.end)
        at("the first thread, in a span that has ended", root)


def second_provider() -> None:
    """A first span of a provider that nobody has seen, below spans of another one."""
    set_provider()
    start()
    other = TracerProvider().get_tracer(__name__)
    with span("root") as root, span("child"), other.start_as_current_span("of the other provider"):
        at("in a span of another provider", root)
        with span("grandchild"):
            at("in a child of it", root)


def links() -> None:
    """A link is no parent."""
    set_provider()
    start()
    with span("linked") as linked:
        link = Link(linked.get_span_context())
    with span("root", links=[link]) as root:
        at("in a span with a link", root)
    with span("outer") as outer, span("inner", links=[link]):
        at("in a child with a link", outer)


def unsampled() -> None:
    """Spans that are not sampled, which are published with the flag cleared."""
    set_provider(ByName())
    start()
    with span("dropped") as root:
        at("in a root that is not sampled", root)
        with span("dropped"):
            at("in a child that is not sampled either", root)
        at("in the root again", root)
    with span("root") as root, span("dropped"):
        at("in a child that is not sampled", root)
        with span("sampled"):
            at("in a grandchild that is", root)
    token = attach(remote(flags=0))
    with span("dropped") as serves:
        at("serving what nobody samples", serves)
    detach(token)


def by_parent() -> None:
    """The SDK's default: a trace that came in unsampled stays so."""
    set_provider(ParentBased(ByName()))
    start()
    token = attach(remote(flags=0))
    with span("serves") as root:
        at("serving", root)
        with span("child"):
            at("in a child", root)
    detach(token)
    at("served")


def not_recording() -> None:
    """Objects in the place of spans: invalid ones, and local ones made of ids."""
    set_provider()
    start()
    with trace.use_span(trace.INVALID_SPAN):
        at("the invalid span is current")
    local = NonRecordingSpan(SpanContext(0xABC, 0xDEF, is_remote=False, trace_flags=TraceFlags(1)))
    with trace.use_span(local):
        at("in a local span that does not record", local)
        with span("child"):
            at("in a child of it", local)
    token = attach(Context({"current-span": "no span"}))
    at("in a context without a span")
    detach(token)


def user_labels() -> None:
    """Labels of the user: nested, overridden, with spans and without, inherited as context variables are."""
    set_provider()
    start()
    with labels(route="/", tenant="a"):
        at("without a span", route="/", tenant="a")
        with span("root") as root:
            at("in a span", root, route="/", tenant="a")
            with labels(route="/checkout", step=1):
                at("in an inner block", root, route="/checkout", tenant="a", step="1")
                copied = contextvars.copy_context()
            at("behind it", root, route="/", tenant="a")
        elsewhere(lambda: at("a new thread has none"))

        def carries_over() -> None:  # as asgiref does between sync and async code of Django
            for variable, value in copied.items():
                variable.set(value)
            at("where a framework set the values of another context", root, route="/checkout", tenant="a", step="1")

        elsewhere(carries_over)
        elsewhere(lambda: copied.run(at, "in a copied context on another thread", root, route="/checkout", tenant="a", step="1"))  # fmt: skip  # noqa: E501

        async def task() -> None:
            at("in a task", route="/", tenant="a")
            with labels(route="/task"):
                await asyncio.sleep(0)
                at("in a task with a label of its own", route="/task", tenant="a")
                await asyncio.to_thread(at, "in asyncio.to_thread", route="/task", tenant="a")

        async def main() -> None:
            await asyncio.gather(task(), asyncio.sleep(0))
            await asyncio.gather(labelled(), asyncio.sleep(0))
            at("behind the tasks", route="/", tenant="a")

        @labels(job="decorated")
        async def labelled() -> None:
            await asyncio.sleep(0)
            at("in a decorated coroutine", route="/", tenant="a", job="decorated")

        asyncio.run(main())
    at("without labels")


def limits() -> None:
    """Labels beyond what readers take."""
    set_provider()
    start()
    with labels(**{"k" * 30: "v" * 60, "ключ-длиннее-предела": "значение-которое-длиннее-пятидесяти-трёх"}):
        at("cut", None, **{"k" * 25: "v" * 53, "ключ-длиннее-": "значение-которое-длиннее-пят"})
    with labels(**{"nul": "before\0after", "x" * 25 + "1": "first", "x" * 25 + "2": "second"}):
        at("cut at a NUL; of two that become the same the last counts", None, nul="before", **{"x" * 25: "second"})
    with labels(**{f"label{number}": str(number) for number in range(9)}), span("root") as root:
        at("as many as there is room for", root, **{f"label{number}": str(number) for number in range(7)})
    with labels(trace_id="mine", empty="", span_id="mine", local_root_span_id="mine"):
        at("the profiler's own names are not the user's", empty="")


def stop_and_start() -> None:
    """Stopped, nothing is shown by any thread; started again, everything is."""
    set_provider()
    start()
    ready, leave = threading.Event(), threading.Event()

    def beside() -> None:
        with span("beside"):
            ready.set()
            leave.wait()

    thread = threading.Thread(target=beside)
    thread.start()
    ready.wait()
    with span("root") as root:
        at("started", root)
        splunk_profiler.stop()
        at("stopped")
        start()
        at("started again", root)
        with span("child"):
            at("in a child", root)
        splunk_profiler.stop()
        at("stopped again")
    leave.set()
    thread.join()


SCENES: dict[str, Callable[[], None]] = {
    scene.__name__: scene
    for scene in (
        nested, remote_parent, late_activation, other_threads, second_provider, links, unsampled, by_parent,
        not_recording, user_labels, limits, stop_and_start,
    )
}  # fmt: skip

if __name__ == "__main__":
    for name in sys.argv[1:]:
        SCENES[name]()
    say("end")
