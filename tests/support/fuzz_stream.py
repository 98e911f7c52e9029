"""A fuzz test of the reader of streams: bytes of real streams with faults, on all processors.

    fuzz_stream.py [COUNT]

Nothing but `StreamError` may come out of the decoder, the reader and the pipeline, and none may keep more than it was
given. Nearly all inputs are a few records; one of a thousand is a whole stream, for each pipeline in turns. Prints how
many were refused. Exits with status 1 at the first other exception, with the input that reproduces it.
"""

from __future__ import annotations

import argparse
import os
import random
import struct
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import pairwise
from typing import Literal

from recorded_stream import PERIODS, Recorded, record_ends, record_run

from splunk_profiler.capture.events.allocations import ALLOCATION_KIND
from splunk_profiler.capture.events.garbage_collections import GC_KIND
from splunk_profiler.pipeline.live_heap import LIVE_HEAP
from splunk_profiler.pipeline.record_pipeline import ProfilePipeline, SamplePipeline
from splunk_profiler.pipeline.stream_pipeline import PipelineSettings, StreamPipeline
from splunk_profiler.stream.codec import StreamError
from splunk_profiler.stream.reader import StreamReader
from splunk_profiler.stream.records import HEADER, MAX_RECORD_BYTES, RECORD_TYPES
from splunk_profiler.system.guard import Guard

_TASK_SIZE = 250_000  # inputs of one task
_SHORT_RECORDS = 3  # a short input has at most so many
_WHOLE_EVERY = 1000
_VALUES = (
    0,
    1,
    2,
    0x7F,
    0x80,
    0xFF,
    0xFFFF,
    0x7FFFFFFF,
    0x80000000,
    0xFFFFFFFF,
    MAX_RECORD_BYTES,
    MAX_RECORD_BYTES + 1,
)


class UnexpectedError(Exception):
    """Something else than `StreamError` came out."""


class NoGuard(Guard):
    """A guard that lets all errors out."""

    def __exit__(self, *_: object) -> Literal[False]:
        return False


class Mutator:
    """A source of inputs, which are made of the records of a real stream."""

    def __init__(self, data: bytes, seed: int) -> None:
        self._chance = random.Random(seed)
        ends = record_ends(data)
        self._records = [data[start:end] for start, end in pairwise(ends)]
        short = [record for record in self._records if len(record) < 200]
        self._short = short or self._records
        self._faults = (self._flip, self._cut, self._splice, self._overwrite, self._resize, self._retype)

    def whole(self) -> bytes:
        """Return a whole stream with one fault."""
        return HEADER + b"".join(self._fault(self._records))

    def short(self) -> bytes:
        """Return a few records with one fault."""
        chance = self._chance
        return HEADER + b"".join(self._fault(chance.choices(self._short, k=1 + int(chance.random() * _SHORT_RECORDS))))

    def _fault(self, records: Sequence[bytes]) -> list[bytes]:
        chance, changed = self._chance, [*records]
        place = int(chance.random() * len(changed))
        changed[place] = bytes(self._faults[int(chance.random() * len(self._faults))](bytearray(changed[place])))
        return changed

    def _place(self, data: bytearray) -> int:
        return int(self._chance.random() * len(data))

    def _flip(self, data: bytearray) -> bytearray:
        data[self._place(data)] ^= 1 << int(self._chance.random() * 8)
        return data

    def _cut(self, data: bytearray) -> bytearray:
        place = self._place(data)
        del data[place : place + 1 + int(self._chance.random() * 16)]
        return data

    def _splice(self, data: bytearray) -> bytearray:
        other = self._chance.choice(self._short)
        place = self._place(data)
        data[place:place] = other[int(self._chance.random() * len(other)) :]
        return data

    def _overwrite(self, data: bytearray) -> bytearray:
        """Put a number where a count, a number of a definition or a length may be."""
        place = int(self._chance.random() * max(len(data) - 3, 1))
        data[place : place + 4] = struct.pack("<I", self._chance.choice(_VALUES))
        return data

    def _resize(self, data: bytearray) -> bytearray:
        """Change the body and its length, so that the record is framed well."""
        place = 5 + int(self._chance.random() * max(len(data) - 5, 1))
        if self._chance.random() < 0.5:
            del data[place : place + 1 + int(self._chance.random() * 8)]
        else:
            data[place:place] = self._chance.randbytes(1 + int(self._chance.random() * 8))
        return self._framed(data)

    def _retype(self, data: bytearray) -> bytearray:
        data[4] = 1 + int(self._chance.random() * len(RECORD_TYPES))
        return data

    @staticmethod
    def _framed(data: bytearray) -> bytearray:
        data[:4] = struct.pack("<I", max(len(data) - 4, 0))
        return data


def read(data: bytes) -> str:
    """Read a short input; return how it went."""
    reader = StreamReader()
    try:
        for _ in reader.feed(data):
            pass
    except StreamError:
        return "refused"
    return "cut off" if reader.pending_bytes else "read"


def _discard(_records: object) -> None:
    """Take records."""


def pipe(data: bytes, *, profiles: bool) -> str:
    """Read a whole stream through one of the two pipelines without a guard; return how it went."""
    kinds = (GC_KIND, ALLOCATION_KIND, LIVE_HEAP)
    pipeline = StreamPipeline(
        PipelineSettings(PERIODS, skips_idle=profiles),
        lambda source: ProfilePipeline(_discard, 10**10, kinds, source) if profiles else SamplePipeline(_discard),
        NoGuard("the pipeline"),
    )
    found = "read"
    try:
        for item in StreamReader().feed(data):
            pipeline.take(item)
    except StreamError:
        found = "refused"
    pipeline.tick(1 << 62)
    pipeline.close()
    return f"{found} by the pipeline"


def inputs(data: bytes, count: int, seed: int) -> Iterator[bytes]:
    """Yield inputs; each one after `_WHOLE_EVERY` others is a whole stream."""
    mutator = Mutator(data, seed)
    for number in range(1, count + 1):
        yield mutator.short() if number % _WHOLE_EVERY else mutator.whole()


def fuzz(data: bytes, count: int, seed: int) -> Counter[str]:
    """Read inputs made of a stream, and count how it went.

    Raises:
        UnexpectedError: something else than `StreamError` came out.
    """
    found: Counter[str] = Counter()
    for number, mutated in enumerate(inputs(data, count, seed), 1):
        try:
            is_whole = number % _WHOLE_EVERY == 0
            found[pipe(mutated, profiles=number % (2 * _WHOLE_EVERY) == 0) if is_whole else read(mutated)] += 1
        except Exception as error:
            raise UnexpectedError(f"seed {seed}, input {number}: {bytes(mutated).hex()} raised {error!r}") from error
    return found


def main() -> None:
    """Distribute the work and print the sums."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("count", type=int, nargs="?", default=10_000_000)
    parser.add_argument("--seed", type=int, default=0, help="of the first share; the others have the next ones")
    arguments = parser.parse_args()
    shares = [_TASK_SIZE] * (arguments.count // _TASK_SIZE) + [arguments.count % _TASK_SIZE]
    started_s = time.monotonic()
    recorded: Recorded = record_run(with_all=True)
    found: Counter[str] = Counter()
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for share in pool.map(
            partial(fuzz, recorded.data), shares, range(arguments.seed, arguments.seed + len(shares))
        ):
            found += share
    seen = ", ".join(f"{count} {kind}" for kind, count in sorted(found.items()))
    print(f"{found.total()} inputs in {time.monotonic() - started_s:.0f} s, no other exception: {seen}")


if __name__ == "__main__":
    try:
        main()
    except UnexpectedError as error:
        raise SystemExit(str(error)) from None
