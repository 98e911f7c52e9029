"""Waits for connections of real pools that have none left, and for asyncio, as a collector receives them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from ledger_run import run_target
from received_profiles import all_samples, read
from walker_marks import NATIVE

_POOLS = {"sqlalchemy", "dbutils", "redis", "urllib3", "psycopg"}
_TASKS = {
    "asyncio.Lock": "lock",
    "asyncio.Queue": "queue",
    "asyncio.Semaphore": "semaphore",
    "sqlalchemy.asyncio": "pool",
    "redis.asyncio": "pool",
    "psycopg.asyncio": "pool",
}


@NATIVE
def test_waits_for_connections_of_exhausted_pools_have_their_kind(tmp_path: Path) -> None:
    run = run_target("exhausted_pools.py", str(tmp_path / "db"), SPLUNK_PROFILER_DATA_FORMAT="pprof-gzip-base64")
    waited: Counter[tuple[str, str]] = Counter()
    for sample in all_samples([read(record) for record in run.records]):
        name = str(sample.labels.get("task.name", sample.labels.get("thread.name")))
        waited[name, str(sample.labels.get("wait.kind", ""))] += sample.wall_ns + sample.task_wait_ns
    long = {each for each, waited_ns in waited.items() if waited_ns > 1_000_000_000}
    found = {name: {kind for other, kind in long if other == name} for name in {*_POOLS, *_TASKS}}
    assert found.pop("urllib3") == {"pool", ""}, "the other one waits for an answer"
    assert found == {name: {_TASKS.get(name, "pool")} for name in found}
