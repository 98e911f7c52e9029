"""The target ``forks.py`` with its receiver: start, records of a child, and samples after a fork."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from receiver_process import Receiver
from target_process import Target, profiling_settings


@contextmanager
def forking(
    receiver: Receiver, how: str, count: int, interval_ms: int = 10, **settings: str
) -> Iterator[tuple[Target, int]]:
    """Yield a target that has sent its first records and waits for the command to fork, with its pid."""
    env = profiling_settings(receiver.url, interval_ms, OTEL_SERVICE_NAME="forking", **settings)
    with Target("forks.py", how, str(count), env=env) as target:
        pid = int(target.line("ready"))
        receiver.record(lambda record: record["resource"]["process.pid"] == pid)
        yield target, pid


def record_of(receiver: Receiver, child: dict[str, Any]) -> dict[str, Any]:
    """Return the first record of the child's own work, in its own span, under its own process id."""

    def is_its(record: dict[str, Any]) -> bool:
        return (
            record["resource"]["process.pid"] == child["pid"]
            and (record["trace_id"], record["span_id"]) == (child["trace_id"], child["span_id"])
            and ".work_in_span_90(" in record["body"]
        )

    return receiver.record(is_its)


def assert_goes_on(receiver: Receiver, pid: int) -> None:
    """Wait for a sample from process `pid` that was taken after this call."""
    now = time.time_ns()
    record = receiver.record(lambda r: r["time_ns"] > now and r["resource"]["process.pid"] == pid and r["span_id"])
    assert record["resource"]["service.name"] == "forking"
    assert record["resource"]["set.in.code"] == "yes"
