"""The pipeline that the settings ask for: from the bytes of a stream to the queue of an exporter."""

from __future__ import annotations

from typing import Any

from splunk_profiler.config import Config
from splunk_profiler.pipeline import aggregator, record_memory
from splunk_profiler.pipeline.batch_exporter import BatchExporter, QueueLimits
from splunk_profiler.pipeline.delivery_log import WarningLimit
from splunk_profiler.pipeline.live_heap import LIVE_HEAP
from splunk_profiler.pipeline.record_pipeline import ProfilePipeline, SamplePipeline
from splunk_profiler.pipeline.stream_pipeline import Deliver, PipelineSettings, RecordPipeline, StreamPipeline
from splunk_profiler.raw import Periods
from splunk_profiler.samples import Sink


def make_batch_exporter(config: Config, sink: Sink[Any], warning_limit: WarningLimit) -> BatchExporter[Any]:
    """Return the exporter of the records of a pipeline."""
    if not config.sends_profiles:
        return BatchExporter(
            sink,
            export_interval_ns=config.export_interval_ns,
            size_of=record_memory.estimate_size,
            memory=record_memory.SampleMemory(),
            warning_limit=warning_limit,
        )
    # The aggregators gather, so the exporter sends each profile at once.
    return BatchExporter(
        sink,
        export_interval_ns=0,
        size_of=aggregator.estimate_size,
        limits=QueueLimits(batch_records=1),
        warning_limit=warning_limit,
    )


def make_pipeline(config: Config, deliver: Deliver) -> StreamPipeline:
    """Return a pipeline that gives its records to `deliver`."""

    def make_records(pipeline: StreamPipeline) -> RecordPipeline:
        if not config.sends_profiles:
            return SamplePipeline(deliver)
        from splunk_profiler.capture.events import registered_kinds  # noqa: PLC0415  # with what captures: not for text

        live = (LIVE_HEAP,) if config.memory_enabled else ()
        kinds = (*registered_kinds(config), *live)
        return ProfilePipeline(deliver, config.export_interval_ns, kinds, pipeline)

    settings = PipelineSettings(
        Periods(*config.periods_ns),
        skips_idle=config.counts_idle_threads,
        has_times=config.sends_profiles,
        include_internal=config.include_internal_stacks,
        tracing_stacks_only=config.tracing_stacks_only,
    )
    return StreamPipeline(settings, make_records)
