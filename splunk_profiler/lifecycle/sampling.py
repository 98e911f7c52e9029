"""One run of sampling: ticker, events and the stream of what they capture; replaced as a whole in a forked child.

`profiler` makes, starts and stops it, one call at a time; its parts have threads of their own. A child never repairs,
joins or closes the parts of its parent.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

from splunk_profiler.activation import FORK_GATE
from splunk_profiler.capture.events import EventSources, make_sources
from splunk_profiler.capture.overhead import OverheadLimiter
from splunk_profiler.capture.recorder import ContextReader, StreamRecorder
from splunk_profiler.capture.sampler import OverheadLimit, Sampler
from splunk_profiler.capture.walker import Ticker, WalkerChoice, choose_walker, make_ticker
from splunk_profiler.config import Config, Resolved
from splunk_profiler.config.parsers import StreamDirectory
from splunk_profiler.export import destinations
from splunk_profiler.export.stream_file import StreamFile
from splunk_profiler.export.stream_output import StreamOutput
from splunk_profiler.exporter_process.launch import LaunchError, Process1Error, choose_interpreter, show_thread_reason
from splunk_profiler.lifecycle.process_export import ProcessExport
from splunk_profiler.otel import spans
from splunk_profiler.otel.context_tracker import ContextTracker
from splunk_profiler.otel.local_roots import LocalRootTracker
from splunk_profiler.otel.runtime_id import ResourceTagger
from splunk_profiler.otel.trace_selector import TraceSelector
from splunk_profiler.raw import Periods, RawSnapshot, TraceFilter
from splunk_profiler.system import clocks
from splunk_profiler.system.guard import Guard, logger
from splunk_profiler.system.short_turns import ShortTurns
from splunk_profiler.user_labels import sample_labels
from splunk_profiler.user_labels.label_tracker import LabelTracker
from splunk_profiler.user_labels.labels import CURRENT_LABELS, LABEL_PUBLISHER

_FIRST_SEND_S = 0.5  # for the exporter process to be ready when the first samples come
_MIN_COLLECTION_NS, _MAX_COLLECTION_NS = 10_000_000, 50_000_000  # between two that are kept
_AUDIT_S = 1.0  # between two audits of what is published: beside busy threads, each waits for the GIL


class PublishingCalls(NamedTuple):
    """The calls with which publishing serves sampling. The defaults are for a process that publishes nothing.

    Attributes:
        audit: compares what threads publish; called once a second, on the sampler thread; never raises.
        enrich_resource: adds to a resource what host profilers have sent.
        local_root_of: returns the id of a span's local root if it is published, else None.
    """

    audit: Callable[[], None] = lambda: None
    enrich_resource: Callable[[Any], Any] = lambda resource: resource
    local_root_of: Callable[[Any], int | None] = lambda _span: None


class Sampling:
    """One run of sampling, from start to stop; in a forked child, it continues the trackers of `parent`."""

    def __init__(
        self,
        resolved: Resolved,
        on_fork_in_child: Callable[[], None],
        publishing: PublishingCalls,
        resource_tagger: ResourceTagger,
        *,
        choice: WalkerChoice,
        look_for_sigterm: Callable[[], None],
        parent: Sampling | None,
    ) -> None:
        self._resolved = resolved = _usable_settings(resolved, choice)
        config = resolved.config
        self._publishing = publishing
        self._choice = choice
        self._look_for_sigterm = look_for_sigterm
        self.resource_tagger = resource_tagger
        if parent is None:
            self._context_tracker = ContextTracker(spans.runtime_context(), spans.context_variable(), on_fork_in_child)
            self._label_tracker = LabelTracker()
        else:  # the parent's trackers know what the forking thread has attached
            self._context_tracker, self._label_tracker = parent._context_tracker, parent._label_tracker
        self._local_roots = self._make_local_roots(parent)
        self._trace_selector = self._make_trace_selector(parent)
        self._periods = Periods(*config.periods_ns)
        self._ticker = self._make_ticker()
        if parent is not None:
            parent._events.stop()  # a child inherits the callbacks of its parent
        self._events: EventSources = make_sources(config, self._ticker, native=self.is_native)
        self._recorder = self._make_recorder()
        self.output: StreamOutput = self._make_output(parent)
        self._resource: Any = None  # the one that is recorded
        self._sampler = self._make_sampler(is_forked_child=parent is not None)
        self._event_guard = Guard("recording events")
        self._auxiliary_guard = Guard("recording resource, names and traces")
        self._output_guard = Guard("exporting in this process")
        self._is_ended = self._has_sent = False
        self._next_audit_s = 0.0
        self._sends_from_s = inf  # the end of a wait for samples
        self._has_warned_of_limit = False

    @property
    def is_native(self) -> bool:
        """True if the native walker serves."""
        return self._choice.name == "native"

    def start(self) -> None:
        """Start the threads; `RuntimeError` if the process can make no more. Then `stop` ends those that run."""
        config, choice = self._resolved.config, self._choice
        if not self.is_native:
            self._context_tracker.install()
            if config.sends_profiles:
                LABEL_PUBLISHER.listener = self._label_tracker
            log = logger.info if config.walker == "portable" else logger.warning
            log(
                "the portable walker is used: %s. It finds the spans that a thread, task or greenlet opens itself; in"
                " copied contexts (asyncio.to_thread, trio, before CPython 3.12 those of tasks) spans may be missing",
                choice.reason,
            )
        if self._trace_selector is not None:
            self._trace_selector.begin(self._ticker.notify_trace_added)
        self._attach_to_provider()
        self._start_stream()
        if config.enabled:
            self._ticker.capture()  # the baseline of each thread's CPU time
            self._sends_from_s = clocks.monotonic() + _FIRST_SEND_S
        self._sampler.start()
        self._events.start()
        self.output.start()
        what, where = _describe_sampling(config), destinations.describe(self._resolved)
        logger.info("profiling %s with the %s walker; records go to %s", what, choice.name, where)

    def stop(self, timeout_s: float) -> None:
        """Stop the threads and send what is gathered, within about `timeout_s` seconds. May be called again."""
        deadline_s = clocks.monotonic() + timeout_s
        self._events.stop()
        has_ended = self._sampler.stop(timeout_s * 0.25)  # beside busy threads, its worker waits for the GIL
        with Guard("ending the sampling").catching():
            if has_ended and not self._is_ended:
                self._is_ended = True
                self._record_auxiliary()
                if not self._send_end(deadline_s):  # the connection was lost, or the buffer full
                    self._send_end(deadline_s)  # all of a new stream
        if self._trace_selector is not None:
            self._trace_selector.end()
            self._trace_selector.detach()
        is_empty = self.output.has_own_process and not self._recorder.has_samples  # it may be loading for nothing
        self.output.stop(0.0 if is_empty else max(deadline_s - clocks.monotonic(), 0.0))
        if not self.is_native:
            self._context_tracker.remove()
            LABEL_PUBLISHER.listener = None
            self._label_tracker.clear()
        if self._local_roots is not None:
            self._local_roots.detach()
        self.resource_tagger.detach()

    def _make_local_roots(self, parent: Sampling | None) -> LocalRootTracker | None:
        if not self._resolved.config.sends_profiles:
            return None
        inherited = None if parent is None else parent._local_roots
        if inherited is None:
            return LocalRootTracker(self._publishing.local_root_of)
        inherited.forget_sampled()  # those of lost threads never end
        return inherited

    def _make_trace_selector(self, parent: Sampling | None) -> TraceSelector | None:
        if not self._resolved.config.snapshot_enabled:
            return None
        inherited = None if parent is None else parent._trace_selector
        if inherited is None:
            return TraceSelector(self._resolved.config.snapshot_probability)
        inherited.end()  # entries of lost threads never end; others end in the parent
        return inherited

    def _make_ticker(self) -> Ticker:
        config, selector = self._resolved.config, self._trace_selector
        return make_ticker(
            self._choice,
            spans.context_variable(),
            self._context_tracker.value_of,
            config.max_stack_depth,
            labels_var=CURRENT_LABELS if config.sends_profiles else None,  # text records carry no labels
            labels_of=self._label_tracker.value_of,
            trace_filter=None if selector is None else TraceFilter(selector.traces, spans.SPAN_KEY, spans.trace_id),
            exception_interval=config.exceptions_interval,
            collection_interval_ns=min(max(self._periods.base_ns // 20, _MIN_COLLECTION_NS), _MAX_COLLECTION_NS),
            skips_quiet=not config.include_internal_stacks,
        )

    def _make_recorder(self) -> StreamRecorder:
        roots = self._local_roots
        if roots is None:
            contexts = ContextReader(spans.span_ref)
        else:
            contexts = ContextReader(roots.span_ref, sample_labels.encode_for_samples, roots.current_name)
        config = self._resolved.config
        reads_nice = not config.sends_profiles or isinstance(config.destination, StreamDirectory)
        return StreamRecorder(contexts, is_native=self.is_native, reads_nice=reads_nice)

    def _make_output(self, parent: Sampling | None) -> StreamOutput:
        destination, inherited = self._resolved.destination, None if parent is None else parent.output
        if isinstance(destination, StreamDirectory):
            return StreamFile(Path(destination.path))
        if isinstance(inherited, ProcessExport):
            return inherited.successor()
        config = self._resolved.config
        if inherited is not None:
            return self._make_local_export(inherited, loads_at_start=False)  # a fork has to end soon
        try:
            export = ProcessExport.new(choose_interpreter(config.exporter, is_native=self.is_native))
        except LaunchError as error:
            show_thread_reason(str(error))
            if config.exporter != "thread":
                can_be_changed = config.exporter == "process" or isinstance(error, Process1Error)
                level = logging.WARNING if can_be_changed else logging.INFO
                logger.log(level, "records are made and exported by threads of this process: %s", error)
            return self._make_local_export(None, loads_at_start=True)
        show_thread_reason("")
        return export

    def _make_local_export(self, inherited: StreamOutput | None, *, loads_at_start: bool) -> StreamOutput:
        """Return an output in this process; one that takes nothing if a change of root or user hides our modules."""
        try:
            with FORK_GATE, ShortTurns():  # a child that is forked meanwhile could not import it
                from splunk_profiler.lifecycle.local_export import LocalExport  # noqa: PLC0415  # needless in most
        except (ImportError, FileNotFoundError, PermissionError) as error:
            cure = "start the service again, with SPLUNK_PROFILER_EXPORTER=thread if it changes its user or root"
            logger.warning("no records are exported: the exporter cannot be loaded: %s; %s", error, cure)
            return StreamOutput()
        enrich, parent = self._publishing.enrich_resource, inherited if isinstance(inherited, LocalExport) else None
        return LocalExport(self._resolved, self.resource_tagger, enrich, parent, loads_at_start=loads_at_start)

    def _make_sampler(self, *, is_forked_child: bool) -> Sampler:
        max_overhead, limit = self._resolved.config.overhead_limit, None
        if max_overhead is not None:
            limiter = OverheadLimiter(self._periods.base_ns, max_overhead)
            limit = OverheadLimit(limiter, self._output_cpu_ns, self._apply_new_periods, self._output_backlog_bytes)
        return Sampler(
            self._ticker, self._periods, self._handle, limit, on_drained=self._send, is_forked_child=is_forked_child
        )

    def _output_cpu_ns(self) -> int:
        return self.output.cpu_ns()  # of the one that a fallback has put there

    def _output_backlog_bytes(self) -> int:
        return self.output.backlog_bytes()

    def _apply_new_periods(self, base_ns: int) -> None:
        config, periods, now = self._resolved.config, self._periods, self._periods.stretched(base_ns)
        self._events.slow_down(max(base_ns / periods.base_ns, 1.0))
        log = logger.debug if self._has_warned_of_limit else logger.warning
        self._has_warned_of_limit = True
        log(
            "to sample every %d ms the profiler would use more than %s %% of a core (SPLUNK_PROFILER_MAX_OVERHEAD), or"
            " more than its exporter can take: it samples every %d ms, and more often again when that takes"
            " less (logged once)",
            config.call_stack_interval_ms if periods.is_all_threads_base else config.snapshot_interval_ms,
            config.max_overhead,
            (now.all_ns if periods.is_all_threads_base else now.focused_ns) // 1_000_000,
        )

    def _handle(self, raw: RawSnapshot) -> None:
        self._record_traces()
        self._recorder.record_snapshot(raw)

    def _send(self) -> None:
        """Record what accompanies the snapshots, and send all; called at least once a second, and at SIGTERM."""
        self._look_for_sigterm()
        with self._auxiliary_guard.catching():
            self._record_auxiliary()
        self._send_taken()

    def _send_end(self, deadline_s: float) -> bool:
        self._recorder.record_end(deadline_s - clocks.monotonic())
        return self._send_taken(is_ending=True)

    def _send_taken(self, *, is_ending: bool = False) -> bool:
        """Return False if the stream has begun anew, without what was taken."""
        is_due = not is_ending and clocks.monotonic() >= self._sends_from_s
        self._has_sent = self._has_sent or is_due or self._recorder.has_samples
        if not self._has_sent:  # a command that ends at once starts no exporter
            return True
        if not is_ending and not self.resource_tagger.is_settled(spans.tracer_provider()):
            return True  # a little later
        if self.output.failure:
            self._fall_back(self.output.failure)
        is_sent = not self._recorder.is_paused and self.output.send(self._recorder.take())
        if not is_sent:
            self._recorder.restart(is_paused=not self.output.send(b""))
        return is_sent

    def _fall_back(self, reason: str) -> None:
        """Export in this process, because there is no exporter process."""
        # On the exporting thread: loading takes seconds beside busy threads, and the ring holds 256 snapshots.
        previous, output = self.output, self._make_local_export(None, loads_at_start=False)
        self.output = output  # before its thread can import: a fork must hold it
        try:
            output.start()
        except RuntimeError as error:  # no more threads; the next call tries again
            self.output = previous
            self._output_guard.note(error)
            return
        previous.stop(0)
        show_thread_reason(reason)
        if type(output) is not StreamOutput:
            logger.warning("records are made and exported by threads of this process: %s", reason)
        self._start_stream()
        self._recorder.restart()

    def _start_stream(self) -> None:
        self._recorder.record_start(self.output.settings(self._resolved))

    def _record_auxiliary(self) -> None:
        now_s = clocks.monotonic()
        if now_s >= self._next_audit_s:
            self._next_audit_s = now_s + _AUDIT_S
            self._publishing.audit()
        self._recorder.record_renamed_threads()
        for event in self._events.drain():
            try:
                self._recorder.record_event(event)
            except Exception as error:
                self._event_guard.note(error)
        self._recorder.record_endpoints()
        self._attach_to_provider()
        if self._trace_selector is not None:
            self._trace_selector.expire_entries()
            self._record_traces()
        self._record_resource()

    def _record_resource(self) -> None:
        """Record the resource if it has changed; before the application has set one, the configured one with our id."""
        provider = spans.tracer_provider()
        resource = getattr(provider, "resource", None)
        if resource is None:
            if self._resource is None:
                self._resource = {**self._resolved.resource_attributes, **self.resource_tagger.record_attributes()}
                self._recorder.record_resource(self._resource, "", is_final=False)
            return
        if not self._is_ended and not self.resource_tagger.is_settled(provider):
            return
        resource = self._publishing.enrich_resource(self.resource_tagger.resource(resource))
        if resource is not self._resource:
            self._resource = resource
            self._recorder.record_resource(resource.attributes, resource.schema_url, is_final=True)

    def _record_traces(self) -> None:
        for trace_id, time_ns, entry in () if self._trace_selector is None else self._trace_selector.take_changes():
            if entry is None:
                self._recorder.record_trace_ended(trace_id, time_ns)
            else:
                self._recorder.record_trace_selected(trace_id, time_ns, entry.ident, entry.cpu_ns)

    def _attach_to_provider(self) -> None:
        """Follow the spans of the application's provider, which may be new."""
        provider = spans.tracer_provider()
        for listener in (self.resource_tagger, self._local_roots, self._trace_selector):
            if listener is not None:
                listener.attach(provider)


def choose_sampling_walker(preference: str, *, has_lost_threads: bool) -> WalkerChoice | None:
    """Choose the walker by the setting `preference`; log and return None if none serves here.

    With `has_lost_threads` the interpreter lists threads that do not exist: C code has forked this process.
    """
    choice = choose_walker(preference)
    if choice.name == "native" and spans.context_variable() is None:
        choice = WalkerChoice("portable", "the current context is not kept in a ContextVar (OTEL_PYTHON_CONTEXT)")
    if choice.name == "none":
        logger.warning("no stacks are sampled: %s", choice.reason)
        return None
    if has_lost_threads and choice.name == "portable":
        logger.warning(
            "no stacks are sampled: C code has forked this process without Python's hooks, and the portable walker"
            " cannot tell which threads are left; use the native one (SPLUNK_PROFILER_WALKER)"
        )
        return None
    return choice


def _usable_settings(resolved: Resolved, choice: WalkerChoice) -> Resolved:
    """Return the settings without memory where it cannot be sampled; profiles of it would be empty."""
    needed = "the native walker" if choice.name != "native" else "SPLUNK_PROFILER_ENABLED=true"
    if not resolved.config.memory_enabled or (choice.name == "native" and resolved.config.enabled):
        return resolved
    logger.warning("SPLUNK_PROFILER_MEMORY_ENABLED=true has no effect: memory needs %s", needed)
    return resolved._replace(config=replace(resolved.config, memory_enabled=False))


def _describe_sampling(config: Config) -> str:
    threads = f"all threads every {config.call_stack_interval_ms} ms"
    traces = f"{config.snapshot_probability:.2%} of the traces every {config.snapshot_interval_ms} ms"
    if not config.snapshot_enabled:
        return threads
    return f"{threads}, and {traces}," if config.enabled else traces
