"""All kinds of events at once, beside threads, tasks, forks and restarts that come and go."""

from __future__ import annotations

from receiver_process import Receiver
from target_process import Target, profiling_settings

_ALL_EVENTS = {
    "SPLUNK_PROFILER_DATA_FORMAT": "pprof-gzip-base64",
    "SPLUNK_PROFILER_MEMORY_ENABLED": "true",
    "SPLUNK_PROFILER_MEMORY_SAMPLE_BYTES": "10000",
    "SPLUNK_PROFILER_EXCEPTIONS_ENABLED": "true",
    "SPLUNK_PROFILER_EXCEPTIONS_INTERVAL": "1",
    "SPLUNK_PROFILER_LOOP_BLOCKED_MS": "20",
    "SPLUNK_SNAPSHOT_PROFILER_ENABLED": "true",
}


def test_all_kinds_of_events_at_once_harm_no_thread_task_or_fork() -> None:
    with Receiver() as receiver:
        settings = profiling_settings(receiver.url, 10, **_ALL_EVENTS)
        with Target("event_storm.py", "4", env=settings) as target:
            target.line("ok", 120)
            assert target.finish() == 0, target.output
        assert "Traceback" not in target.output, target.output
        receiver.catch_up()
        assert receiver.records(1)
