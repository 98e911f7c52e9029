"""What another process reads of threads that change their spans all the time: always complete, and never another's.

The reader is the inspector, which shares nothing with the publisher. The truth is written by the work itself, beside
what it publishes; a read counts as comparable where the truth was the same before and after it.
"""

from __future__ import annotations

import mmap
import struct
from importlib.util import find_spec
from pathlib import Path

import pytest
from target_process import Target

pytest.importorskip("splunk_profiler._context")

from splunk_profiler.inspector import Reader
from splunk_profiler.inspector.model import ThreadReading

_READS = 5_000  # of each kind of work
_NOWHERE = bytes(32)
_BETWEEN = b"\xff" * 32
_PUBLISH = {
    "ELASTIC_OTEL_UNIVERSAL_PROFILING_INTEGRATION_ENABLED": "true",
    "SPLUNK_PROFILER_CUSTOM_LABELS_ENABLED": "true",
    "OTEL_SERVICE_NAME": "outside",
}


def by_elastic(reading: ThreadReading) -> bytes:
    """The ids that a thread shows by Elastic's interface, which must be complete."""
    record = reading.correlation
    if record is None or not record.trace_present:
        return _NOWHERE
    assert record.valid
    assert int(record.transaction_id, 16)
    return b"".join(map(bytes.fromhex, (record.trace_id, record.span_id, record.transaction_id)))


def by_labels(reading: ThreadReading) -> bytes:
    """The same by its labels. Each interface is right by itself: two pointers cannot change in one step."""
    labels = {label.key: label.value.decode() for label in reading.labels or ()}
    ids = [labels[key] for key in (b"trace_id", b"span_id", b"local_root_span_id") if key in labels]
    assert len(ids) in (0, 3)
    assert labels.keys() <= {b"trace_id", b"span_id", b"local_root_span_id", b"work"}
    assert labels.get(b"work", "inner") == "inner"
    return b"".join(map(bytes.fromhex, ids)) or _NOWHERE


@pytest.mark.parametrize("how", ["threads", "asyncio", "uvloop", "gevent"])
def test_every_read_is_complete_and_of_the_work_that_the_thread_was_doing(tmp_path: Path, how: str) -> None:
    if how in ("uvloop", "gevent") and find_spec(how) is None:
        pytest.skip(f"{how} is not there")
    shared = tmp_path / "truth"
    shared.write_bytes(bytes(4096))
    compared = wrong = 0
    with (
        shared.open("r+b") as file,
        mmap.mmap(file.fileno(), 4096) as truth,
        Target("outside.py", how, str(shared), env=_PUBLISH) as target,
    ):
        slots = int(target.line("ready"))
        with Reader(target.pid) as reader:
            for number in range(_READS):
                at = 64 * (number % slots)
                tid, turn = struct.unpack_from("=QQ", truth, at)
                true = truth[at + 16 : at + 48]
                reading = reader.sample_one(tid) if tid else None
                if reading is None or not reading.stopped:
                    continue
                shown = (by_elastic(reading), by_labels(reading))
                same = struct.unpack_from("=Q", truth, at + 8)[0] == turn
                if same and turn and turn % 2 == 0 and true != _BETWEEN:
                    compared += 1
                    wrong += shown != (true, true)
        target.tell("audit")
        assert target.json("repaired") == 0
        assert "Traceback" not in target.output
    assert wrong == 0, f"{wrong} of {compared} reads show something else"
    assert compared > _READS // 20
