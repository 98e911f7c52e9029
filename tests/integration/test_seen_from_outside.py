"""The publisher, judged by the inspector: what is read of a service that switches as fast as it can is never wrong."""

from __future__ import annotations

import importlib.util
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from inspected_process import import_path
from target_process import Target

from splunk_profiler.inspector import Reader
from splunk_profiler.inspector.model import Interface, ThreadReading, TlsKind

READS = 20_000
THREADS = 8
TASKS = 200

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("splunk_profiler._context") is None, reason="the native publisher is not built here"
)


@contextmanager
def service(kind: str, count: int, truth: Path) -> Iterator[Target]:
    settings = {
        "PYTHONPATH": import_path(),
        "OTEL_SERVICE_NAME": "shop",
        "ELASTIC_OTEL_UNIVERSAL_PROFILING_INTEGRATION_ENABLED": "true",
        "SPLUNK_PROFILER_CUSTOM_LABELS_ENABLED": "true",
    }
    with Target("switching_spans.py", kind, str(count), str(truth), env=settings) as target:
        yield target


def worker_of(thread: ThreadReading) -> int:
    """The worker whose context was read, 0 without a span; fails if the parts do not belong together."""
    found = thread.correlation
    assert found is not None
    assert found.valid
    assert not thread.problems
    shown = {label.key.decode(): label.value.decode() for label in thread.labels or ()}
    if not found.trace_present:
        return 0
    number = int(found.trace_id[:4], 16)
    part = f"{number:04x}"
    assert (found.trace_id, found.span_id, found.transaction_id) == (part * 8, part * 4, part * 4)
    assert found.trace_flags & 1
    if "trace_id" in shown:
        assert shown["trace_id"] == part * 8
        assert shown["span_id"] == shown["local_root_span_id"] == part * 4
    assert shown.get("worker", str(number)) == str(number)
    return number


def test_threads_show_their_own_spans_in_every_read(tmp_path: Path) -> None:
    with service("threads", THREADS, tmp_path / "truth") as target:
        workers = {int(tid): number for tid, number in target.json("ready").items()}
        assert len(workers) == THREADS
        reads = in_spans = 0
        with Reader(target.pid) as reader:
            report = reader.read()
            assert {(library.interface, library.tls) for library in report.libraries} == {
                (Interface.ELASTIC, TlsKind.STATIC),
                (Interface.LABELS, TlsKind.STATIC),
            }
            assert report.visible(Interface.ELASTIC)
            assert report.visible(Interface.LABELS)
            while reads < READS:
                for thread in reader.sample():
                    if thread.tid in workers and thread.correlation is not None:
                        found = worker_of(thread)
                        assert found in (0, workers[thread.tid])
                        reads += 1
                        in_spans += found != 0
        assert in_spans > READS // 10


@pytest.mark.parametrize("kind", ["asyncio", "uvloop", "gevent"])
def test_tasks_on_one_thread_show_the_span_of_the_one_that_computes(kind: str, tmp_path: Path) -> None:
    if kind != "asyncio":
        pytest.importorskip(kind)
    truth = tmp_path / "truth"
    with service(kind, TASKS, truth) as target:
        target.line("ready")
        reads = certain = 0
        seen = set()
        with Reader(target.pid) as reader, truth.open("rb", buffering=0) as file:

            def now() -> tuple[int, ...]:
                file.seek(0)
                return struct.unpack("<QQ", file.read(16))

            while reads < READS:
                before = now()
                thread = reader.sample_one(target.pid)
                assert thread is not None
                if thread.correlation is None:
                    continue
                found = worker_of(thread)
                reads += 1
                seen.add(found)
                # Where the truth did not change around the read, it was so in between.
                if before == now() and before[0]:
                    assert found == before[0]
                    certain += 1
        assert len(seen) > TASKS // 2
        assert certain > READS // 1000
