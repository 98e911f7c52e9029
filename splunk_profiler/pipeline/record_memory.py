"""The memory of queued records, estimated. The owner of the queue calls it under its lock. Imports values only."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, Protocol, TypeVar

from splunk_profiler.model import Stack
from splunk_profiler.samples import Profile, Record, Sample

_SAMPLE_BYTES = 400  # objects and numbers that no other sample has, and the place in the queue
_STACK_BYTES, _FRAME_BYTES = 200, 8  # the text of a stack is made when it is sent; frames are shared

_Held_contra = TypeVar("_Held_contra", bound=Sample | Profile, contravariant=True)


class RecordMemory(Protocol[_Held_contra]):
    """A counter of the memory of records that are held."""

    used_bytes: int

    def add(self, records: Iterable[_Held_contra], /) -> None:
        """Count further records."""

    def remove(self, records: Iterable[_Held_contra], /) -> None:
        """Count these records no more."""


class SizedMemory(Generic[Record]):
    """The memory of records that share nothing."""

    def __init__(self, size_of: Callable[[Record], int]) -> None:
        self._size_of = size_of
        self.used_bytes = 0

    def add(self, records: Iterable[Record]) -> None:
        """Count further records."""
        self.used_bytes += sum(map(self._size_of, records))

    def remove(self, records: Iterable[Record]) -> None:
        """Count these records no more."""
        self.used_bytes -= sum(map(self._size_of, records))


class SampleMemory:
    """The memory of samples. Each of their stacks counts once: all samples of a thread that has not moved share one."""

    def __init__(self) -> None:
        self._sample_counts: dict[Stack, int] = {}
        self.used_bytes = 0

    def add(self, samples: Iterable[Sample]) -> None:
        """Count further samples."""
        counts = self._sample_counts
        for sample in samples:
            stack = sample.thread.stack
            known = counts.get(stack, 0)
            counts[stack] = known + 1
            self.used_bytes += _SAMPLE_BYTES if known else _SAMPLE_BYTES + _stack_bytes(stack)

    def remove(self, samples: Iterable[Sample]) -> None:
        """Count these samples no more."""
        counts = self._sample_counts
        for sample in samples:
            stack = sample.thread.stack
            left = counts[stack] - 1
            if left:
                counts[stack] = left
            else:
                del counts[stack]
                self.used_bytes -= _stack_bytes(stack)
            self.used_bytes -= _SAMPLE_BYTES


def estimate_size(sample: Sample) -> int:
    """Return about the bytes of a sample on the wire."""
    return 400 + 80 * len(sample.thread.stack.frames)


def _stack_bytes(stack: Stack) -> int:
    return _STACK_BYTES + _FRAME_BYTES * len(stack.frames)
