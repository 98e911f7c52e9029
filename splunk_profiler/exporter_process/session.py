"""The work of the exporter process for one profiled process: its pipeline, its records and their export.

The exporter's main thread calls all methods of a `StreamSession`; a thread of each session exports.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from splunk_profiler.config import Resolved
from splunk_profiler.config.handover import from_values
from splunk_profiler.export import destinations
from splunk_profiler.export.deferred_sink import DeferredSink
from splunk_profiler.export.sink_context import ProcessResource, SinkContext
from splunk_profiler.exporter_process.loop_blockers import LoopBlockers
from splunk_profiler.exporter_process.pipelines import make_batch_exporter, make_pipeline
from splunk_profiler.exporter_process.status import HostStatus
from splunk_profiler.pipeline.batch_exporter import BatchExporter
from splunk_profiler.pipeline.delivery_log import WarningLimit
from splunk_profiler.pipeline.stream_pipeline import StreamPipeline
from splunk_profiler.raw import Periods
from splunk_profiler.stream.captured import CapturedSnapshot, ProcessStarted, ResourceChanged
from splunk_profiler.stream.reader import StreamReader
from splunk_profiler.stream.records import EndRecord, LostRecord
from splunk_profiler.system import clocks
from splunk_profiler.system.guard import Guard, logger
from splunk_profiler.system.threads import WakeEvent, Worker, real_get_ident, real_lock

_SERVICE_NAME, _PROCESS_ID = "service.name", "process.pid"
_MAX_MESSAGES = 256
_END_TIMEOUT_S, _MAX_END_TIMEOUT_S = 2.0, 30.0  # of a host that was killed; of one that waits
_MAX_OPEN_S = 20.0  # besides: beside busy processes, to load what exports takes longer than most hosts wait
_MIN_WAIT_S = 1.0  # a host that waits for less may as well be killed: it costs nothing to send its records meanwhile
_END_MARGIN_S = 0.3  # of the host's wait: for an export in flight, and for the message to the host
_MIN_DIVIDED_NS = 1_000_000  # each session has it divided at each tick, which visits all of them
_MAX_SERVICES = 64  # that have a limit of warnings each
_MAX_QUEUE_BYTES, _ALL_QUEUES_BYTES = 16 << 20, 64 << 20  # 16 MiB are 12 s of 33 threads at 10 ms


class StreamSession:
    """The session of the process `pid`, until its stream ends."""

    def __init__(self, pid: int, accounting: SessionAccounting) -> None:
        self._pid: Any = pid  # replaced by the id in the process's own namespace when the stream begins
        self._accounting = accounting
        self._reader = StreamReader()
        self._resolved: Resolved | None = None
        self._path: Any = ()  # the host's `sys.path`
        self._changed: ResourceChanged | None = None
        self._resource: tuple[ResourceChanged | None, ProcessResource] | None = None  # and what it was made of
        self._pipeline: StreamPipeline | None = None
        self._sink: DeferredSink[Any] | None = None
        self._batch_exporter: BatchExporter[Any] | None = None
        self._export_thread = Worker("exporter", self._export)
        self._close_thread = Worker("closer", self._close)
        self._messages: deque[bytes] = deque(maxlen=_MAX_MESSAGES)
        self._is_open = WakeEvent()
        self.is_closing = self.is_done = self.has_failed = False
        self._end_timeout_s = _END_TIMEOUT_S
        self._began_ns = clocks.monotonic_ns()
        self._lost_snapshots = 0  # on the way here
        self._period_ns = 0  # of the last capture of all threads
        self._loop_blockers = LoopBlockers()

    @property
    def end_timeout_s(self) -> float:
        """Seconds that `close` may take."""
        return self._end_timeout_s + _MAX_OPEN_S

    def feed(self, data: bytes) -> None:
        """Process the next bytes of the stream; `StreamError` if it cannot be read."""
        self._accounting.count(self, len(data))
        for item in self._reader.feed(data):
            if isinstance(item, ProcessStarted) and self._pipeline is None:
                self._begin(item)
            elif isinstance(item, ResourceChanged):
                self._changed = item
            elif isinstance(item, LostRecord):
                self._lost_snapshots += item.snapshots
                self.log(logging.DEBUG, f"{item.snapshots} snapshots were lost on the way to the exporter process")
            elif self._pipeline is not None:
                self._pipeline.take(item)
                if isinstance(item, CapturedSnapshot):
                    self._period_ns = (0 if item.is_focused else item.period_ns) or self._period_ns
                elif isinstance(item, EndRecord):
                    waits_s = item.timeout_ns / 1e9
                    self._end_timeout_s = _END_TIMEOUT_S if waits_s < _MIN_WAIT_S else min(waits_s, _MAX_END_TIMEOUT_S)
                    self.close()

    def tick(self) -> None:
        """Do what is due; called at least once a second."""
        if self._pipeline is not None and self._batch_exporter is not None:
            self._pipeline.tick(clocks.boottime_ns())
            self._batch_exporter.set_max_bytes(self._accounting.queue_bytes())
            self._report(self._batch_exporter)

    def messages(self) -> list[bytes]:
        """Return the new messages to the host."""
        return [self._messages.popleft() for _ in range(len(self._messages))]

    def status(self) -> bytes:
        """Return what a person should know of the host's records, as JSON; empty before its stream has begun."""
        resolved, batch_exporter = self._resolved, self._batch_exporter
        if resolved is None or batch_exporter is None:
            return b""
        last = batch_exporter.last_results()
        status = HostStatus(
            age_s=_age_s(self._began_ns),
            has_profiles=resolved.config.sends_profiles,
            counters=batch_exporter.counters(),
            lost_snapshots=self._lost_snapshots,
            destination=destinations.describe(resolved),
            delivered_age_s=None if last.delivered_ns is None else _age_s(last.delivered_ns),
            failed_age_s=None if last.failed_ns is None else _age_s(last.failed_ns),
            failure=last.failure,
            period_ms=self._period_ns // 1_000_000,
            configured_period_ms=Periods(*resolved.config.periods_ns).all_ns // 1_000_000,
            loop_blockers=self._loop_blockers.worst(),
        )
        return status.encode()

    @contextmanager
    def log_lines(self) -> Iterator[None]:
        """Send the host the log lines of the calling thread meanwhile."""
        ident = real_get_ident()()
        _SESSIONS[ident] = self
        try:
            yield
        finally:
            _SESSIONS.pop(ident, None)

    def close(self) -> None:
        """Begin to send everything; `is_done` is True once that is over. `RuntimeError` if no thread can do it."""
        if self.is_closing:
            return
        self.is_closing = True
        if self._pipeline is None or self._batch_exporter is None:
            self.is_done = True
            return
        try:
            self._close_thread.start()
        except RuntimeError:
            self._batch_exporter.stop(0)
            self._accounting.end(self)
            self.is_done = True
            raise

    def _begin(self, started: ProcessStarted) -> None:
        resolved = self._resolved = from_values(started.settings)
        self._pid = started.settings.get("pid", self._pid)
        self._path = started.settings.get("path", ())
        self._sink = DeferredSink(self._open_sink, self._knows_service)
        self._batch_exporter = make_batch_exporter(
            resolved.config, self._sink, self._accounting.warning_limit(resolved)
        )
        pipeline = make_pipeline(resolved.config, self._deliver)
        self._batch_exporter.expect_run()
        self._export_thread.start()
        self._pipeline = pipeline  # last: without a thread, nothing is reported as if it worked

    def _deliver(self, records: tuple[Any, ...]) -> None:
        assert self._batch_exporter is not None
        self._batch_exporter.record(records)
        self._loop_blockers.add(records)

    def _open_sink(self) -> Any:
        assert self._resolved is not None
        destinations.load_sink_module(self._resolved)
        self._current_resource()  # now: detectors may use the network, and an ending process cannot wait
        classifier = None
        if self._resolved.config.sends_profiles:
            from splunk_profiler.code_origin.classifier import CodeClassifier  # noqa: PLC0415  # needless for text

            # Another program may have started the exporter, and so have other paths.
            classifier = CodeClassifier(lambda: dict.fromkeys([*self._path, *sys.path]))
        context = SinkContext(self._resolved, self._current_resource, classifier, share_connection=False)
        return destinations.make_sink(context)

    def _current_resource(self) -> ProcessResource:
        """Return the resource of the process; on the exporting thread, since detectors may use the network."""
        if self._resource is None or self._resource[0] is not self._changed:
            self._resource = (self._changed, self._make_resource(self._changed))
        return self._resource[1]

    def _make_resource(self, changed: ResourceChanged | None) -> ProcessResource:
        attributes: Any = {} if changed is None else changed.attributes
        if changed is not None and changed.is_final:
            return ProcessResource({**attributes, _PROCESS_ID: self._pid}, changed.schema_url)
        from splunk_profiler.export.resource import detect_resource  # noqa: PLC0415  # the SDK, hence megabytes

        assert self._resolved is not None
        detected = detect_resource({**self._resolved.resource_attributes, **attributes})
        return ProcessResource({**detected.attributes, _PROCESS_ID: self._pid}, detected.schema_url)

    def _knows_service(self) -> bool:
        # The resource stands after the first samples in the stream: without it they have no id of the process.
        resolved, changed = self._resolved, self._changed
        if self.is_closing:
            return True
        if resolved is None or changed is None:
            return False
        return changed.is_final or _SERVICE_NAME in resolved.resource_attributes

    def _export(self) -> None:
        assert self._sink is not None
        assert self._batch_exporter is not None
        with self.log_lines():
            self._sink.open()
            self._is_open.set()
            self._accounting.begin(self)
            self._batch_exporter.run()

    def _close(self) -> None:
        assert self._pipeline is not None
        guard = Guard("ending a session of the exporter")
        with self.log_lines():
            for step in (self._pipeline.close, self._end_export, lambda: self._accounting.end(self)):
                with guard.catching():
                    step()
        self.has_failed = bool(guard.failures)
        self.is_done = True

    def _end_export(self) -> None:
        assert self._batch_exporter is not None
        self._is_open.wait(_MAX_OPEN_S)  # longer than the host waits, whose samples are here
        self._batch_exporter.stop(max(self._end_timeout_s - _END_MARGIN_S, 0))
        self._report(self._batch_exporter)

    def _report(self, batch_exporter: BatchExporter[Any]) -> None:
        """Tell the host what was used for it, and what became of its records."""
        counters = batch_exporter.counters()._asdict()
        self._messages.append(_encode({"cpu_ns": self._accounting.take(self), "counters": counters}))

    def log(self, level: int, text: str) -> None:
        """Have the host log a line."""
        self._messages.append(_encode({"level": level, "text": text}))


class SessionAccounting:
    """The CPU time and the memory of the exporter process, shared out among its sessions.

    CPU time goes by the bytes that each has got since it was last shared out, memory in equal parts.
    `on_loaded` is called once the first session can export.
    """

    def __init__(self, on_loaded: Callable[[], None]) -> None:
        self._on_loaded = on_loaded
        self._warning_limits: dict[object, WarningLimit] = {}  # that of the last session last
        self._last_ns = time.process_time_ns()
        self._lock = real_lock()  # sessions have threads of their own
        self._used_ns: dict[StreamSession, int] = {}
        self._fed_bytes: Counter[StreamSession] = Counter()
        self._is_loaded = False

    def warning_limit(self, resolved: Resolved) -> WarningLimit:
        """Return the one limit of a service: with no collector, each of its forked workers would log the same."""
        service = resolved.resource_attributes.get(_SERVICE_NAME)
        key = (service, destinations.describe(resolved), resolved.transport.headers)
        limit = self._warning_limits.pop(key) if key in self._warning_limits else WarningLimit()
        self._warning_limits[key] = limit
        if len(self._warning_limits) > _MAX_SERVICES:
            del self._warning_limits[next(iter(self._warning_limits))]
        return limit

    def begin(self, session: StreamSession) -> None:
        """Count for a session from now on: loading its exporter is not counted."""
        with self._lock:
            self._divide()
            if not session.is_closing:  # else nothing would end it
                self._used_ns[session] = 0
            is_first, self._is_loaded = not self._is_loaded, True
        if is_first:
            self._on_loaded()

    def count(self, session: StreamSession, size: int) -> None:
        """Count bytes that a session has got."""
        with self._lock:
            self._fed_bytes[session] += size

    def sessions(self) -> list[StreamSession]:
        """Return those that count."""
        with self._lock:
            return list(self._used_ns)

    def queue_bytes(self) -> int:
        """Return the memory that the queue of a session may have."""
        return min(_MAX_QUEUE_BYTES, _ALL_QUEUES_BYTES // max(len(self._used_ns), 1))

    def take(self, session: StreamSession) -> int:
        """Return the CPU time that was used for a session so far."""
        with self._lock:
            self._divide()
            return self._used_ns.get(session, 0)

    def end(self, session: StreamSession) -> None:
        """Stop counting for a session."""
        with self._lock:
            self._divide()
            self._used_ns.pop(session, None)

    def _divide(self) -> None:
        """Divide the CPU time among the sessions; the caller has the lock."""
        now_ns = time.process_time_ns()
        used_ns = now_ns - self._last_ns
        if used_ns < _MIN_DIVIDED_NS:
            return
        self._last_ns = now_ns
        weights = {session: self._fed_bytes[session] + 1 for session in self._used_ns}
        total = sum(weights.values())
        for session, weight in weights.items():
            self._used_ns[session] += used_ns * weight // total
        self._fed_bytes.clear()


def _lower_priority() -> None:
    """Let busy threads of the hosts go first from now on. Threads that are started later inherit it."""
    with suppress(OSError):  # /proc is not mounted
        for thread in map(int, os.listdir("/proc/self/task")):  # noqa: PTH208  # names are what is needed
            with suppress(OSError):  # it has ended, or musl has no such calls
                os.setpriority(os.PRIO_PROCESS, thread, _NICENESS)
                if os.sched_getscheduler(thread) == os.SCHED_OTHER:  # else the host has a policy of its own
                    os.sched_setscheduler(thread, os.SCHED_BATCH, os.sched_param(0))  # preempts none when it wakes


_SESSIONS: dict[int, StreamSession] = {}  # ident of a thread → the session that it works for
_NICENESS = os.nice(0) + 5  # a third of the weight of a busy thread: 10 (a tenth) starves it beside several
_ACCOUNTING = SessionAccounting(_lower_priority)


class _HostLogHandler(logging.Handler):
    """Sends the lines of our log to the hosts that they are about."""

    def emit(self, record: logging.LogRecord) -> None:
        session = _SESSIONS.get(real_get_ident()())
        for each in _ACCOUNTING.sessions() if session is None else [session]:
            error = f": {record.exc_info[1]!r}" if record.exc_info else ""
            each.log(record.levelno, record.getMessage() + error)


def make_session(pid: int) -> StreamSession:
    """Return the session of a process that has connected."""
    if not logger.handlers:
        logger.addHandler(_HostLogHandler())
        logger.setLevel(logging.INFO)
        logger.propagate = False
    return StreamSession(pid, _ACCOUNTING)


def _age_s(instant_ns: int) -> float:
    return round((clocks.monotonic_ns() - instant_ns) / 1e9, 3)


def _encode(message: dict[str, object]) -> bytes:
    return json.dumps(message).encode()
