"""A host profiler in the kernel: a BPF program interrupts the threads of a process and follows the pointers itself.

Nothing of the inspector takes part in it but the offset of the thread-local pointer. Needs ``bpftrace``, root, and a
kernel that lets BPF programs run.
"""

from __future__ import annotations

import os
import platform
import shutil
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from derived_ids import KEY_BITS, WorkUnit
from host_reading import Judge
from publishing_target import publishing_target
from table_reader import TableReader

from splunk_profiler.inspector.model import Interface

pytest.importorskip("splunk_profiler._context", reason="the native publisher is not built for this interpreter")

_READS = 2000
_MOVING, _OUTSIDE = 1 << KEY_BITS, 1 << KEY_BITS + 1
_PROGRAM = """
interval:s:60 {{ exit(); }}
BEGIN {{ {slots} printf("attached %d\\n", pid); }}
profile:hz:997 /pid == {pid} && @at[tid]/ {{
  $truth = *(uint64*)uptr(@at[tid]);
  $p = *(uint64*)uptr(curtask->thread.fsbase + ({offset}));
  if ($p) {{
    printf("read %llx %d %d %d %llx %llx %llx %llx\\n", $truth, *(uint8*)uptr($p + 2), *(uint8*)uptr($p + 3),
      *(uint8*)uptr($p + 4), *(uint64*)uptr($p + 5), *(uint64*)uptr($p + 13), *(uint64*)uptr($p + 21),
      *(uint64*)uptr($p + 29));
  }} else {{
    printf("read %llx 0 0 0 0 0 0 0\\n", $truth);
  }}
}}
"""


@contextmanager
def _bpftrace(program: str) -> Iterator[Iterator[list[str]]]:
    """The words of each line that the program prints, until the block ends."""
    environment = {**os.environ, "BPFTRACE_STRLEN": "64"}
    with subprocess.Popen(
        ["bpftrace", "-e", program], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as tracer:
        assert tracer.stdout is not None
        try:
            yield (line.split() for line in tracer.stdout)
        finally:
            tracer.kill()


@pytest.fixture(scope="module")
def _in_kernel() -> None:
    """Skips where no such program runs."""
    if shutil.which("bpftrace") is None:
        pytest.skip("bpftrace is not there")
    if os.geteuid() != 0:
        pytest.skip("bpftrace needs root")
    if platform.machine() != "x86_64":
        pytest.skip("the program knows where x86-64 keeps the thread pointer")
    program = (
        'BEGIN { printf("pid %d\\n", pid); } profile:hz:99 { printf("runs %llx\\n", curtask->thread.fsbase); exit(); }'
    )
    tried = subprocess.run(
        ["bpftrace", "-e", program], capture_output=True, text=True, timeout=60, check=False, stdin=subprocess.DEVNULL
    )
    if tried.returncode != 0 or "runs" not in tried.stdout:
        said = (tried.stderr or tried.stdout).strip().splitlines()
        pytest.skip(f"the kernel does not run BPF programs here: {said[-1] if said else tried.returncode}")


def _is_right(words: list[str]) -> str:
    """Return the kind of a reading ("inside", "outside", "moving"); fail if its values are wrong."""
    truth, valid, present, flags = int(words[0], 16), *map(int, words[1:4])
    *trace, span, transaction = (struct.pack("=Q", int(word, 16)).hex() for word in words[4:8])
    shown = None
    if present:
        shown = WorkUnit.of_span_id(int(span, 16))
        ids = shown.trace_id, shown.root.span_id, int(shown.sampled), 1
        assert (int("".join(trace), 16), int(transaction, 16), flags, valid) == ids, f"of several spans: {words}"
    if truth & _MOVING:
        return "moving"
    assert shown == (None if truth == _OUTSIDE else WorkUnit.of_key(truth)), f"not the current span: {words}"
    return "outside" if truth == _OUTSIDE else "inside"


@pytest.mark.usefixtures("_in_kernel")
@pytest.mark.parametrize("scenario", ["threads", "asyncio_tasks"])
def test_the_kernel_reads_the_span_that_the_interrupted_thread_is_in(scenario: str) -> None:
    seen: Counter[str] = Counter()
    with publishing_target("span_switching.py", scenario) as target:
        address = int(target.line("ready"))
        with TableReader(target.pid, address) as reader:
            offset = reader.variables[Interface.ELASTIC].offset
            judge = Judge()
            while not judge.judged:
                for reading, table in reader.sample():
                    judge.judge(reading, table)
        slots = "".join(f"@at[{tid}] = {place}; " for tid, place in judge.places(address).items())
        with _bpftrace(_PROGRAM.format(slots=slots, pid=target.pid, offset=offset)) as lines:
            said = []
            for words in lines:
                if words[:1] == ["read"]:
                    seen[_is_right(words[1:])] += 1
                else:
                    said.append(" ".join(words))
                if seen.total() >= _READS and seen["inside"] and seen["outside"]:
                    break
        target.tell("stop")
        assert target.json("done")["repaired"] == 0
        assert target.finish() == 0
    print(scenario, dict(seen), said, file=sys.stderr)
    assert seen.total() >= _READS, said
