"""A profile as messages of pprof's ``profile.proto``, gzipped, and in base64 for a log record.

Pure: data in, bytes out; imports the model and its own wire format. Runs on the exporting thread, in slices where the
caller passes in what lets others run. What samples share (texts, functions, places in the code, labels) is encoded
once for all of them, so that a sample is a few look-ups and a join.

Specification: ``proto/profile.proto`` of the pprof project; labels and body: Splunk profiling conventions,
``pprof-gzip-base64``.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace

from splunk_profiler.formats import profile_proto as proto
from splunk_profiler.formats.profile_proto import field, number, varint
from splunk_profiler.model import Aggregate, Frame, Profile, Stack

MOST_BODY_BYTES = 1 << 20

_LEVEL = 6
_GZIP = 16 + zlib.MAX_WBITS  # with gzip's header, in which zlib leaves time and name empty
_SLICE = 64  # samples between two calls of `pause`
_INT64 = range(-(1 << 63), 1 << 63)
_UNITS = {"source.event.period": "milliseconds"}  # not of source.event.time: a time of day would be shown in hours


@dataclass(frozen=True, slots=True)
class Part:
    """A profile, or as much of one as fits into a body, complete in itself.

    Attributes:
        gzipped: the message as `go tool pprof` reads it from a file.
        frame_count: frames of all its samples (``profiling.data.total.frame.count``).
    """

    gzipped: bytes
    frame_count: int


def parts(
    profile: Profile, *, most_body_bytes: int = MOST_BODY_BYTES, pause: Callable[[], None] = lambda: None
) -> list[Part]:
    """`profile` in as many parts as its size takes, which together have every sample once.

    Args:
        profile: what to encode.
        most_body_bytes: how long the `body` of a part may be. A part of one sample is as long as it is.
        pause: called again and again in between, so that other threads may run.
    """
    encoded, frame_count = _encode(profile, pause)
    compressor = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP)
    gzipped = compressor.compress(encoded) + compressor.flush()
    count = len(profile.aggregates)
    times = 4 * -(-len(gzipped) // 3) / most_body_bytes
    if times <= 1 or count <= 1:
        return [Part(gzipped, frame_count)]
    each = -(-count // min(int(1.2 * times) + 1, count))  # more than `times`: parts repeat what they have in common
    found = []
    for first in range(0, count, each):
        part = replace(
            profile,
            aggregates=profile.aggregates[first : first + each],
            dropped_labels=0 if first else profile.dropped_labels,
        )
        found += parts(part, most_body_bytes=most_body_bytes, pause=pause)
    return found


def body(part: Part) -> str:
    """The body of a log record whose ``profiling.data.format`` is ``pprof-gzip-base64``."""
    return base64.b64encode(part.gzipped).decode("ascii")


def message(profile: Profile) -> bytes:
    """`profile` as one message, however long, not compressed."""
    return _encode(profile, lambda: None)[0]


def _encode(profile: Profile, pause: Callable[[], None]) -> tuple[bytes, int]:
    """The message, and how many frames its samples have."""
    strings = _Strings()
    nanoseconds = strings["nanoseconds"]
    wall = _value_type(strings["wall"], nanoseconds)
    pieces = [
        field(proto.PROFILE_SAMPLE_TYPE, _value_type(strings["samples"], strings["count"])),
        field(proto.PROFILE_SAMPLE_TYPE, wall),
        field(proto.PROFILE_SAMPLE_TYPE, _value_type(strings["cpu"], nanoseconds)),
    ]
    locations = _Locations(strings)
    stacks = _Stacks(locations)
    labels = _Labels(strings)
    frame_count = 0
    for counted, aggregate in enumerate(profile.aggregates, 1):
        if counted % _SLICE == 0:
            pause()
        pieces.append(field(proto.PROFILE_SAMPLE, _sample(aggregate, stacks, labels)))
        frame_count += len(aggregate.stack.frames)
    comment = b""
    if profile.dropped_labels:
        said = f"{profile.dropped_labels} samples have fewer labels than they were taken with: there were too many"
        comment = field(proto.PROFILE_COMMENT, strings[said])
    pieces += (
        field(proto.PROFILE_MAPPING, _mapping(strings["python"])),
        *locations.encoded,
        *locations.functions.encoded,
        *strings.encoded,
        number(proto.PROFILE_TIME_NANOS, profile.time_ns),
        number(proto.PROFILE_DURATION_NANOS, profile.duration_ns),
        field(proto.PROFILE_PERIOD_TYPE, wall),
        number(proto.PROFILE_PERIOD, profile.period_ns),
        comment,
        proto.PROFILE_DEFAULT_SAMPLE_TYPE + strings["cpu"],
    )
    return b"".join(pieces), frame_count


def _sample(aggregate: Aggregate, stacks: _Stacks, labels: _Labels) -> bytes:
    values = varint(aggregate.count) + varint(aggregate.wall_ns) + varint(aggregate.cpu_ns)
    return b"".join(
        (stacks[aggregate.stack], field(proto.SAMPLE_VALUE, values), *[labels[label] for label in aggregate.labels])
    )


def _value_type(kind: bytes, unit: bytes) -> bytes:
    return proto.VALUE_TYPE_TYPE + kind + proto.VALUE_TYPE_UNIT + unit


def _mapping(filename: bytes) -> bytes:
    """The only one, number 1: all names, files and lines are known, so that no reader looks for symbols."""
    return b"".join(
        (
            number(proto.MAPPING_ID, 1),
            proto.MAPPING_FILENAME + filename,
            number(proto.MAPPING_HAS_FUNCTIONS, 1),
            number(proto.MAPPING_HAS_FILENAMES, 1),
            number(proto.MAPPING_HAS_LINE_NUMBERS, 1),
        )
    )


class _Strings(dict[str, bytes]):
    """Text → its index in the table of strings, as a varint. The table grows as it is asked; 0 is the empty text."""

    def __init__(self) -> None:
        super().__init__({"": varint(0)})
        self.encoded = [field(proto.PROFILE_STRING_TABLE, b"")]

    def __missing__(self, text: str) -> bytes:
        index = self[text] = varint(len(self))
        self.encoded.append(field(proto.PROFILE_STRING_TABLE, _printable(text).encode()))
        return index


class _Functions(dict[tuple[str, str, str, int], int]):
    """(namespace, function, file, first line) → the function's id."""

    def __init__(self, strings: _Strings) -> None:
        super().__init__()
        self.encoded: list[bytes] = []
        self._strings = strings

    def __missing__(self, key: tuple[str, str, str, int]) -> int:
        namespace, function, file, first_line = key
        strings = self._strings
        function_id = self[key] = len(self) + 1
        # If both names were the same, `go tool pprof` would take "<locals>" for the arguments of a C++ template and
        # leave it out.
        fields = (
            number(proto.FUNCTION_ID, function_id),
            proto.FUNCTION_NAME + strings[f"{namespace}.{function}"],
            proto.FUNCTION_SYSTEM_NAME + strings[function],
            proto.FUNCTION_FILENAME + strings[file],
            number(proto.FUNCTION_START_LINE, first_line),
        )
        self.encoded.append(field(proto.PROFILE_FUNCTION, b"".join(fields)))
        return function_id


class _Locations(dict[Frame, bytes]):
    """Frame → the id of its location as a varint, the same one for frames that say the same."""

    def __init__(self, strings: _Strings) -> None:
        super().__init__()
        self.functions = _Functions(strings)
        self.encoded: list[bytes] = []
        self._of_lines: dict[tuple[int, int], bytes] = {}

    def __missing__(self, frame: Frame) -> bytes:
        function_id = self.functions[frame.namespace, frame.function, frame.file, frame.first_line]
        line = frame.line or 0
        location_id = self._of_lines.get((function_id, line))
        if location_id is None:
            location_id = self._of_lines[function_id, line] = varint(len(self._of_lines) + 1)
            place = number(proto.LINE_FUNCTION_ID, function_id) + number(proto.LINE_LINE, line)
            fields = (
                proto.LOCATION_ID + location_id,
                number(proto.LOCATION_MAPPING_ID, 1),
                field(proto.LOCATION_LINE, place),
            )
            self.encoded.append(field(proto.PROFILE_LOCATION, b"".join(fields)))
        self[frame] = location_id
        return location_id


class _Stacks(dict[Stack, bytes]):
    """Stack → a sample's field with its locations, leaf first."""

    def __init__(self, locations: _Locations) -> None:
        super().__init__()
        self._locations = locations

    def __missing__(self, stack: Stack) -> bytes:
        locations = self._locations
        ids = b"".join([locations[frame] for frame in stack.frames])
        found = self[stack] = field(proto.SAMPLE_LOCATION_ID, ids)
        return found


class _Labels(dict[tuple[str, str | int], bytes]):
    """(key, value) → a sample's field with this label; nothing for an empty text, which would read as the number 0."""

    def __init__(self, strings: _Strings) -> None:
        super().__init__()
        self._strings = strings

    def __missing__(self, label: tuple[str, str | int]) -> bytes:
        key, value = label
        strings = self._strings
        if not isinstance(value, str) and value not in _INT64:
            value = str(value)
        if isinstance(value, str):
            content = proto.LABEL_STR + strings[value]
        else:
            content = number(proto.LABEL_NUM, value)
            if (unit := _UNITS.get(key)) is not None:
                content += proto.LABEL_NUM_UNIT + strings[unit]
        found = field(proto.SAMPLE_LABEL, proto.LABEL_KEY + strings[key] + content) if value != "" else b""
        self[label] = found
        return found


def _printable(text: str) -> str:
    """`text`, with what UTF-8 cannot carry and what a terminal would obey written out."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
