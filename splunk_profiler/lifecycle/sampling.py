"""One life of sampling: ticker, capture, queue and sink, composed; replaced as a whole in a forked child.

Built, started and stopped by `profiler`, one call at a time; what it composes has threads of its own. A child never
repairs, joins or closes what its parent had.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from splunk_profiler import config as settings
from splunk_profiler.capture.events import EventSources, make_sources, registered_kinds
from splunk_profiler.capture.overhead import OverheadLimiter
from splunk_profiler.capture.sampler import OverheadLimit, Sampler
from splunk_profiler.capture.walker import WalkerChoice, make_ticker
from splunk_profiler.export import destinations
from splunk_profiler.export.lazy_sink import LazySink
from splunk_profiler.lifecycle.trace_profiler import TraceProfiler, make_trace_filter
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
from splunk_profiler.system.guard import Guard, logger
from splunk_profiler.system.threads import Worker
from splunk_profiler.user_labels import sample_labels
from splunk_profiler.user_labels.labels import CURRENT_LABELS
from splunk_profiler.user_labels.tracker import LabelTracker

if TYPE_CHECKING:
    from splunk_profiler.code_origin.classifier import CodeClassifier

_JOIN_S = 0.1


class Sampling:
    """One life of sampling, from start to stop.

    Args:
        resolved: the settings.
        on_fork_in_child: called in a forked child when no fork hook of Python's has run there.
        on_sample: called at every sample, on the worker's thread; must not raise.
        enrich_resource: adds to a resource what is known of it from elsewhere.
        local_root_of: the id of a span's local root, where somebody has kept it.
        runtime_id: the process's.
        choice: the walker.
        parent: in a forked child, what its parent had opened, which must not be used; else None.
    """

    def __init__(
        self,
        resolved: settings.Resolved,
        on_fork_in_child: Callable[[], None],
        on_sample: Callable[[], None],
        enrich_resource: Callable[[Any], Any],
        local_root_of: Callable[[Any], int | None],
        *,
        runtime_id: RuntimeId,
        choice: WalkerChoice,
        parent: Sampling | None,
    ) -> None:
        config = resolved.config
        self.resolved = resolved
        self._on_sample = on_sample
        self._enrich_resource = enrich_resource
        self._resource_tagger = ResourceTagger(runtime_id, on_spans=config.adds_span_runtime_id)
        self._is_forked_child = parent is not None
        self._choice = choice
        # A child goes on with its parent's: that knows what the thread that forked has attached.
        self._context_tracker: ContextTracker = (
            ContextTracker(spans.runtime_context(), on_fork_in_child) if parent is None else parent._context_tracker
        )
        self._label_tracker: LabelTracker = LabelTracker() if parent is None else parent._label_tracker
        self._local_roots: LocalRootTracker | None = None
        if config.sends_profiles:  # a child goes on with its parent's, as above, if that had any
            self._local_roots = (None if parent is None else parent._local_roots) or LocalRootTracker(local_root_of)
        self._provenance: CodeClassifier | None = None if parent is None else parent._provenance
        variable = spans.context_variable()
        if variable is None and self._choice.name == "native":
            self._choice = WalkerChoice(
                "portable", "the current context is not kept in a ContextVar (OTEL_PYTHON_CONTEXT)"
            )
        self._trace_profiler: TraceProfiler | None = None
        trace_selector = self._make_trace_selector(parent)
        ticker = make_ticker(
            self._choice,
            variable,
            self._context_tracker.context_of,
            config.max_stack_depth,
            labels_var=CURRENT_LABELS if config.sends_profiles else None,  # text has no place for labels
            labels_of=self._label_tracker.labels_of,
            trace_filter=None if trace_selector is None else make_trace_filter(trace_selector),
        )
        if parent is not None:
            parent._events.stop()  # a child has its parent's callbacks
        self._events: EventSources = make_sources(config, ticker, native=self.is_native)
        associate = spans.span_ref if self._local_roots is None else self._local_roots.span_ref
        include_internal = config.include_internal_stacks
        self._snapshot_builder = SnapshotBuilder(
            associate,
            # Text has a record for each thread of each snapshot, and to choose samples by span each has to be seen.
            make_idle_tracker(
                native=self._choice.name == "native", skip_idle=config.sends_profiles and not config.tracing_stacks_only
            ),
            config.period_ns,
            include_internal=include_internal,
            labels_of=sample_labels.encode_for_samples,
        )
        self._sink: LazySink[Any] = LazySink(
            self._open_sink, self._is_service_known, load=self._load_sink, detect=self._detect_resource
        )
        interval_ns = config.export_interval_ns
        self._record_pipeline: RecordPipeline = (
            SamplePipeline(self._sink, interval_ns)
            if self._local_roots is None
            else ProfilePipeline(
                self._sink,
                interval_ns,
                self._local_roots.endpoint,
                self._snapshot_builder.take_idle_spans,
                registered_kinds(),
            )
        )
        self._batch_exporter = self._record_pipeline.batch_exporter
        periods = Periods(
            config.period_ns if config.enabled else 0, config.snapshot_period_ns if trace_selector is not None else 0
        )
        if trace_selector is not None:
            trace_snapshot_builder = TraceSnapshotBuilder(
                self._snapshot_builder,
                associate,
                trace_selector,
                periods,
                include_internal=include_internal,
                labels_of=sample_labels.encode_for_samples,
            )
            self._trace_profiler = TraceProfiler(trace_selector, trace_snapshot_builder, self._record_pipeline)
        self._ticker = ticker
        self._sampler = Sampler(
            ticker,
            periods.all_ns,
            self._handle,
            self._make_limit(periods),
            focused_period_ns=periods.focused_ns,
            flush_if_due=self._run_periodic_work,
        )
        self._export_thread = Worker("exporter", self._export)
        self._event_guard = Guard("noticing events")
        self._sink_open_cpu_ns: int | None = None  # CPU time that loading gRPC has taken, once that is done
        self._has_warned_of_limit = False
        self._has_baseline = False

    @property
    def is_native(self) -> bool:
        """Whether the native walker serves."""
        return self._choice.name == "native"

    def start(self) -> None:
        """Start the threads.

        Raises:
            RuntimeError: the process can make no more threads; `stop` ends what has begun.
        """
        resolved, choice = self.resolved, self._choice
        if choice.name == "portable":
            self._context_tracker.install()
            if resolved.config.sends_profiles:
                self._label_tracker.install()
            log = logger.info if resolved.config.walker == "portable" else logger.warning
            log(
                "the portable walker is used: %s. It finds the spans that a thread opens itself; under asyncio and"
                " in copied contexts (asyncio.to_thread) spans may be missing",
                choice.reason,
            )
        self._resource_tagger.attach(spans.tracer_provider())
        if resolved.config.enabled:
            self._ticker.capture()  # the first snapshot only says who has used how much CPU so far
        self._sampler.start()
        self._events.start()
        self._batch_exporter.expect_run()
        self._export_thread.start()
        if self._local_roots is not None:
            self._local_roots.attach(spans.tracer_provider())
        if self._trace_profiler is not None:
            self._trace_profiler.start(self._ticker.notify_trace_added)
        logger.info(
            "profiling %s with the %s walker; records go to %s",
            _describe_sampling(resolved.config),
            choice.name,
            destinations.describe(resolved),
        )

    def stop(self, timeout_s: float) -> None:
        """Stop the threads and send what is there; returns within about `timeout_s` seconds. May be called again."""
        deadline_s = time.monotonic() + timeout_s
        self._events.stop()
        has_ended = self._sampler.stop(
            timeout_s * 0.25
        )  # beside busy threads each step of its worker waits for the GIL
        if self._trace_profiler is not None:
            self._trace_profiler.stop()
        config = self.resolved.config
        is_complete = has_ended and config.enabled and not config.tracing_stacks_only
        with Guard("ending the sampling").catching():
            if has_ended and self._has_baseline:
                self._handle_events()
                self._add_snapshot(
                    Snapshot(time.time_ns(), 0, (), idle_repeats=self._snapshot_builder.take_idle_spans())
                )
            self._record_pipeline.close(self._snapshot_builder.unattributed() if is_complete else ())
        self._batch_exporter.stop(max(deadline_s - time.monotonic(), 0.0) * 0.8)
        self._export_thread.join(_JOIN_S)
        if self._choice.name == "portable":
            self._context_tracker.remove()
            self._label_tracker.remove()
        if self._local_roots is not None:
            self._local_roots.detach()
        self._resource_tagger.detach()

    def hold_imports(self) -> None:
        """Let nothing be imported while the process forks; see `LazySink.hold_for_fork`."""
        self._sink.hold_for_fork()

    def hold(self, timeout_s: float) -> None:
        """Let no export be in flight while the process forks; see `BatchExporter.hold_for_fork`."""
        self._batch_exporter.hold_for_fork(timeout_s)

    def abandon_imports(self) -> bool:
        """In a forked child; see `LazySink.abandon`."""
        return self._sink.abandon()

    def release(self) -> None:
        """Go on after `hold`."""
        self._batch_exporter.release_after_fork()
        self._sink.release_after_fork()

    def _export(self) -> None:
        self._sink.open()
        self._sink_open_cpu_ns = self._export_thread.cpu_ns()
        self._batch_exporter.run()

    def _make_trace_selector(self, parent: Sampling | None) -> TraceSelector | None:
        config = self.resolved.config
        if not config.snapshot_enabled:
            return None
        known = None if parent is None else parent._trace_profiler
        if known is None:
            return TraceSelector(config.snapshot_probability)
        known.trace_selector.end()  # entries of threads that are not here will never end, others end in the parent
        return known.trace_selector

    def _make_limit(self, periods: Periods) -> OverheadLimit | None:
        limit = self.resolved.config.overhead_limit
        if limit is None:
            return None
        return OverheadLimit(
            OverheadLimiter(periods.base_ns, limit), self._export_cpu_ns, partial(self._log_new_periods, periods)
        )

    def _export_cpu_ns(self) -> int:
        sink_open_cpu_ns = self._sink_open_cpu_ns
        return 0 if sink_open_cpu_ns is None else max(self._export_thread.cpu_ns() - sink_open_cpu_ns, 0)

    def _log_new_periods(self, periods: Periods, base_ns: int) -> None:
        config, now = self.resolved.config, periods.stretched(base_ns)
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
        self._handle_events()  # snapshots may be a minute apart, and there is room for some hundred
        self._resource_tagger.attach(spans.tracer_provider())
        if self._local_roots is not None:
            self._local_roots.attach(spans.tracer_provider())
        if self._trace_profiler is not None:
            self._trace_profiler.flush_if_due()

    def _handle_full_snapshot(self, raw: Any) -> None:
        self._on_sample()
        if not self._has_baseline:
            self._snapshot_builder.set_baseline(raw)
            self._record_pipeline.begin(raw.time_ns, self.resolved.config.period_ns)
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
        if self.resolved.config.tracing_stacks_only:
            samples = tuple(sample for sample in snapshot.samples if sample.span is not None)
            snapshot = replace(snapshot, samples=samples, unattributed=())
        self._record_pipeline.take(snapshot)

    def _is_service_known(self) -> bool:
        from splunk_profiler.export.resource import is_service_known  # noqa: PLC0415  # loads the SDK

        self._resource_tagger.attach(
            spans.tracer_provider()
        )  # soon after the application has set it, not a sample later
        return self._is_forked_child or is_service_known()

    def _load_sink(self) -> None:
        with suppress(RuntimeError):  # after the end of the main thread: they are not asked then
            import concurrent.futures.thread  # noqa: F401, PLC0415  # detectors run on a pool

        from splunk_profiler.code_origin import classifier  # noqa: F401, PLC0415
        from splunk_profiler.export import resource  # noqa: F401, PLC0415  # loads the SDK

        destinations.load_sink_module(self.resolved)
        "".encode("idna")  # imports the codec that each look-up of a host's name takes

    def _detect_resource(self) -> None:
        from splunk_profiler.export.resource import current_resource  # noqa: PLC0415

        current_resource()  # kept; detectors may ask the network, and a process that ends cannot wait for that

    def _open_sink(self) -> Any:
        from splunk_profiler.code_origin.classifier import CodeClassifier  # noqa: PLC0415
        from splunk_profiler.export.resource import current_resource  # noqa: PLC0415

        enrich_resource, tag_resource = self._enrich_resource, self._resource_tagger.resource

        def resource() -> Any:
            return enrich_resource(tag_resource(current_resource()))

        if self.resolved.config.sends_profiles:
            self._provenance = CodeClassifier(parent=self._provenance)
        return destinations.make_sink(
            self.resolved, resource, self._provenance, share_connection=not self._is_forked_child
        )


def _describe_sampling(config: settings.Config) -> str:
    threads = f"all threads every {config.call_stack_interval_ms} ms"
    traces = f"{config.snapshot_probability:.2%} of the traces every {config.snapshot_interval_ms} ms"
    if not config.snapshot_enabled:
        return threads
    return f"{threads}, and {traces}," if config.enabled else traces
