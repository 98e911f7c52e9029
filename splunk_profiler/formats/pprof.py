"""A profile as messages of pprof's ``profile.proto``, gzipped, and in base64 for a log record.

Pure: data in, bytes out. Runs on the exporting thread. Equal strings, functions, locations and stacks are encoded
once and shared.

Specification: ``proto/profile.proto`` of the pprof project; labels and body: Splunk profiling conventions,
``pprof-gzip-base64``.
"""

from __future__ import annotations

import base64
import gzip
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any, TypeVar

from splunk_profiler.formats.pauses import iter_with_pauses
from splunk_profiler.formats.profile_proto import ProfileMessage
from splunk_profiler.formats.wire import field, tag, varint
from splunk_profiler.model import DataType, EventKind, Frame, Stack
from splunk_profiler.samples import Aggregate, CodeOrigin, OriginKind, Profile

MAX_BODY_BYTES = 1 << 20
MAX_TEXT_CHARACTERS = 4096  # of one text; each part of a profile repeats the texts of its samples
VALUE_TYPES = ("samples", "wall", "cpu")

_GZIP_LEVEL = 2  # takes a third of the time of level 6, the default, for 5 to 8 % longer bodies
# On the wire: samples and strings are joined of encoded parts, since a message object costs several times that.
_SAMPLE, _STRING = tag(2), tag(6)  # of Profile
_LOCATION_ID, _VALUE, _LABEL = tag(1), tag(2), tag(3)  # of Sample
_LABEL_KEY, _LABEL_TEXT, _LABEL_NUMBER, _LABEL_UNIT = b"\x08", b"\x10", b"\x18", b"\x20"  # of Label
_INT64 = range(-(1 << 63), 1 << 63)
# Without source.event.time: readers would show a time of day in hours.
_LABEL_UNITS = {"source.event.period": "milliseconds"}
_UNKNOWN = CodeOrigin(OriginKind.UNKNOWN)

OriginOf = Callable[[str, str], CodeOrigin]  # by file and namespace of a frame

_T = TypeVar("_T")
_FunctionKey = tuple[str, str, str, int]  # namespace, name, file, first line
_LocationKey = tuple[int, int, int]  # id of the function, line, id of the mapping


@dataclass(frozen=True, slots=True)
class EncodedPart:
    """A complete message for a profile, or for as much of one as fits into a body.

    `frame_count` is that of all samples (``profiling.data.total.frame.count``).
    """

    gzipped: bytes
    frame_count: int


class _Encoded(dict[_T, bytes]):
    """Encoded parts of a profile; each is encoded once, at its first look-up."""

    def __init__(self, encode: Callable[[_T], bytes]) -> None:
        super().__init__()
        self._encode = encode

    def __missing__(self, key: _T) -> bytes:
        encoded = self[key] = self._encode(key)
        return encoded


def parts(
    profile: Profile,
    *,
    max_body_bytes: int = MAX_BODY_BYTES,
    pause: Callable[[], None] | None = None,
    origin_of: OriginOf | None = None,
) -> list[EncodedPart]:
    """Encode `profile` in as many parts as its size needs; together they have every sample once.

    A part's `body` has at most `max_body_bytes`, unless it has a single sample. `pause` is called
    repeatedly, to let other threads run. `origin_of` is called once for each frame, whose mapping it names.
    """
    encoded_whole = encode_whole(profile, pause=pause, origin_of=origin_of)
    total = len(profile.aggregates)
    times = 4 * -(-len(encoded_whole.gzipped) // 3) / max_body_bytes
    if times <= 1 or total <= 1:
        return [encoded_whole]
    each = -(-total // min(int(1.2 * times) + 1, total))  # more than `times`: each part repeats shared data
    found = []
    for first in range(0, total, each):
        part = replace(
            profile,
            aggregates=profile.aggregates[first : first + each],
            dropped_labels=0 if first else profile.dropped_labels,
            comments=() if first else profile.comments,
        )
        found += parts(part, max_body_bytes=max_body_bytes, pause=pause, origin_of=origin_of)
    return found


def encode_whole(
    profile: Profile,
    *,
    pause: Callable[[], None] | None = None,
    value_types: tuple[str, str, str] = VALUE_TYPES,
    origin_of: OriginOf | None = None,
    comments: tuple[str, ...] = (),
) -> EncodedPart:
    """Encode `profile` in one part, however long.

    `value_types` name the number of samples, their wall time and their CPU time, if the profile has these.
    """
    # Each new key gets the next id.
    strings: dict[str, int] = defaultdict(count(0).__next__)
    _ = strings[""]  # must have the id 0
    tables = ProfileMessage(time_nanos=profile.time_ns, duration_nanos=profile.duration_ns)
    _add_value_types(tables, profile, value_types, strings)
    functions: dict[_FunctionKey, int] = defaultdict(count(1).__next__)
    locations: dict[_LocationKey, int] = defaultdict(count(1).__next__)
    mappings: dict[CodeOrigin, int] = defaultdict(count(1).__next__)
    _ = mappings[_UNKNOWN]  # the first mapping names the profile
    location_ids = _Encoded(partial(_encode_location, functions, locations, mappings, origin_of))
    stacks, labels = _Encoded(partial(_encode_stack, location_ids)), _Encoded(partial(_encode_label, strings))
    event_values = [each for kind in profile.kinds for each in kind.values]
    event_places = {kind: event_values.index(kind.count) for kind in profile.kinds}
    pieces = []  # messages in a row are read as one
    for aggregate in iter_with_pauses(profile.aggregates, pause):
        own_labels = map(labels.__getitem__, aggregate.labels)
        values = field(_VALUE, b"".join(map(varint, _values(aggregate, profile, event_places, len(event_values)))))
        pieces.append(field(_SAMPLE, b"".join((stacks[aggregate.stack], values, *own_labels))))
    comments = (*comments, *profile.comments)
    if profile.dropped_labels:
        note = f"{profile.dropped_labels} samples have fewer labels than they were taken with: there were too many"
        comments = (*comments, note)
    tables.comment.extend(strings[note] for note in comments)
    for origin, mapping_id in mappings.items():
        _add_mapping(tables, origin, mapping_id, strings)
    for (function_id, line, mapping_id), id_ in iter_with_pauses(locations.items(), pause):
        tables.location.add(id=id_, mapping_id=mapping_id).line.add(function_id=function_id, line=line)
    for function, function_id in iter_with_pauses(functions.items(), pause):
        _add_function(tables, function, function_id, strings)
    pieces.append(tables.SerializeToString())
    # Last, when all have ids.
    pieces += [field(_STRING, _printable(text).encode()) for text in iter_with_pauses(strings, pause)]
    frame_count = sum(len(aggregate.stack.frames) for aggregate in profile.aggregates)
    return EncodedPart(gzip.compress(b"".join(pieces), _GZIP_LEVEL, mtime=0), frame_count)


def body(part: EncodedPart) -> bytes:
    """Return the body of a log record with the ``profiling.data.format`` ``pprof-gzip-base64``, in ASCII."""
    return base64.b64encode(part.gzipped)


def _add_value_types(tables: Any, profile: Profile, timer: tuple[str, str, str], strings: dict[str, int]) -> None:
    """Add three value types of the timer, if the profile has its data type, then those of each kind of event."""
    if profile.data_type is DataType.CPU:
        samples, count, wall, cpu, ns = (strings[text] for text in (timer[0], "count", *timer[1:], "nanoseconds"))
        for kind, unit in ((samples, count), (wall, ns), (cpu, ns)):
            tables.sample_type.add(type=kind, unit=unit)
        tables.period_type.CopyFrom(tables.sample_type[1])
        tables.period = profile.period_ns
        tables.default_sample_type = cpu
    elif profile.kinds:
        tables.default_sample_type = strings[profile.kinds[0].values[-1].name]
    for event_kind in profile.kinds:
        for each in event_kind.values:
            tables.sample_type.add(type=strings[each.name], unit=strings[each.unit])


def _values(
    aggregate: Aggregate, profile: Profile, event_places: dict[EventKind, int], event_value_count: int
) -> list[int]:
    """Return the values of one sample; raises `KeyError` for a kind of event that the profile lacks."""
    events = [0] * event_value_count
    if aggregate.kind is not None:
        place, amounts = event_places[aggregate.kind], (aggregate.event_count, aggregate.event_amount)
        events[place : place + len(aggregate.kind.values)] = amounts[: len(aggregate.kind.values)]
    if profile.data_type is not DataType.CPU:
        return events
    return [aggregate.count, aggregate.wall_ns, aggregate.cpu_ns, *events]


def _encode_location(
    functions: dict[_FunctionKey, int],
    locations: dict[_LocationKey, int],
    mappings: dict[CodeOrigin, int],
    origin_of: OriginOf | None,
    frame: Frame,
) -> bytes:
    """Return the id of a frame's location."""
    function_id = functions[frame.namespace, frame.function, frame.file, frame.first_line]
    mapping_id = mappings[_UNKNOWN if origin_of is None else origin_of(frame.file, frame.namespace)]
    return varint(locations[function_id, frame.line or 0, mapping_id])


def _encode_stack(location_ids: _Encoded[Frame], stack: Stack) -> bytes:
    """Return the locations of a sample."""
    return field(_LOCATION_ID, b"".join(map(location_ids.__getitem__, stack.frames)))


def _encode_label(strings: dict[str, int], label: tuple[str, str | int]) -> bytes:
    """Return a label of a sample; nothing for an empty text, which would read as the number 0."""
    key, value = label
    if not isinstance(value, str) and value not in _INT64:
        value = str(value)
    if not isinstance(value, str):
        unit = _LABEL_UNITS.get(key)
        encoded_unit = b"" if unit is None else _LABEL_UNIT + varint(strings[unit])
        return field(_LABEL, _LABEL_KEY + varint(strings[key]) + _LABEL_NUMBER + varint(value) + encoded_unit)
    if not value:
        return b""
    encoded_value = _LABEL_TEXT + varint(strings[value])
    return field(_LABEL, _LABEL_KEY + varint(strings[key]) + encoded_value)


def _add_mapping(tables: Any, origin: CodeOrigin, mapping_id: int, strings: dict[str, int]) -> None:
    """Add a distribution; the flags for names, files and lines keep readers from looking for symbols."""
    mapping = tables.mapping.add(id=mapping_id, filename=strings[_mapping_name(origin)])
    if origin.name and origin.version:  # unique, since readers merge mappings with equal build ids
        mapping.build_id = strings[f"{origin.name}=={origin.version}"]
    mapping.has_functions = mapping.has_filenames = mapping.has_line_numbers = True


def _mapping_name(origin: CodeOrigin) -> str:
    """Return a name such as ``library/requests``, which filters of `go tool pprof` can match."""
    if origin.kind is OriginKind.UNKNOWN:
        return "python"
    kind = origin.kind.value.replace(" ", "-")
    return f"{kind}/{origin.name}" if origin.name else kind


def _add_function(tables: Any, function: _FunctionKey, function_id: int, strings: dict[str, int]) -> None:
    namespace, name, file, first_line = function
    # With equal names, `go tool pprof` would read them as C++ and remove "<frozen runpy>" as template arguments.
    full_name = strings[f"{namespace}.{name}"]
    tables.function.add(
        id=function_id, name=full_name, system_name=strings[name], filename=strings[file], start_line=first_line
    )


def _printable(text: str) -> str:
    """Return `text`, shortened if too long, with unprintable characters and surrogates escaped."""
    if len(text) > MAX_TEXT_CHARACTERS:
        text = text[: MAX_TEXT_CHARACTERS - 1] + "…"
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
