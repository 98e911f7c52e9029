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
from splunk_profiler.capture.sampler import Limit, Sampler
from splunk_profiler.capture.walker import Choice, make_ticker
from splunk_profiler.export import destinations
from splunk_profiler.export.lazy_sink import LazySink
from splunk_profiler.lifecycle.trace_profiler import TraceProfiler, focus_of
from splunk_profiler.model import Snapshot
from splunk_profiler.otel import spans
from splunk_profiler.otel.context_tracker import ContextTracker
from splunk_profiler.otel.local_roots import LocalRootTracker
from splunk_profiler.otel.runtime_id import ResourceTagger, RuntimeId
from splunk_profiler.otel.trace_selector import TraceSelector
from splunk_profiler.pipeline.idle_threads import make_watch
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
        in_child: called in a forked child when no fork hook of Python's has run there.
        at_sample: called at every sample, on the worker's thread; must not raise.
        completed: adds to a resource what is known of it from elsewhere.
        local_root: the id of a span's local root, where somebody has kept it.
        runtime_id: the process's.
        choice: the walker.
        parents: in a forked child, what its parent had opened, which must not be used; else None.
    """

    def __init__(
        self,
        resolved: settings.Resolved,
        in_child: Callable[[], None],
        at_sample: Callable[[], None],
        completed: Callable[[Any], Any],
        local_root: Callable[[Any], int | None],
        *,
        runtime_id: RuntimeId,
        choice: Choice,
        parents: Sampling | None,
    ) -> None:
        config = resolved.config
        self.resolved = resolved
        self._at_sample = at_sample
        self._completed = completed
        self._identified = ResourceTagger(runtime_id, on_spans=config.identifies_spans)
        self._forked = parents is not None
        self._choice = choice
        # A child goes on with its parent's: that knows what the thread that forked has attached.
        self._shadow: ContextTracker = (
            ContextTracker(spans.runtime_context(), in_child) if parents is None else parents._shadow
        )
        self._label_shadow: LabelTracker = LabelTracker() if parents is None else parents._label_shadow
        self._roots: LocalRootTracker | None = None
        if config.aggregates:  # a child goes on with its parent's, as above, if that had any
            self._roots = (None if parents is None else parents._roots) or LocalRootTracker(local_root)
        self._provenance: CodeClassifier | None = None if parents is None else parents._provenance
        variable = spans.context_variable()
        if variable is None and self._choice.name == "native":
            self._choice = Choice("portable", "the current context is not kept in a ContextVar (OTEL_PYTHON_CONTEXT)")
        self._snapshots: TraceProfiler | None = None
        selection = self._selection(parents)
        ticker = make_ticker(
            self._choice,
            variable,
            self._shadow.context_of,
            config.max_stack_depth,
            labels_var=CURRENT_LABELS if config.aggregates else None,  # text has no place for labels
            labels_of=self._label_shadow.labels_of,
            focus=None if selection is None else focus_of(selection),
        )
        if parents is not None:
            parents._events.stop()  # a child has its parent's callbacks
        self._events: EventSources = make_sources(config, ticker, native=self.is_native)
        associate = spans.span_ref if self._roots is None else self._roots.span_ref
        internal = config.include_internal_stacks
        self._capture = SnapshotBuilder(
            associate,
            # Text has a record for each thread of each snapshot, and to choose samples by span each has to be seen.
            make_watch(
                native=self._choice.name == "native", counts_rest=config.aggregates and not config.tracing_stacks_only
            ),
            config.period_ns,
            include_internal=internal,
            labels_of=sample_labels.on_samples,
        )
        self._sink: LazySink[Any] = LazySink(
            self._open_sink, self._is_described, load=self._load_sink, detect=self._detect_resource
        )
        interval_ns = config.export_interval_ns
        self._recording: RecordPipeline = (
            SamplePipeline(self._sink, interval_ns)
            if self._roots is None
            else ProfilePipeline(
                self._sink, interval_ns, self._roots.endpoint, self._capture.rested, registered_kinds()
            )
        )
        self._recorder = self._recording.recorder
        periods = Periods(
            config.period_ns if config.enabled else 0, config.snapshot_period_ns if selection is not None else 0
        )
        if selection is not None:
            closely = TraceSnapshotBuilder(
                self._capture,
                associate,
                selection,
                periods,
                include_internal=internal,
                labels_of=sample_labels.on_samples,
            )
            self._snapshots = TraceProfiler(selection, closely, self._recording)
        self._ticker = ticker
        self._sampler = Sampler(
            ticker,
            periods.all_ns,
            self._handle,
            self._make_limit(periods),
            focused_period_ns=periods.focused_ns,
            rest=self._rest,
        )
        self._export_thread = Worker("exporter", self._export)
        self._event_guard = Guard("noticing events")
        self._opening_cpu_ns: int | None = None  # CPU time that loading gRPC has taken, once that is done
        self._told_of_limit = False
        self._primed = False

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
            self._shadow.install()
            if resolved.config.aggregates:
                self._label_shadow.install()
            log = logger.info if resolved.config.walker == "portable" else logger.warning
            log(
                "the portable walker is used: %s. It finds the spans that a thread opens itself; under asyncio and"
                " in copied contexts (asyncio.to_thread) spans may be missing",
                choice.reason,
            )
        self._identified.meet(spans.tracer_provider())
        if resolved.config.enabled:
            self._ticker.capture()  # the first snapshot only says who has used how much CPU so far
        self._sampler.start()
        self._events.start()
        self._recorder.expect_run()
        self._export_thread.start()
        if self._roots is not None:
            self._roots.meet(spans.tracer_provider())
        if self._snapshots is not None:
            self._snapshots.start(self._ticker.focus)
        logger.info(
            "profiling %s with the %s walker; records go to %s",
            _what(resolved.config),
            choice.name,
            destinations.said(resolved),
        )

    def stop(self, timeout_s: float) -> None:
        """Stop the threads and send what is there; returns within about `timeout_s` seconds. May be called again."""
        until = time.monotonic() + timeout_s
        self._events.stop()
        ended = self._sampler.stop(timeout_s * 0.25)  # beside busy threads each step of its worker waits for the GIL
        if self._snapshots is not None:
            self._snapshots.stop()
        config = self.resolved.config
        whole = ended and config.enabled and not config.tracing_stacks_only
        with Guard("ending the sampling").watching():
            if ended and self._primed:
                self._take_events()
                self._take(Snapshot(time.time_ns(), 0, (), repeats=self._capture.rested()))
            self._recording.close(self._capture.remainders() if whole else ())
        self._recorder.stop(max(until - time.monotonic(), 0.0) * 0.8)
        self._export_thread.join(_JOIN_S)
        if self._choice.name == "portable":
            self._shadow.remove()
            self._label_shadow.remove()
        if self._roots is not None:
            self._roots.leave()
        self._identified.leave()

    def hold_imports(self) -> None:
        """Let nothing be imported while the process forks; see `LazySink.hold_for_fork`."""
        self._sink.hold_for_fork()

    def hold(self, timeout_s: float) -> None:
        """Let no export be in flight while the process forks; see `BatchExporter.hold_for_fork`."""
        self._recorder.hold_for_fork(timeout_s)

    def abandon_imports(self) -> bool:
        """In a forked child; see `LazySink.abandon`."""
        return self._sink.abandon()

    def release(self) -> None:
        """Go on after `hold`."""
        self._recorder.release_after_fork()
        self._sink.release_after_fork()

    def _export(self) -> None:
        self._sink.open()
        self._opening_cpu_ns = self._export_thread.cpu_ns()
        self._recorder.run()

    def _selection(self, parents: Sampling | None) -> TraceSelector | None:
        config = self.resolved.config
        if not config.snapshot_enabled:
            return None
        known = None if parents is None else parents._snapshots
        if known is None:
            return TraceSelector(config.snapshot_probability)
        known.selection.end()  # entries of threads that are not here will never end, others end in the parent
        return known.selection

    def _make_limit(self, periods: Periods) -> Limit | None:
        limit = self.resolved.config.overhead_limit
        if limit is None:
            return None
        return Limit(
            OverheadLimiter(periods.leading_ns, limit), self._exporting_cpu_ns, partial(self._note_pace, periods)
        )

    def _exporting_cpu_ns(self) -> int:
        opening_ns = self._opening_cpu_ns
        return 0 if opening_ns is None else max(self._export_thread.cpu_ns() - opening_ns, 0)

    def _note_pace(self, periods: Periods, leading_ns: int) -> None:
        config, now = self.resolved.config, periods.stretched(leading_ns)
        log = logger.debug if self._told_of_limit else logger.warning
        self._told_of_limit = True
        log(
            "to sample every %d ms the profiler would use more than %s %% of a core (SPLUNK_PROFILER_MAX_OVERHEAD):"
            " it samples every %d ms, and more often again when that takes less (said once)",
            config.call_stack_interval_ms if periods.all_leads else config.snapshot_interval_ms,
            config.max_overhead,
            (now.all_ns if periods.all_leads else now.focused_ns) // 1_000_000,
        )

    def _handle(self, raw: Any) -> None:
        if not raw.focused:
            self._handle_all(raw)
        if self._snapshots is not None:
            self._snapshots.take(raw)

    def _rest(self) -> None:
        self._take_events()  # snapshots may be a minute apart, and there is room for some hundred
        self._identified.meet(spans.tracer_provider())
        if self._roots is not None:
            self._roots.meet(spans.tracer_provider())
        if self._snapshots is not None:
            self._snapshots.rest()

    def _handle_all(self, raw: Any) -> None:
        self._at_sample()
        if not self._primed:
            self._capture.prime(raw)
            self._recording.begin(raw.time_ns, self.resolved.config.period_ns)
            self._primed = True
            return
        snapshot = self._capture.snapshot(raw)
        self._take_events()
        self._take(snapshot)

    def _take_events(self) -> None:
        with self._event_guard.watching():
            if self._primed and (events := self._events.drain()):
                self._take(Snapshot(time.time_ns(), 0, tuple(self._capture.event_samples(events))))

    def _take(self, snapshot: Snapshot) -> None:
        if self.resolved.config.tracing_stacks_only:
            samples = tuple(sample for sample in snapshot.samples if sample.span is not None)
            snapshot = replace(snapshot, samples=samples, remainders=())
        self._recording.take(snapshot)

    def _is_described(self) -> bool:
        from splunk_profiler.export.resource import is_described  # noqa: PLC0415  # loads the SDK

        self._identified.meet(spans.tracer_provider())  # soon after the application has set it, not a sample later
        return self._forked or is_described()

    def _load_sink(self) -> None:
        with suppress(RuntimeError):  # after the end of the main thread: they are not asked then
            import concurrent.futures.thread  # noqa: F401, PLC0415  # detectors run on a pool

        from splunk_profiler.code_origin import classifier as provenance  # noqa: F401, PLC0415
        from splunk_profiler.export import resource  # noqa: F401, PLC0415  # loads the SDK

        destinations.load_sink(self.resolved)
        "".encode("idna")  # imports the codec that each look-up of a host's name takes

    def _detect_resource(self) -> None:
        from splunk_profiler.export.resource import current_resource  # noqa: PLC0415

        current_resource()  # kept; detectors may ask the network, and a process that ends cannot wait for that

    def _open_sink(self) -> Any:
        from splunk_profiler.code_origin.classifier import CodeClassifier  # noqa: PLC0415
        from splunk_profiler.export.resource import current_resource  # noqa: PLC0415

        completed, identified = self._completed, self._identified.resource

        def resource() -> Any:
            return completed(identified(current_resource()))

        if self.resolved.config.aggregates:
            self._provenance = CodeClassifier(parents=self._provenance)
        return destinations.make_sink(self.resolved, resource, self._provenance, share_connection=not self._forked)


def _what(config: settings.Config) -> str:
    threads = f"all threads every {config.call_stack_interval_ms} ms"
    traces = f"{config.snapshot_probability:.2%} of the traces every {config.snapshot_interval_ms} ms"
    if not config.snapshot_enabled:
        return threads
    return f"{threads}, and {traces}," if config.enabled else traces
