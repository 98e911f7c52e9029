"""A profile as messages of pprof's ``profile.proto``, gzipped, and in base64 for a log record.

Pure: data in, bytes out; imports the model and its wire format. Runs on the exporting thread. Strings,
functions, locations and labels are encoded once and shared, so a sample costs a few look-ups and a join.

Specification: ``proto/profile.proto`` of the pprof project; labels and body: Splunk profiling conventions,
``pprof-gzip-base64``.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from splunk_profiler.formats import profile_proto as proto
from splunk_profiler.formats.profile_proto import field, number, varint
from splunk_profiler.model import Aggregate, CodeOrigin, DataType, Frame, OriginKind, Profile, Stack

MAX_BODY_BYTES = 1 << 20
MAX_TEXT_CHARACTERS = 4096  # of one text; each part of a profile repeats the texts of its samples
VALUE_TYPES = ("samples", "wall", "cpu")

_GZIP_LEVEL = 2  # takes a third of the time of level 6, the default, for 5 to 8 % longer bodies
_GZIP_WBITS = 16 + zlib.MAX_WBITS  # with a gzip header, without time and name
_PAUSE_EVERY = 64  # samples between two calls of `pause`
_INT64 = range(-(1 << 63), 1 << 63)
# Without source.event.time: readers would show a time of day in hours.
_LABEL_UNITS = {"source.event.period": "milliseconds"}
_NO_EVENT = 2 * varint(0)
_UNKNOWN = CodeOrigin(OriginKind.UNKNOWN)

OriginOf = Callable[[str, str], CodeOrigin]  # by file and namespace of a frame

_Key = TypeVar("_Key")
_FunctionKey = tuple[str, str, str, int]  # namespace, name, file, first line
_LocationKey = tuple[bytes, int, bytes]  # id of the function, line, id of the mapping


@dataclass(frozen=True, slots=True)
class EncodedPart:
    """A complete message for a profile, or for as much of one as fits into a body.

    `frame_count` is that of all samples (``profiling.data.total.frame.count``).
    """

    gzipped: bytes
    frame_count: int


def parts(
    profile: Profile,
    *,
    max_body_bytes: int = MAX_BODY_BYTES,
    pause: Callable[[], None] = lambda: None,
    origin_of: OriginOf = lambda _file, _namespace: _UNKNOWN,
) -> list[EncodedPart]:
    """Encode `profile` in as many parts as its size needs; together they have every sample once.

    A part's `body` has at most `max_body_bytes`, unless it has a single sample. `pause` is called
    repeatedly, to let other threads run. `origin_of` is called once for each frame, whose mapping it names.
    """
    encoded_whole = encode_whole(profile, pause=pause, origin_of=origin_of)
    count = len(profile.aggregates)
    times = 4 * -(-len(encoded_whole.gzipped) // 3) / max_body_bytes
    if times <= 1 or count <= 1:
        return [encoded_whole]
    each = -(-count // min(int(1.2 * times) + 1, count))  # more than `times`: each part repeats shared data
    found = []
    for first in range(0, count, each):
        part = replace(
            profile,
            aggregates=profile.aggregates[first : first + each],
            dropped_labels=0 if first else profile.dropped_labels,
        )
        found += parts(part, max_body_bytes=max_body_bytes, pause=pause, origin_of=origin_of)
    return found


def encode_whole(
    profile: Profile,
    *,
    pause: Callable[[], None] = lambda: None,
    value_types: tuple[str, str, str] = VALUE_TYPES,
    origin_of: OriginOf = lambda _file, _namespace: _UNKNOWN,
    comments: tuple[str, ...] = (),
) -> EncodedPart:
    """Encode `profile` in one part, however long.

    `value_types` name the number of samples, their wall time and their CPU time, if the profile has these.
    """
    strings: _IdTable[str] = _IdTable(0)
    _ = strings[""]  # must have the id 0
    values = _SampleValues(profile, value_types, strings)
    functions: _IdTable[_FunctionKey] = _IdTable(1)
    location_ids: _IdTable[_LocationKey] = _IdTable(1)
    mappings: _IdTable[CodeOrigin] = _IdTable(1)
    _ = mappings[_UNKNOWN]  # the first mapping names the profile
    stacks = _Stacks(_Locations(functions, location_ids, mappings, origin_of))
    labels = _Labels(strings)
    pieces = [field(proto.PROFILE_SAMPLE_TYPE, each) for each in values.types]
    frame_count = 0
    for counted, aggregate in enumerate(profile.aggregates, 1):
        if counted % _PAUSE_EVERY == 0:
            pause()
        content = field(proto.SAMPLE_VALUE, values.encode_values(aggregate))
        sample = b"".join((stacks[aggregate.stack], content, *[labels[label] for label in aggregate.labels]))
        pieces.append(field(proto.PROFILE_SAMPLE, sample))
        frame_count += len(aggregate.stack.frames)
    if profile.dropped_labels:
        note = f"{profile.dropped_labels} samples have fewer labels than they were taken with: there were too many"
        comments = (*comments, note)
    comment = field(proto.PROFILE_COMMENT, b"".join(strings[note] for note in comments)) if comments else b""
    pieces += [_mapping(origin, encoded_id, strings) for origin, encoded_id in mappings.items()]
    pieces += [_location(*place, encoded_id) for place, encoded_id in location_ids.items()]
    pause()
    pieces += [_function(function, encoded_id, strings) for function, encoded_id in functions.items()]
    pause()
    # Last, when all have ids.
    pieces += [field(proto.PROFILE_STRING_TABLE, _printable(text).encode()) for text in strings]
    pieces += (
        number(proto.PROFILE_TIME_NANOS, profile.time_ns),
        number(proto.PROFILE_DURATION_NANOS, profile.duration_ns),
        values.period,
        comment,
        values.default_type,
    )
    compressor = zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, _GZIP_WBITS)
    return EncodedPart(compressor.compress(b"".join(pieces)) + compressor.flush(), frame_count)


def body(part: EncodedPart) -> str:
    """Return the body of a log record with the ``profiling.data.format`` ``pprof-gzip-base64``."""
    return base64.b64encode(part.gzipped).decode("ascii")


def _value_type(kind: bytes, unit: bytes) -> bytes:
    return proto.VALUE_TYPE_TYPE + kind + proto.VALUE_TYPE_UNIT + unit


def _mapping(origin: CodeOrigin, encoded_id: bytes, strings: _IdTable[str]) -> bytes:
    """Encode a distribution; the flags for names, files and lines keep readers from looking for symbols."""
    content = proto.MAPPING_ID + encoded_id + proto.MAPPING_FILENAME + strings[_mapping_name(origin)]
    if origin.name and origin.version:  # unique, since readers merge mappings with equal build ids
        content += proto.MAPPING_BUILD_ID + strings[f"{origin.name}=={origin.version}"]
    for known in (proto.MAPPING_HAS_FUNCTIONS, proto.MAPPING_HAS_FILENAMES, proto.MAPPING_HAS_LINE_NUMBERS):
        content += number(known, 1)
    return field(proto.PROFILE_MAPPING, content)


def _mapping_name(origin: CodeOrigin) -> str:
    """Return a name such as ``library/requests``, which filters of `go tool pprof` can match."""
    if origin.kind is OriginKind.UNKNOWN:
        return "python"
    kind = origin.kind.value.replace(" ", "-")
    return f"{kind}/{origin.name}" if origin.name else kind


def _location(function_id: bytes, line: int, mapping_id: bytes, encoded_id: bytes) -> bytes:
    content = proto.LOCATION_ID + encoded_id + proto.LOCATION_MAPPING_ID + mapping_id
    content += field(proto.LOCATION_LINE, proto.LINE_FUNCTION_ID + function_id + number(proto.LINE_LINE, line))
    return field(proto.PROFILE_LOCATION, content)


def _function(function: _FunctionKey, encoded_id: bytes, strings: _IdTable[str]) -> bytes:
    namespace, name, file, first_line = function
    # With equal names, `go tool pprof` would read them as C++ and remove "<frozen runpy>" as template arguments.
    content = proto.FUNCTION_ID + encoded_id + proto.FUNCTION_NAME + strings[f"{namespace}.{name}"]
    content += proto.FUNCTION_SYSTEM_NAME + strings[name] + proto.FUNCTION_FILENAME + strings[file]
    return field(proto.PROFILE_FUNCTION, content + number(proto.FUNCTION_START_LINE, first_line))


class _IdTable(dict[_Key, bytes]):
    """Ids as varints by key; each new key gets the next id, from `first`."""

    def __init__(self, first: int) -> None:
        self._first = first

    def __missing__(self, key: _Key) -> bytes:
        found = self[key] = varint(len(self) + self._first)
        return found


class _SampleValues:
    """The value types of a profile: three of the timer, if it has its data type, then two for each kind of event."""

    def __init__(self, profile: Profile, timer: tuple[str, str, str], strings: _IdTable[str]) -> None:
        self._has_timer = profile.data_type is DataType.CPU
        self._places = {kind: place for place, kind in enumerate(profile.kinds)}
        self._no_event_values = len(profile.kinds) * _NO_EVENT
        self.types: list[bytes] = []
        self.period = self.default_type = b""
        if self._has_timer:
            samples, count, wall, cpu, ns = (strings[text] for text in (timer[0], "count", *timer[1:], "nanoseconds"))
            self.types = [_value_type(samples, count), _value_type(wall, ns), _value_type(cpu, ns)]
            self.period = field(proto.PROFILE_PERIOD_TYPE, self.types[1])
            self.period += number(proto.PROFILE_PERIOD, profile.period_ns)
            self.default_type = proto.PROFILE_DEFAULT_SAMPLE_TYPE + cpu
        elif profile.kinds:
            self.default_type = proto.PROFILE_DEFAULT_SAMPLE_TYPE + strings[profile.kinds[0].amount.name]
        for kind in profile.kinds:
            self.types += [_value_type(strings[each.name], strings[each.unit]) for each in (kind.count, kind.amount)]

    def encode_values(self, aggregate: Aggregate) -> bytes:
        """Encode the values of one sample; raises `KeyError` for a kind of event that the profile lacks."""
        values = b""
        if self._has_timer:
            values = varint(aggregate.count) + varint(aggregate.wall_ns) + varint(aggregate.cpu_ns)
        if aggregate.kind is None:
            return values + self._no_event_values
        place = self._places[aggregate.kind]
        values += place * _NO_EVENT + varint(aggregate.event_count) + varint(aggregate.event_amount)
        return values + (len(self._places) - place - 1) * _NO_EVENT


class _Locations(dict[Frame, bytes]):
    """Location ids as varints by frame; frames with equal content have the same."""

    def __init__(
        self,
        functions: _IdTable[_FunctionKey],
        location_ids: _IdTable[_LocationKey],
        mappings: _IdTable[CodeOrigin],
        origin_of: OriginOf,
    ) -> None:
        self._functions, self._location_ids, self._mappings = functions, location_ids, mappings
        self._origin_of = origin_of

    def __missing__(self, frame: Frame) -> bytes:
        function_id = self._functions[frame.namespace, frame.function, frame.file, frame.first_line]
        mapping_id = self._mappings[self._origin_of(frame.file, frame.namespace)]
        found = self[frame] = self._location_ids[function_id, frame.line or 0, mapping_id]
        return found


class _Stacks(dict[Stack, bytes]):
    """Fields with the locations of a sample, leaf first, by stack."""

    def __init__(self, locations: _Locations) -> None:
        self._locations = locations

    def __missing__(self, stack: Stack) -> bytes:
        locations = self._locations
        found = self[stack] = field(proto.SAMPLE_LOCATION_ID, b"".join([locations[frame] for frame in stack.frames]))
        return found


class _Labels(dict[tuple[str, str | int], bytes]):
    """Fields with a label of a sample, by key and value; none for an empty text, which would read as the number 0."""

    def __init__(self, strings: _IdTable[str]) -> None:
        self._strings = strings

    def __missing__(self, label: tuple[str, str | int]) -> bytes:
        (key, value), strings = label, self._strings
        if not isinstance(value, str) and value not in _INT64:
            value = str(value)
        if isinstance(value, str):
            content = proto.LABEL_STR + strings[value]
        else:
            content = number(proto.LABEL_NUM, value)
            if (unit := _LABEL_UNITS.get(key)) is not None:
                content += proto.LABEL_NUM_UNIT + strings[unit]
        found = self[label] = (
            field(proto.SAMPLE_LABEL, proto.LABEL_KEY + strings[key] + content) if value != "" else b""
        )
        return found


def _printable(text: str) -> str:
    """Return `text`, shortened if too long, with unprintable characters and surrogates escaped."""
    if len(text) > MAX_TEXT_CHARACTERS:
        text = text[: MAX_TEXT_CHARACTERS - 1] + "…"
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
