"""The values that capture and all other packages consume: frozen and slotted, without behaviour of their own.

Imports nothing of ours. The unit of a field is in its name. Times of day are nanoseconds since the
epoch, durations are nanoseconds. Identifiers are integers until a format writes them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple, TypeVar

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """One call on a stack, resolved to names.

    A walker makes one Frame for each line of a function. Equality is identity, as with `Stack`.

    Attributes:
        namespace: module and class path (``shop.cart.Cart``), or ``unknown``.
        function: name of the function alone (``total``, ``<lambda>``).
        file: source file as the code object names it (``co_filename``), or ``unknown``.
        line: line of the call or of the running instruction, 1-based; None where CPython has none.
        first_line: first line of the function's definition, 1-based; 0 if not known.
        call: ``with``, ``acquire``, ``get``, ``run_forever`` or ``run_until_complete`` if that may have no frame.
    """

    namespace: str
    function: str
    file: str
    line: int | None
    first_line: int = 0
    call: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Stack:
    """The frames of one thread at one instant, leaf first.

    A thread that has not moved since its last sample has *the same* Stack object again. Values
    computed from a stack are computed once and kept in it (`derive`), so equality is identity.
    It is `truncated` if frames at the root end were left out.
    """

    frames: tuple[Frame, ...]
    truncated: bool
    _derived: dict[Callable[..., Any], Any] = field(default_factory=dict, repr=False)

    def derive(self, compute: Callable[[Stack], _T]) -> _T:
        """Return `compute(self)`, computed at most once for this stack and each `compute`."""
        try:
            return self._derived[compute]  # type: ignore[no-any-return]
        except KeyError:
            value = self._derived[compute] = compute(self)
            return value


class SpanRef(NamedTuple):
    """The span a sample was taken in.

    Attributes:
        trace_id: 128 bits, never 0.
        span_id: 64 bits, never 0.
        trace_flags: W3C trace flags, 8 bits; bit 0 is set if the span was sampled.
        local_root_id: id of the span with which the trace entered this process; 0 if not known.
        endpoint: name of the local root at that moment; empty if not known.
    """

    trace_id: int
    span_id: int
    trace_flags: int
    local_root_id: int = 0
    endpoint: str = ""


class DataType(Enum):
    """The subject of a profile. Each profile has one, because values of different types do not relate."""

    CPU = "cpu"
    ALLOCATION = "allocation"


class ValueType(NamedTuple):
    """The name of a sample value, and its unit in pprof's terms (``count``, ``nanoseconds``, ``bytes``)."""

    name: str
    unit: str


@dataclass(frozen=True, slots=True)
class EventKind:
    """A kind of event that triggers samples, besides the timer.

    Attributes:
        name: unique name of the kind, as samples carry it (``source.event.name``).
        count: name and unit of the number of events; unique among kinds.
        amount: name and unit of the resource the events used; unique among kinds. None: they are only counted.
    """

    name: str
    count: ValueType
    amount: ValueType | None = None
    data_type: DataType = DataType.CPU

    @property
    def values(self) -> tuple[ValueType, ...]:
        """The values of its samples, in order."""
        return (self.count,) if self.amount is None else (self.count, self.amount)


@dataclass(slots=True, unsafe_hash=True)  # not frozen: that takes four times as long to make
class Event:
    """The event that triggered a sample.

    Attributes:
        labels: few distinct labels, under reserved names (`user_labels/sample_labels`).
        count: number of events the sample stands for: this one and those without a sample.
        amount: resource they used together, in the unit of the kind (``gc``: nanoseconds); 0 if it has none.
    """

    kind: EventKind
    labels: tuple[tuple[str, str | int], ...]
    count: int
    amount: int


class RecordCounters(NamedTuple):
    """Numbers of records since the start.

    Attributes:
        recorded: put into the queue.
        delivered: accepted by the receiver.
        queue_full: dropped, oldest first, because the queue was full.
        rejected: dropped because the receiver refused them for good.
        lost_at_exit: not delivered when the process ended.
        waiting: in the queue or in flight.
    """

    recorded: int = 0
    delivered: int = 0
    queue_full: int = 0
    rejected: int = 0
    lost_at_exit: int = 0
    waiting: int = 0

    @property
    def dropped(self) -> int:
        """Records that are lost for any reason."""
        return self.queue_full + self.rejected + self.lost_at_exit
