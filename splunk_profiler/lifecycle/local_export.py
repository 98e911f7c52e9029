"""The pipeline and the exporter in threads of this process: the sampler thread feeds, one thread exports.

Replaced as a whole in a forked child, which never repairs, joins or closes the parts of its parent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from splunk_profiler.config import Resolved
from splunk_profiler.export.lazy_sink import LazySink
from splunk_profiler.export.stream_output import StreamOutput
from splunk_profiler.exporter_process.pipelines import make_batch_exporter, make_pipeline
from splunk_profiler.lifecycle import grpc_forks
from splunk_profiler.lifecycle.sink_opener import SinkOpener
from splunk_profiler.model import RecordCounters
from splunk_profiler.otel.runtime_id import ResourceTagger
from splunk_profiler.pipeline.delivery_log import WarningLimit
from splunk_profiler.stream.reader import StreamReader
from splunk_profiler.system import clocks
from splunk_profiler.system.clocks import boottime_ns
from splunk_profiler.system.guard import Guard
from splunk_profiler.system.threads import OwnedLock, Worker

_JOIN_S = 0.1


class LocalExport(StreamOutput):
    """A pipeline with its exporter; `parent` is the parent's in a forked child.

    `loads_at_start` is True if `start` may import, because its thread has the time.
    """

    def __init__(
        self,
        resolved: Resolved,
        resource_tagger: ResourceTagger,
        enrich_resource: Callable[[Any], Any],
        parent: LocalExport | None,
        *,
        loads_at_start: bool,
    ) -> None:
        opener = SinkOpener(resolved, resource_tagger, enrich_resource, None if parent is None else parent._sink_opener)
        self._sink_opener: SinkOpener = opener
        self._loads_at_start = loads_at_start
        self.sink: LazySink[Any] = LazySink(
            opener.open, opener.is_service_known, load=opener.load, detect=opener.detect_resource
        )
        self._warning_limit: WarningLimit = WarningLimit() if parent is None else parent._warning_limit
        self.batch_exporter = make_batch_exporter(resolved.config, self.sink, self._warning_limit)
        self._reader = StreamReader()
        self._pipeline = make_pipeline(resolved.config, self.batch_exporter.record)
        self._thread = Worker("exporter", self._export)
        self._guard = Guard("the pipeline")
        self._feeding, self._is_stopping = OwnedLock(), False  # `stop` is called on another thread than `send`
        self._sink_open_cpu_ns: int | None = None  # CPU time of loading gRPC, once that is done

    def start(self) -> None:
        """Load the exporter, if that may be now, and start the exporting thread.

        Raises:
            RuntimeError: the process can make no more threads.
        """
        if self._loads_at_start:
            self.sink.load()
        self.batch_exporter.expect_run()
        self._thread.start()

    def send(self, data: bytes) -> bool:
        """Take further bytes of the stream; return False if they cannot be read and it has to begin anew.

        The sampler thread calls it at least once a second.
        """
        is_read = False
        with self._feeding:
            if self._is_stopping:  # `stop` did not wait for the sampler thread's end
                return True
            with self._guard.catching():
                for item in self._reader.feed(data):
                    self._pipeline.take(item)
                is_read = True
            if not is_read:
                self._reader = StreamReader()
            with self._guard.catching():
                self._pipeline.tick(boottime_ns())
        with self._guard.catching():
            if grpc_forks.drop_handlers_if_closed():
                self.sink.interrupt()
        return is_read

    def stop(self, timeout_s: float) -> None:
        """Send what is gathered and end the exporting thread, within about `timeout_s` seconds."""
        deadline_s = clocks.monotonic() + timeout_s
        self._is_stopping = True
        if self._feeding.acquire(timeout_s / 2):  # beside busy threads the sampler thread may be feeding for long
            try:
                with self._guard.catching():
                    self._pipeline.close()
            finally:
                self._feeding.release()
        self.batch_exporter.stop(max(deadline_s - clocks.monotonic(), 0) * 0.8)
        self._thread.join(_JOIN_S)

    def fork_participants(self) -> list[Any]:
        """Return the parts that a fork holds: the sink must not import, the exporter must not export."""
        return [self.sink, self.batch_exporter]

    def abandon(self) -> bool:
        """Discard unfinished imports in a forked child; return False if they cannot be repeated, or gRPC hangs."""
        return self.sink.abandon() and grpc_forks.is_usable()

    def counters(self) -> RecordCounters:
        """Return the numbers of records."""
        return self.batch_exporter.counters()

    def cpu_ns(self) -> int:
        """Return the CPU time of the exporting thread, without that of loading the exporter."""
        loading_ns = self._sink_open_cpu_ns
        return 0 if loading_ns is None else max(self._thread.cpu_ns() - loading_ns, 0)

    def _export(self) -> None:
        self.sink.open()
        self._sink_open_cpu_ns = self._thread.cpu_ns()
        self.batch_exporter.run()
