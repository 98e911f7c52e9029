"""A sink that answers as a test wants it, and samples for it."""

from __future__ import annotations

import time
from typing import Any

from sample_factory import make_sample

from splunk_profiler.pipeline.batch_exporter import BatchExporter
from splunk_profiler.samples import Batch, ExportResult, Sample

SECOND_NS = 1_000_000_000


class Enough(BaseException):
    """The exception that ends `BatchExporter.run` in a test."""


class ScriptedSink:
    """A sink that returns the given results, then raises `Enough`."""

    def __init__(self, *script: ExportResult | Exception) -> None:
        self.script = list(script)
        self.batches: list[list[int]] = []
        self.closed = 0

    def export(self, batch: Batch[Sample]) -> ExportResult:
        """Record the samples' times in seconds."""
        if not self.script:
            raise Enough
        self.batches.append([sample.time_ns // SECOND_NS for sample in batch.records])
        answer = self.script.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def set_shutdown_deadline(self, timeout_s: float) -> None:
        """Do nothing: exports take no time."""

    def interrupt(self) -> None:
        """Do nothing: exports take no time."""

    def shutdown(self) -> None:
        """Count the calls."""
        self.closed += 1


def samples(first: int, last: int) -> list[Sample]:
    return [make_sample(number) for number in range(first, last + 1)]


def wait_until_sent(batch_exporter: BatchExporter[Any], timeout_s: float) -> bool:
    """Return True as soon as no record waits; False after `timeout_s`."""
    until = time.monotonic() + timeout_s
    while batch_exporter.counters().waiting:
        if time.monotonic() > until:
            return False
        time.sleep(0.001)
    return True
