"""Ids from which a reader can derive all other ids of the same work.

A `WorkUnit` determines its span id, trace id, local root span id, flags and route. Neighbouring units differ in nearly
every byte of every id, so a record that mixes two of them is detected. Pure; shared by the target programs and their
tests. Imports nothing of the package.
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
    """The work of a span.

    Attributes:
        worker: number of the worker, from 1.
        sequence: number of the trace of that worker.
        depth: 0 for the local root.
    """

    worker: int
    sequence: int
    depth: int = 0

    @classmethod
    def of_key(cls, key: int) -> WorkUnit:
        """Return the unit with this key; it need not exist."""
        sequence = key & ((1 << _SEQUENCE_BITS) - 1)
        return cls(key >> _SEQUENCE_BITS & ((1 << _WORKER_BITS) - 1), sequence, key >> _SEQUENCE_BITS + _WORKER_BITS)

    @classmethod
    def of_span_id(cls, span_id: int) -> WorkUnit:
        """Return the unit with this span id; it need not exist."""
        return cls.of_key(span_id * _SPAN_INVERSE % (1 << 64))

    @classmethod
    def of_trace_id(cls, trace_id: int) -> WorkUnit:
        """Return the local root of this trace; it need not exist."""
        return cls.of_key(trace_id * _TRACE_INVERSE % (1 << 128))

    @property
    def key(self) -> int:
        """Number of the unit: never 0, below ``1 << KEY_BITS``."""
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
        """True if its trace is sampled."""
        return self.sequence % UNSAMPLED_EVERY != UNSAMPLED_EVERY - 1

    @property
    def route(self) -> str:
        """User label of its trace."""
        return f"/worker/{self.worker}/{self.sequence}"
