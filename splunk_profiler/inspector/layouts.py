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
from splunk_profiler.inspector.model import CorrelationRecord, Label, ProcessStorage

ReadMemory = Callable[[Sequence[tuple[int, int]]], list[bytes]]
"""Reads the memory at (address, size) pairs."""

_RECORD = struct.Struct("<HBBB16s8s8s")
_STORAGE_HEAD = struct.Struct("<H")
_LENGTH = struct.Struct("<I")
_LABEL_SET = struct.Struct("<QQQ")
_SLOT = struct.Struct("<QQQQ")
_WORD = struct.Struct("<Q")

RECORD_BYTES = _RECORD.size
LABEL_SET_BYTES = _LABEL_SET.size
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

_MAX_TEXT_BYTES = 1 << 16
_MAX_LABEL_BYTES = 1 << 20


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
    return int(_unpack(_WORD, data, "a pointer")[0])


def decode_descriptor(data: bytes) -> tuple[int, int]:
    """A TLS descriptor, or what a dynamic one's second word points to: two words."""
    if len(data) != DESCRIPTOR_BYTES:
        raise MalformedError(f"a TLS descriptor has {DESCRIPTOR_BYTES} bytes, not {len(data)}")
    return decode_word(data[:8]), decode_word(data[8:])


def decode_record(data: bytes) -> CorrelationRecord:
    """A thread's record ("Thread Local Storage Layout")."""
    minor, valid, present, flags, trace, span, transaction = _unpack(_RECORD, data, "a thread's record")
    return CorrelationRecord(minor, valid, present, flags, trace.hex(), span.hex(), transaction.hex())


def read_storage(read_memory: ReadMemory, address: int) -> ProcessStorage:
    """The process storage at `address` ("Process Storage Layout").

    Raises:
        MalformedError: a length is not credible.
        UnreadableError: it reaches into memory that is not there.
    """
    (head,) = read_memory([(address, _STORAGE_HEAD.size)])
    (minor,) = _unpack(_STORAGE_HEAD, head, "the storage's version")
    address += _STORAGE_HEAD.size
    texts = []
    for field in ("service-name", "service-environment", "socket-file-path"):
        (data,) = read_memory([(address, _LENGTH.size)])
        (length,) = _unpack(_LENGTH, data, f"the length of {field}")
        if length > _MAX_TEXT_BYTES:
            raise MalformedError(f"{field} states a length of {length} bytes")
        address += _LENGTH.size
        (text,) = read_memory([(address, length)]) if length else (b"",)
        texts.append(text.decode("utf-8", "surrogateescape"))
        address += length
    return ProcessStorage(minor, *texts)


def read_label_set(read_memory: ReadMemory, address: int, limits: Limits) -> LabelSet:
    """The label set at `address` (``custom_labels_labelset_t``), as far as `limits` go.

    Raises:
        MalformedError: under the specification's limits, a count or a length is not credible.
        UnreadableError: it reaches into memory that is not there.
    """
    (data,) = read_memory([(address, LABEL_SET_BYTES)])
    slots_address, count, _capacity = _unpack(_LABEL_SET, data, "a label set")
    if count > limits.slots and limits is SPEC_LIMITS:
        raise MalformedError(f"a label set states {count} labels")
    slot_count = min(count, limits.slots)
    if not slot_count:
        return LabelSet(count, ())
    (data,) = read_memory([(slots_address, slot_count * _SLOT.size)])
    raw = [
        _unpack(_SLOT, data[at : at + _SLOT.size], "a label") for at in range(0, slot_count * _SLOT.size, _SLOT.size)
    ]
    ranges = []
    for key_length, key, value_length, value in raw:
        if key:
            ranges.append((key, min(key_length, limits.key_bytes)))
            if value:
                ranges.append((value, min(value_length, limits.value_bytes)))
    if sum(size for _, size in ranges) > _MAX_LABEL_BYTES:
        raise MalformedError("the keys and values of a label set state more than 1 MiB")
    texts = iter(read_memory(ranges) if ranges else [])
    slots = []
    for key_length, key, value_length, value in raw:
        key_bytes = next(texts) if key else None
        slots.append(Slot(key_length, key_bytes, value_length, next(texts) if key and value else None))
    return LabelSet(count, tuple(slots))


def spec_labels(label_set: LabelSet) -> tuple[Label, ...]:
    """What the specification says the set means: empty places are ignored, of equal keys the first counts."""
    labels: dict[bytes, Label] = {}
    for slot in label_set.slots:
        if slot.key is not None and slot.value is not None:
            labels.setdefault(slot.key, Label(slot.key, slot.value))
    return tuple(labels.values())


def _unpack(layout: struct.Struct, data: bytes, what: str) -> tuple[Any, ...]:
    if len(data) != layout.size:
        raise MalformedError(f"{what} has {layout.size} bytes, not {len(data)}")
    return layout.unpack(data)
