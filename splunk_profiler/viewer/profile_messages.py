"""Messages of pprof's format, as log records carry them: their samples, places and labels.

Pure. Must not import `formats.pprof`, with which tests compare it.

Specification: ``proto/profile.proto`` of the pprof project; the names of mappings are in ``docs/pprof.md``.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import repeat
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from splunk_profiler.code_origin.paths import is_library
from splunk_profiler.formats.profile_proto import ProfileMessage
from splunk_profiler.viewer.dumps import Call
from splunk_profiler.viewer.message_size import count_items, fields_of

PROFILE_FORMAT = "pprof-gzip-base64"
OUTSIDE = "(outside of spans)"
UNNAMED = "(spans without a name)"
NOT_SAMPLED = "(not sampled)"
UNKNOWN_FUNCTION = "(unknown)"

_GZIP = b"\x1f\x8b"
APPLICATION = "application"
_PROCESS_PREFIX = "[process]."
# Guards against small messages that take much memory or time: packed, of many tiny parts, or of many inlined lines that
# stacks repeat.
MAX_MESSAGE_BYTES = 64 << 20  # of an unpacked message
MAX_ITEMS = 1 << 20  # of a message: messages and texts; each takes two bytes or more
_MAX_REQUEST_BYTES = 2 * MAX_MESSAGE_BYTES  # of all profiles of a request
_MAX_STACK_FRAMES = 1 << 17  # twice what this package captures
_MAX_FRAMES = 1 << 25  # of all stacks
_REMEDY = "`go tool pprof` reads it; save less at once: a filter, a shorter time"
_FIELDS = fields_of(ProfileMessage.DESCRIPTOR)


class ProfileError(ValueError):
    """Error for a body that is not a profile with wall and CPU time, or is too large."""


@dataclass(frozen=True, slots=True)
class Place:
    """A line of a function.

    Attributes:
        function: qualified name.
        file, line: source line; line 0 if not known.
        kind: ``application``, ``library``, ``standard-library``; empty if not known.
        distribution: name and version (``requests==2.32.3``), as far as known.
    """

    function: str
    file: str
    line: int
    kind: str
    distribution: str


class Aggregate(NamedTuple):
    """A sample of a profile: stack, labels that are text, and values."""

    stack: list[Place]
    labels: dict[str, str]
    samples: int
    cpu: int
    wall: int
    loop_blocks: int
    loop_blocked: int
    exceptions: int
    tasks: int
    task_wait: int
    lock_waiters: int
    lock_delay: int

    @property
    def nearest(self) -> Place:
        """`nearest_place` of the stack."""
        return nearest_place(self.stack)


def endpoint_name(stack: list[Place], labels: dict[str, str]) -> str:
    """Return the endpoint that a sample counts for."""
    if stack and stack[0].function.startswith(_PROCESS_PREFIX):
        return NOT_SAMPLED
    return labels.get("endpoint") or (UNNAMED if "span_id" in labels else OUTSIDE)


class ProfileDecoder:
    """Decodes the profiles of a request, until all together are too large."""

    def __init__(self) -> None:
        self._bytes_left = _MAX_REQUEST_BYTES

    def decode_body(self, body: str) -> Any:
        """Return the message of a profile; `ProfileError` if it is not one, or too large."""
        try:
            return self.decode(base64.b64decode(body, validate=True))
        except binascii.Error as error:
            raise ProfileError(f"not a profile: {error}") from None

    def decode(self, data: bytes) -> Any:
        """Return the message of a profile, packed by gzip or not; `ProfileError` if it is not one, or too large."""
        if self._bytes_left < 0:
            raise ProfileError("the profiles before it in its request are too large")
        try:
            data = _unpacked(data)
            self._bytes_left -= len(data)
            if len(data) > MAX_MESSAGE_BYTES or (
                len(data) > 2 * MAX_ITEMS and count_items(data, _FIELDS, MAX_ITEMS) > MAX_ITEMS
            ):
                raise ProfileError(
                    f"the profile is larger than {MAX_MESSAGE_BYTES >> 20} MiB, or has over {MAX_ITEMS:,} samples, "
                    f"labels and names: {_REMEDY}"
                )
            message = ProfileMessage.FromString(data)
        except (zlib.error, DecodeError) as error:
            raise ProfileError(f"not a profile: {error}") from None
        _check_frames(message)
        return message


def decode_body(body: str) -> Any:
    """Return the message of a profile; `ProfileError` if it is not one, or too large."""
    return ProfileDecoder().decode_body(body)


def _unpacked(data: bytes) -> bytes:
    """Return a message, or the beginning of one that is too large."""
    if not data.startswith(_GZIP):
        return data
    unpacking = zlib.decompressobj(16 + zlib.MAX_WBITS)
    unpacked = unpacking.decompress(data, MAX_MESSAGE_BYTES + 1)
    if not unpacking.eof and len(unpacked) <= MAX_MESSAGE_BYTES:
        raise ProfileError("the profile is cut off")
    return unpacked


def _check_frames(message: Any) -> None:
    lines = {each.id: max(1, len(each.line)) for each in message.location}
    total = 0
    for sample in message.sample:
        frames = sum(map(lines.get, sample.location_id, repeat(0)))
        total += frames
        if frames > _MAX_STACK_FRAMES or total > _MAX_FRAMES:
            limits = f"over {_MAX_STACK_FRAMES:,} frames, or {_MAX_FRAMES:,} in all"
            raise ProfileError(f"the profile has stacks of {limits}: {_REMEDY}")


def iter_aggregates(message: Any) -> Iterator[Aggregate]:
    """Yield the samples."""
    texts = list(message.string_table)
    kinds = [texts[each.type] for each in message.sample_type]
    value_at = [kinds.index(kind) for kind in ("samples", "cpu", "wall")]
    event_kinds = ("loop_blocks", "loop_blocked", "exceptions", "tasks", "task_wait", "lock_waiters", "lock_delay")
    event_at = [kinds.index(kind) if kind in kinds else None for kind in event_kinds]
    places = read_places(message)
    for sample in message.sample:
        labels = {texts[label.key]: texts[label.str] for label in sample.label if label.str}
        values = sample.value
        stack = [place for location in sample.location_id for place in places[location]]
        times = [values[index] for index in value_at]
        events = [0 if index is None else values[index] for index in event_at]
        yield Aggregate(stack, labels, *times, *events)


def nearest_place(stack: list[Place]) -> Place:
    """Return the application's place that is nearest to the leaf, else the leaf."""
    return next((place for place in stack if place.kind == APPLICATION), stack[0])


def read_places(message: Any) -> dict[int, list[Place]]:
    """Return the places of a profile by the ids of their locations, those of inlined functions before their callers."""
    texts = message.string_table
    mappings = {each.id: (texts[each.filename], texts[each.build_id]) for each in message.mapping}
    functions = {each.id: (texts[each.name], texts[each.filename]) for each in message.function}
    places = {}
    for each in message.location:
        mapping = mappings.get(each.mapping_id, ("", ""))
        found = [(*functions[line.function_id], line.line) if line.function_id else None for line in each.line]
        places[each.id] = [_place(line, mapping) for line in found or [None]]
    return places


def _place(line: tuple[str, str, int] | None, mapping: tuple[str, str]) -> Place:
    """Return the place of a function, file and line; None is one without a symbol, which other tools send."""
    function, file, number = line or (UNKNOWN_FUNCTION, "", 0)
    kind = kind_and_distribution(file, *mapping)
    return Place(function, file if line else mapping[0], number, *kind)


def kind_and_distribution(file: str, mapping: str, build_id: str) -> tuple[str, str]:
    """Return kind and distribution from the name of a mapping; other senders do not name them: judge the path."""
    kind, _, name = mapping.partition("/")
    if kind in (APPLICATION, "library", "standard-library"):
        return kind, build_id or name
    if file.startswith(("/", "<frozen")):
        if not is_library(file):
            return APPLICATION, ""
        return "library" if "-packages/" in file else "standard-library", ""
    return "", ""


def place_of(call: Call) -> Place:
    """Return the place of a call in the text of a sample."""
    return Place(call.name, call.file, call.line or 0, *kind_and_distribution(call.file, "", ""))
