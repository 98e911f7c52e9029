"""A saturated service of 33 threads, 8 of them always busy, sampled every 10 ms: nothing of it is lost on the way."""

from __future__ import annotations

import sys
from collections import Counter

import pytest

pytest.importorskip("splunk_profiler._walker")
from receiver_process import Receiver
from target_process import Target, profiling_settings

THREADS, BUSY = 33, 8  # with the main thread
SNAPSHOTS = 300
NAMES = ('"MainThread"', '"application-')
SERVICE = f"""
import hashlib, logging, sys, threading, time
import splunk_profiler
logging.basicConfig(format="%(message)s", level=logging.INFO)
over = threading.Event()
def descend(depth, leaf):
    if depth: descend(depth - 1, leaf)
    else: leaf()
def work():
    while not over.is_set():
        sum(range(1000))
        hashlib.sha256(bytes(5000)).digest()
def start(number):
    leaf = work if number <= {BUSY} else over.wait
    threading.Thread(target=descend, args=(40, leaf), name=f"application-{{number}}").start()
assert splunk_profiler.start()
for number in range(1, {THREADS}): start(number)
print("ready", time.time_ns(), flush=True)
sys.stdin.readline()
print("over", time.time_ns(), flush=True)
over.set()
splunk_profiler.stop(60)
"""


@pytest.mark.parametrize("exporter", ["process", "thread"])
def test_each_snapshot_of_a_saturated_service_arrives_with_all_threads(exporter: str) -> None:
    with Receiver() as receiver:
        env = profiling_settings(
            receiver.url, 10, SPLUNK_PROFILER_EXPORTER=exporter, SPLUNK_PROFILER_MAX_OVERHEAD="off"
        )
        with Target(sys.executable, "-c", SERVICE, env=env) as target:
            ready_ns = int(target.line("ready").split()[-1])
            receiver.records(SNAPSHOTS * THREADS, lambda record: record["time_ns"] > ready_ns)
            target.tell("stop")
            over_ns = int(target.line("over").split()[-1])
            assert target.finish() == 0, target.output
        receiver.catch_up()
        records = receiver.records(0, lambda record: ready_ns < record["time_ns"] < over_ns)
    # Where threads export, the SDK's own for a moment is there, too.
    sampled = Counter(record["time_ns"] for record in records if record["body"].startswith(NAMES))
    assert len(sampled) >= SNAPSHOTS
    assert set(sampled.values()) == {THREADS}
    assert [line for line in target.output.splitlines() if "dropped" in line or "lost" in line] == []
