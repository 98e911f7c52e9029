"""Ids that tell which work they belong to, so that whoever reads some of them can say what the others must be.

A `WorkUnit` of work has one span id; its trace id, local root span id, flags and route follow from the piece.
Neighbouring
pieces differ in nearly every byte of every id: a record that is made of two of them is seen. Pure; shared by the target
programs and the tests that read them. Imports nothing of the package.
"""

from __future__ import annotations

from dataclasses import dataclass

_SPAN = 0x9E3779B97F4A7C15
_TRACE = 0xD1B54A32D192ED03_8CB92BA72F3D8DD7
_SPAN_INVERSE, _TRACE_INVERSE = pow(_SPAN, -1, 1 << 64), pow(_TRACE, -1, 1 << 128)
_SEQUENCE_BITS, _WORKER_BITS, _DEPTH_BITS = 40, 16, 6
_ROOT = (1 << _SEQUENCE_BITS + _WORKER_BITS) - 1
KEY_BITS = _SEQUENCE_BITS + _WORKER_BITS + _DEPTH_BITS
UNSAMPLED_EVERY = 8
"""Of the sequence of a worker, each eighth trace is not sampled."""


@dataclass(frozen=True, slots=True)
class WorkUnit:
    """What a span is about.

    Attributes:
        worker: who does it, from 1.
        sequence: counts the traces of that worker.
        depth: 0 for the local root.
    """

    worker: int
    sequence: int
    depth: int = 0

    @classmethod
    def of_key(cls, key: int) -> WorkUnit:
        """The piece with this key, which need not be one that exists."""
        sequence = key & ((1 << _SEQUENCE_BITS) - 1)
        return cls(key >> _SEQUENCE_BITS & ((1 << _WORKER_BITS) - 1), sequence, key >> _SEQUENCE_BITS + _WORKER_BITS)

    @classmethod
    def of_span_id(cls, span_id: int) -> WorkUnit:
        """The piece with this span id, which need not be one that exists."""
        return cls.of_key(span_id * _SPAN_INVERSE % (1 << 64))

    @classmethod
    def of_trace_id(cls, trace_id: int) -> WorkUnit:
        """The local root of this trace, which need not be one that exists."""
        return cls.of_key(trace_id * _TRACE_INVERSE % (1 << 128))

    @property
    def key(self) -> int:
        """A number that stands for it: never 0, below ``1 << KEY_BITS``."""
        return self.depth << _SEQUENCE_BITS + _WORKER_BITS | self.worker << _SEQUENCE_BITS | self.sequence

    @property
    def root(self) -> WorkUnit:
        """The local root of its trace."""
        return WorkUnit(self.worker, self.sequence)

    @property
    def span_id(self) -> int:
        return self.key * _SPAN % (1 << 64)

    @property
    def trace_id(self) -> int:
        return (self.key & _ROOT) * _TRACE % (1 << 128)

    @property
    def sampled(self) -> bool:
        """Whether its trace is."""
        return self.sequence % UNSAMPLED_EVERY != UNSAMPLED_EVERY - 1

    @property
    def route(self) -> str:
        """The user's label of its whole trace."""
        return f"/worker/{self.worker}/{self.sequence}"
