"""The published memory, decoded: bytes in, values out.

Written from the specifications ("APM Agent exposed memory" and "Custom Labels ABI v1") and from nothing else, so that a
mistake of a publisher cannot be made a second time here. Owns no thread, reads no process: what lies elsewhere is asked
of a callable. Must not import anything of the package but the inspector's errors and model.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from splunk_profiler.inspector.errors import MalformedError
from splunk_profiler.inspector.model import Correlation, Label, ProcessStorage

Fetch = Callable[[Sequence[tuple[int, int]]], list[bytes]]
"""Reads the memory at (address, size) pairs."""

_RECORD = struct.Struct("<HBBB16s8s8s")
_STORAGE_HEAD = struct.Struct("<H")
_LENGTH = struct.Struct("<I")
_SET = struct.Struct("<QQQ")
_SLOT = struct.Struct("<QQQQ")
_WORD = struct.Struct("<Q")

RECORD_BYTES = _RECORD.size
SET_BYTES = _SET.size
DESCRIPTOR_BYTES = 16


@dataclass(frozen=True, slots=True)
class Limits:
    """How much is read at most.

    Attributes:
        slots: places of a label set.
        key_bytes: bytes of a key.
        value_bytes: bytes of a value.
    """

    slots: int
    key_bytes: int
    value_bytes: int


SPEC_LIMITS = Limits(slots=4096, key_bytes=1 << 32, value_bytes=1 << 32)
"""The specification sets none: more than this is taken for memory that holds something else."""

_MOST_TEXT_BYTES = 1 << 16
_MOST_LABEL_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Slot:
    """One place of a label set.

    Attributes:
        key_length: the length it states.
        key: at most as many bytes as were asked for; None where the place is empty.
        value_length: the length it states.
        value: as `key`; None breaks the specification.
    """

    key_length: int
    key: bytes | None
    value_length: int
    value: bytes | None


@dataclass(frozen=True, slots=True)
class LabelSet:
    """A label set as it lies in memory; `count` is what it states, `slots` what was read of it."""

    count: int
    slots: tuple[Slot, ...]


def decode_word(data: bytes) -> int:
    """An address."""
    return int(_exactly(_WORD, data, "a pointer")[0])


def decode_descriptor(data: bytes) -> tuple[int, int]:
    """A TLS descriptor, or what a dynamic one's second word points to: two words."""
    if len(data) != DESCRIPTOR_BYTES:
        raise MalformedError(f"a TLS descriptor has {DESCRIPTOR_BYTES} bytes, not {len(data)}")
    return decode_word(data[:8]), decode_word(data[8:])


def decode_record(data: bytes) -> Correlation:
    """A thread's record ("Thread Local Storage Layout")."""
    minor, valid, present, flags, trace, span, transaction = _exactly(_RECORD, data, "a thread's record")
    return Correlation(minor, valid, present, flags, trace.hex(), span.hex(), transaction.hex())


def read_storage(fetch: Fetch, address: int) -> ProcessStorage:
    """The process storage at `address` ("Process Storage Layout").

    Raises:
        MalformedError: a length is not credible.
        UnreadableError: it reaches into memory that is not there.
    """
    (head,) = fetch([(address, _STORAGE_HEAD.size)])
    (minor,) = _exactly(_STORAGE_HEAD, head, "the storage's version")
    address += _STORAGE_HEAD.size
    texts = []
    for field in ("service-name", "service-environment", "socket-file-path"):
        (data,) = fetch([(address, _LENGTH.size)])
        (length,) = _exactly(_LENGTH, data, f"the length of {field}")
        if length > _MOST_TEXT_BYTES:
            raise MalformedError(f"{field} states a length of {length} bytes")
        address += _LENGTH.size
        (text,) = fetch([(address, length)]) if length else (b"",)
        texts.append(text.decode("utf-8", "surrogateescape"))
        address += length
    return ProcessStorage(minor, *texts)


def read_label_set(fetch: Fetch, address: int, limits: Limits) -> LabelSet:
    """The label set at `address` (``custom_labels_labelset_t``), as far as `limits` go.

    Raises:
        MalformedError: under the specification's limits, a count or a length is not credible.
        UnreadableError: it reaches into memory that is not there.
    """
    (data,) = fetch([(address, SET_BYTES)])
    storage, count, _capacity = _exactly(_SET, data, "a label set")
    if count > limits.slots and limits is SPEC_LIMITS:
        raise MalformedError(f"a label set states {count} labels")
    places = min(count, limits.slots)
    if not places:
        return LabelSet(count, ())
    (data,) = fetch([(storage, places * _SLOT.size)])
    raw = [_exactly(_SLOT, data[at : at + _SLOT.size], "a label") for at in range(0, places * _SLOT.size, _SLOT.size)]
    wanted = []
    for key_length, key, value_length, value in raw:
        if key:
            wanted.append((key, min(key_length, limits.key_bytes)))
            if value:
                wanted.append((value, min(value_length, limits.value_bytes)))
    if sum(size for _, size in wanted) > _MOST_LABEL_BYTES:
        raise MalformedError("the keys and values of a label set state more than 1 MiB")
    texts = iter(fetch(wanted) if wanted else [])
    slots = []
    for key_length, key, value_length, value in raw:
        key_bytes = next(texts) if key else None
        slots.append(Slot(key_length, key_bytes, value_length, next(texts) if key and value else None))
    return LabelSet(count, tuple(slots))


def specified_labels(label_set: LabelSet) -> tuple[Label, ...]:
    """What the specification says the set means: empty places are ignored, of equal keys the first counts."""
    labels: dict[bytes, Label] = {}
    for slot in label_set.slots:
        if slot.key is not None and slot.value is not None:
            labels.setdefault(slot.key, Label(slot.key, slot.value))
    return tuple(labels.values())


def _exactly(layout: struct.Struct, data: bytes, what: str) -> tuple[Any, ...]:
    if len(data) != layout.size:
        raise MalformedError(f"{what} has {layout.size} bytes, not {len(data)}")
    return layout.unpack(data)
