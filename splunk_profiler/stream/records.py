"""The records of a stream, described once: writers, readers and documentation follow from these classes.

A stream is `HEADER`, then records; after any record it may begin anew with `HEADER`. A record is the
length of the rest (4 bytes), the number of its type (1 byte) and its fields in the order of the
class: first those of fixed size, then the others. Numbers are little-endian. A text is its length
(4 bytes) and UTF-8. A list is the number of its items (4 bytes) and the items.

Frames, stacks, threads, spans, labels and kinds of events are defined before a record refers to
them, by numbers from 1; 0 refers to nothing. The same number may be defined again, with other
content. After each record of `TRIMMING`, the last `CAPACITY` definitions of each type stay valid, of
stacks no more than have `MAX_STACK_FRAMES` together; a reader drops older ones, and a writer defines
them anew. So all that one snapshot refers to is valid.

Times of day are nanoseconds since the epoch; instants are on the boot-time clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate
from typing import Annotated, Any, NamedTuple, get_args

BYTES_KEY = "\0bytes"  # in a JSON object
HEADER = b"SPLPROF\x06"  # the last byte is the version
MAX_RECORD_BYTES = 4 << 20  # of one record; a snapshot of 100,000 changed threads fits
CAPACITY = {"frame": 16_384, "stack": 4096, "thread": 65_536, "span": 1024, "label set": 1024, "kind": 64}
MAX_QUIET_DEADLINES = 4096  # of one record; a reader may make a snapshot for each
MAX_STACK_FRAMES = 1 << 19  # 4 MiB of references; 4096 stacks of 128

U8 = Annotated[int, "B"]
U32 = Annotated[int, "I"]
U64 = Annotated[int, "Q"]
I8 = Annotated[int, "b"]
I64 = Annotated[int, "q"]
TraceId = Annotated[int, "16s"]  # big-endian, as in trace headers


class StartRecord(NamedTuple):
    """The start of the stream of a process, with its settings as a JSON object."""

    settings: str


class ResourceRecord(NamedTuple):
    """The resource of the process from now on: attributes as a JSON object, and the URL of their schema.

    `is_final` is 0 while the service has set none: then these are what the profiler adds to the detected one. Bytes
    among the attributes are an object with the key `BYTES_KEY` and their hexadecimal digits.
    """

    is_final: U8
    attributes: str
    schema_url: str


class FrameRecord(NamedTuple):
    """Definition of a frame; `line` and `first_line` are 0 if not known, `call` is that of `Frame`."""

    id: U32
    line: U32
    first_line: U32
    namespace: str
    function: str
    file: str
    call: str


class StackRecord(NamedTuple):
    """Definition of a stack: its frames, leaf first; `truncated` is 1 if frames at the root end are missing."""

    id: U32
    truncated: U8
    frames: list[U32]


class ThreadRecord(NamedTuple):
    """Definition of a thread, or its new name. It started between two instants, which are 0 if not known."""

    id: U32
    ident: U64
    native_id: U32
    earliest_start_ns: I64
    latest_start_ns: I64
    name: str


class SpanRecord(NamedTuple):
    """Definition of a span, with the id and name of its local root as far as they are known."""

    id: U32
    trace_id: TraceId
    span_id: U64
    trace_flags: U8
    local_root_id: U64
    endpoint: str


class LabelsRecord(NamedTuple):
    """Definition of a set of user labels: names and values in turn."""

    id: U32
    texts: list[str]


class EventKindRecord(NamedTuple):
    """Definition of a kind of events: names and units of one or two values, and the subject of its profile."""

    id: U32
    name: str
    count_name: str
    count_unit: str
    amount_name: str
    amount_unit: str
    data_type: str


class ThreadEntry(NamedTuple):
    """A thread of a snapshot; `state` is -1 if not known, else as in `RawThread`; `nice` is its nice value."""

    thread: U32
    stack: U32
    span: U32
    labels: U32
    cpu_ns: U64
    state: I8
    nice: I8


CHANGES, COMPLETE, FOCUSED = 0, 1, 2  # `SnapshotRecord.scope`


class SnapshotRecord(NamedTuple):
    """Threads at one instant.

    Its request for the GIL waited `gil_wait_ns`. Of scope `CHANGES` it lists the threads that differ from
    the previous snapshot and those that have ended; `idle` others are as they were. Of scope `COMPLETE` it
    lists all threads, of scope `FOCUSED` those of selected traces.
    """

    time_ns: I64
    instant_ns: I64
    latency_ns: U64
    period_ns: U64
    since_previous_ns: U64
    process_cpu_ns: U64
    gil_wait_ns: U64
    scope: U8
    idle: U32
    threads: list[ThreadEntry]
    ended: list[U32]


class EventRecord(NamedTuple):
    """An event, with its thread as it was then; `event_labels` is a JSON object.

    `live_id` is the number of what it has allocated, until a `FreedBlocksRecord` has that; 0: its end is not recorded.
    """

    time_ns: I64
    instant_ns: I64
    thread: U32
    stack: U32
    span: U32
    labels: U32
    kind: U32
    event_count: U64
    event_amount: U64
    live_id: U64
    event_labels: str


class FreedBlocksRecord(NamedTuple):
    """The end of blocks: the memory of these events is no longer in use."""

    live_ids: list[U64]


class EndpointRecord(NamedTuple):
    """The name that a local root has now."""

    local_root_id: U64
    name: str


class QuietRecord(NamedTuple):
    """4,096 deadlines at most, `period_ns` apart, since the previous snapshot, at which all threads were as there.

    The times are those of the last of these deadlines.
    """

    time_ns: I64
    instant_ns: I64
    period_ns: U64
    process_cpu_ns: U64
    deadline_count: U32


class TraceRecord(NamedTuple):
    """A trace is selected: the time of its entry, the ident of the thread and the CPU time this had used."""

    trace_id: TraceId
    time_ns: I64
    ident: U64
    cpu_ns: U64


class TraceEndRecord(NamedTuple):
    """A selected trace has ended."""

    trace_id: TraceId
    time_ns: I64


class LostRecord(NamedTuple):
    """Captures before this one are missing, among them so many snapshots."""

    snapshots: U64


class EndRecord(NamedTuple):
    """The end of sampling, with the CPU time of the process; the time since the last snapshot is in no sample.

    The process waits for `timeout_ns` until everything is sent on.
    """

    time_ns: I64
    instant_ns: I64
    process_cpu_ns: U64
    timeout_ns: U64


Record = (
    StartRecord
    | ResourceRecord
    | FrameRecord
    | StackRecord
    | ThreadRecord
    | SpanRecord
    | LabelsRecord
    | EventKindRecord
    | SnapshotRecord
    | EventRecord
    | EndpointRecord
    | TraceRecord
    | TraceEndRecord
    | LostRecord
    | EndRecord
    | FreedBlocksRecord
    | QuietRecord
)
TRIMMING = (SnapshotRecord, EventRecord, LostRecord)  # after these, older definitions are dropped
RECORD_TYPES: tuple[type[Any], ...] = get_args(Record)  # the number of a type is its place, from 1


def count_oldest(sizes: Iterable[int], excess: int) -> int:
    """Return how many of the oldest definitions, with these sizes, have to go to be rid of `excess`."""
    return next(count for count, size in enumerate(accumulate(sizes, initial=0)) if size >= excess)
