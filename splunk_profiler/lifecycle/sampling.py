"""One run of sampling: ticker, snapshot builder, record pipeline and sink; replaced as a whole in a forked child.

`profiler` makes, starts and stops it, one call at a time; its parts have threads of their own. A child never repairs,
joins or closes the parts of its parent.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from splunk_profiler.capture.events import EventSources, make_sources, registered_kinds
from splunk_profiler.capture.overhead import OverheadLimiter
from splunk_profiler.capture.sampler import OverheadLimit, Sampler
from splunk_profiler.capture.schedule import TraceFilter
from splunk_profiler.capture.walker import Ticker, WalkerChoice, choose_walker, make_ticker
from splunk_profiler.config import Config, Resolved
from splunk_profiler.export import destinations
from splunk_profiler.export.lazy_sink import LazySink
from splunk_profiler.lifecycle.sink_opener import SinkOpener
from splunk_profiler.lifecycle.trace_profiler import TraceProfiler
from splunk_profiler.model import Snapshot
from splunk_profiler.otel import spans
from splunk_profiler.otel.context_tracker import ContextTracker
from splunk_profiler.otel.local_roots import LocalRootTracker
from splunk_profiler.otel.runtime_id import ResourceTagger, RuntimeId
from splunk_profiler.otel.trace_selector import TraceSelector
from splunk_profiler.pipeline.idle_threads import make_idle_tracker
from splunk_profiler.pipeline.record_pipeline import ProfilePipeline, RecordPipeline, SamplePipeline
from splunk_profiler.pipeline.snapshot_builder import SnapshotBuilder
from splunk_profiler.pipeline.trace_snapshot_builder import TraceSnapshotBuilder
from splunk_profiler.raw import Periods
from splunk_profiler.system.context_values import ContextValues
from splunk_profiler.system.guard import Guard, logger
from splunk_profiler.system.threads import Worker
from splunk_profiler.user_labels import sample_labels
from splunk_profiler.user_labels.labels import CURRENT_LABELS, LABEL_PUBLISHER, ActiveLabels

_JOIN_S = 0.1


@dataclass(frozen=True, slots=True)
class PublishingCalls:
    """The calls with which publishing serves sampling. The defaults are for a process that publishes nothing.

    Attributes:
        audit: compares what threads publish; called at every snapshot, on the worker's thread; never raises.
        enrich_resource: adds to a resource what host profilers have sent.
        local_root_of: returns the id of a span's local root if it is published, else None.
    """

    audit: Callable[[], None] = lambda: None
    enrich_resource: Callable[[Any], Any] = lambda resource: resource
    local_root_of: Callable[[Any], int | None] = lambda _span: None


class Sampling:
    """One run of sampling, from start to stop; in a forked child, it continues the trackers of `parent`.

    While the process forks, `sink` must not import and `batch_exporter` must not export.
    """

    def __init__(
        self,
        resolved: Resolved,
        on_fork_in_child: Callable[[], None],
        publishing: PublishingCalls,
        runtime_id: RuntimeId,
        *,
        choice: WalkerChoice,
        parent: Sampling | None,
    ) -> None:
        config = resolved.config
        self._resolved = resolved
        self._publishing = publishing
        self._choice = choice
        self._resource_tagger = ResourceTagger(runtime_id, on_spans=config.adds_span_runtime_id)
        if parent is None:
            self._context_tracker = ContextTracker(spans.runtime_context(), spans.context_variable(), on_fork_in_child)
            self._label_tracker: ContextValues[ActiveLabels] = ContextValues(CURRENT_LABELS)
        else:  # the parent's trackers know what the forking thread has attached
            self._context_tracker, self._label_tracker = parent._context_tracker, parent._label_tracker
        self._local_roots = self._make_local_roots(parent)
        self._trace_selector = self._make_trace_selector(parent)
        self._periods = Periods(
            config.period_ns if config.enabled else 0,
            config.snapshot_period_ns if self._trace_selector is not None else 0,
        )
        self._ticker = self._make_ticker()
        if parent is not None:
            parent._events.stop()  # a child inherits the callbacks of its parent
        self._events: EventSources = make_sources(config, self._ticker, native=self.is_native)
        self._snapshot_builder = self._make_snapshot_builder()
        self._sink_opener: SinkOpener = SinkOpener(
            resolved, self._resource_tagger, publishing.enrich_resource, None if parent is None else parent._sink_opener
        )
        opener = self._sink_opener
        self.sink: LazySink[Any] = LazySink(
            opener.open, opener.is_service_known, load=opener.load, detect=opener.detect_resource
        )
        self._record_pipeline = self._make_record_pipeline()
        self.batch_exporter = self._record_pipeline.batch_exporter
        self._trace_profiler = self._make_trace_profiler()
        self._sampler = self._make_sampler()
        self._export_thread = Worker("exporter", self._export)
        self._event_guard = Guard("noticing events")
        self._sink_open_cpu_ns: int | None = None  # CPU time of loading gRPC, once that is done
        self._has_warned_of_limit = False
        self._has_baseline = False

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
                LABEL_PUBLISHER.set_listener(self._label_tracker.set_value)
            log = logger.info if config.walker == "portable" else logger.warning
            log(
                "the portable walker is used: %s. It finds the spans that a thread, task or greenlet opens itself; in"
                " copied contexts (asyncio.to_thread, trio, before CPython 3.12 those of tasks) spans may be missing",
                choice.reason,
            )
        self._resource_tagger.attach(spans.tracer_provider())
        if config.enabled:
            self._ticker.capture()  # the baseline of each thread's CPU time
        self._sampler.start()
        self._events.start()
        self.batch_exporter.expect_run()
        self._export_thread.start()
        if self._local_roots is not None:
            self._local_roots.attach(spans.tracer_provider())
        if self._trace_profiler is not None:
            self._trace_profiler.start(self._ticker.notify_trace_added)
        logger.info(
            "profiling %s with the %s walker; records go to %s",
            _describe_sampling(config),
            choice.name,
            destinations.describe(self._resolved),
        )

    def stop(self, timeout_s: float) -> None:
        """Stop the threads and send what is gathered, within about `timeout_s` seconds. May be called again."""
        deadline_s = time.monotonic() + timeout_s
        self._events.stop()
        has_ended = self._sampler.stop(timeout_s * 0.25)  # beside busy threads, its worker waits for the GIL
        if self._trace_profiler is not None:
            self._trace_profiler.stop()
        config = self._resolved.config
        is_complete = has_ended and config.enabled and not config.tracing_stacks_only
        with Guard("ending the sampling").catching():
            if has_ended and self._has_baseline:
                self._handle_events()
                idle_repeats = self._snapshot_builder.take_idle_repeats()
                self._add_snapshot(Snapshot(time.time_ns(), 0, (), idle_repeats=idle_repeats))
            self._record_pipeline.close(self._snapshot_builder.unattributed() if is_complete else ())
        self.batch_exporter.stop(max(deadline_s - time.monotonic(), 0.0) * 0.8)
        self._export_thread.join(_JOIN_S)
        if not self.is_native:
            self._context_tracker.remove()
            LABEL_PUBLISHER.set_listener(None)
            self._label_tracker.clear()
        if self._local_roots is not None:
            self._local_roots.detach()
        self._resource_tagger.detach()

    def _make_local_roots(self, parent: Sampling | None) -> LocalRootTracker | None:
        if not self._resolved.config.sends_profiles:
            return None
        inherited = None if parent is None else parent._local_roots
        return inherited or LocalRootTracker(self._publishing.local_root_of)

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
        )

    def _make_snapshot_builder(self) -> SnapshotBuilder:
        config = self._resolved.config
        # Text has a record for each thread of each snapshot; choosing samples by span also takes all of them.
        skip_idle = config.sends_profiles and not config.tracing_stacks_only
        return SnapshotBuilder(
            spans.span_ref if self._local_roots is None else self._local_roots.span_ref,
            make_idle_tracker(native=self.is_native, skip_idle=skip_idle),
            config.period_ns,
            include_internal=config.include_internal_stacks,
            labels_of=sample_labels.encode_for_samples,
        )

    def _make_record_pipeline(self) -> RecordPipeline:
        interval_ns = self._resolved.config.export_interval_ns
        if self._local_roots is None:
            return SamplePipeline(self.sink, interval_ns)
        take_idle_repeats = self._snapshot_builder.take_idle_repeats
        return ProfilePipeline(
            self.sink, interval_ns, self._local_roots.endpoint, take_idle_repeats, registered_kinds()
        )

    def _make_trace_profiler(self) -> TraceProfiler | None:
        if self._trace_selector is None:
            return None
        builder = TraceSnapshotBuilder(self._snapshot_builder, self._trace_selector, self._periods)
        return TraceProfiler(self._trace_selector, builder, self._record_pipeline)

    def _make_sampler(self) -> Sampler:
        max_overhead, limit = self._resolved.config.overhead_limit, None
        if max_overhead is not None:
            limiter = OverheadLimiter(self._periods.base_ns, max_overhead)
            limit = OverheadLimit(limiter, self._export_cpu_ns, self._log_new_periods)
        return Sampler(self._ticker, self._periods, self._handle, limit, flush_if_due=self._run_periodic_work)

    def _export(self) -> None:
        self.sink.open()
        self._sink_open_cpu_ns = self._export_thread.cpu_ns()
        self.batch_exporter.run()

    def _export_cpu_ns(self) -> int:
        sink_open_cpu_ns = self._sink_open_cpu_ns
        return 0 if sink_open_cpu_ns is None else max(self._export_thread.cpu_ns() - sink_open_cpu_ns, 0)

    def _log_new_periods(self, base_ns: int) -> None:
        config, periods, now = self._resolved.config, self._periods, self._periods.stretched(base_ns)
        log = logger.debug if self._has_warned_of_limit else logger.warning
        self._has_warned_of_limit = True
        log(
            "to sample every %d ms the profiler would use more than %s %% of a core (SPLUNK_PROFILER_MAX_OVERHEAD):"
            " it samples every %d ms, and more often again when that takes less (said once)",
            config.call_stack_interval_ms if periods.is_all_threads_base else config.snapshot_interval_ms,
            config.max_overhead,
            (now.all_ns if periods.is_all_threads_base else now.focused_ns) // 1_000_000,
        )

    def _handle(self, raw: Any) -> None:
        if not raw.is_focused:
            self._handle_full_snapshot(raw)
        if self._trace_profiler is not None:
            self._trace_profiler.take(raw)

    def _run_periodic_work(self) -> None:
        self._handle_events()  # snapshots may be a minute apart, and the buffer of events holds some hundred
        self._resource_tagger.attach(spans.tracer_provider())
        if self._local_roots is not None:
            self._local_roots.attach(spans.tracer_provider())
        if self._trace_profiler is not None:
            self._trace_profiler.flush_if_due()

    def _handle_full_snapshot(self, raw: Any) -> None:
        self._publishing.audit()
        if not self._has_baseline:
            self._snapshot_builder.set_baseline(raw)
            self._record_pipeline.begin(raw.time_ns, self._resolved.config.period_ns)
            self._has_baseline = True
            return
        snapshot = self._snapshot_builder.snapshot(raw)
        self._handle_events()
        self._add_snapshot(snapshot)

    def _handle_events(self) -> None:
        with self._event_guard.catching():
            if self._has_baseline and (events := self._events.drain()):
                self._add_snapshot(Snapshot(time.time_ns(), 0, tuple(self._snapshot_builder.event_samples(events))))

    def _add_snapshot(self, snapshot: Snapshot) -> None:
        if self._resolved.config.tracing_stacks_only:
            samples = tuple(sample for sample in snapshot.samples if sample.span is not None)
            snapshot = replace(snapshot, samples=samples, unattributed=())
        self._record_pipeline.take(snapshot)


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


def _describe_sampling(config: Config) -> str:
    threads = f"all threads every {config.call_stack_interval_ms} ms"
    traces = f"{config.snapshot_probability:.2%} of the traces every {config.snapshot_interval_ms} ms"
    if not config.snapshot_enabled:
        return threads
    return f"{threads}, and {traces}," if config.enabled else traces
