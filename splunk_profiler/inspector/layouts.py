"""Decoders of the published memory: bytes in, values out.

Written only from the specifications "APM Agent exposed memory" and "Custom Labels ABI v1". Shares
no code with the publisher, so that a mistake there is not repeated here. Callables read the memory.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from splunk_profiler.inspector.errors import MalformedError
from splunk_profiler.inspector.model import CorrelationRecord, Label, MemoryRange, ProcessStorage

ReadMemory = Callable[[Sequence[MemoryRange]], list[bytes]]

_RECORD = struct.Struct("<HBBB16s8s8s")
_STORAGE_HEAD = struct.Struct("<H")
_LENGTH = struct.Struct("<I")
_LABEL_SET = struct.Struct("<QQQ")
_SLOT = struct.Struct("<QQQQ")
_DESCRIPTOR = struct.Struct("<QQ")

RECORD_BYTES = _RECORD.size
DESCRIPTOR_BYTES = _DESCRIPTOR.size


@dataclass(frozen=True, slots=True)
class Limits:
    """The largest amounts that are read: slots of a label set, bytes of a key, bytes of a value."""

    slots: int
    key_bytes: int
    value_bytes: int


SPEC_LIMITS = Limits(slots=4096, key_bytes=1 << 32, value_bytes=1 << 32)
"""Limits beyond which memory counts as malformed; the specification sets none."""

_MAX_TEXT_BYTES = 1 << 16
_MAX_LABEL_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Slot:
    """A slot of a label set: the lengths that it states, in bytes, and the bytes up to the limit.

    Without a key the slot is empty. A key without a value breaks the specification.
    """

    key_length: int
    key: bytes | None
    value_length: int
    value: bytes | None


@dataclass(frozen=True, slots=True)
class LabelSet:
    """A label set in memory: the `count` that it states, and the `slots` that were read."""

    count: int
    slots: tuple[Slot, ...]


def decode_descriptor(data: bytes) -> tuple[int, int]:
    """Return the two words of a TLS descriptor, or of a dynamic one's ``tls_index``."""
    return _unpack(_DESCRIPTOR, data, "a TLS descriptor")


def decode_record(data: bytes) -> CorrelationRecord:
    """Decode a thread's record ("Thread Local Storage Layout")."""
    minor, valid, present, flags, trace, span, transaction = _unpack(_RECORD, data, "a thread's record")
    return CorrelationRecord(minor, valid, present, flags, trace.hex(), span.hex(), transaction.hex())


def read_storage(read_memory: ReadMemory, address: int) -> ProcessStorage:
    """Read the process storage at `address` ("Process Storage Layout").

    Raises:
        MalformedError: a length is not credible.
        UnreadableError: part of it is not mapped.
    """
    (head,) = read_memory([MemoryRange(address, _STORAGE_HEAD.size)])
    (minor,) = _unpack(_STORAGE_HEAD, head, "the storage's version")
    address += _STORAGE_HEAD.size
    texts = []
    for field in ("service-name", "service-environment", "socket-file-path"):
        (data,) = read_memory([MemoryRange(address, _LENGTH.size)])
        (length,) = _unpack(_LENGTH, data, f"the length of {field}")
        if length > _MAX_TEXT_BYTES:
            raise MalformedError(f"{field} states a length of {length} bytes")
        address += _LENGTH.size
        (text,) = read_memory([MemoryRange(address, length)]) if length else (b"",)
        texts.append(text.decode("utf-8", "surrogateescape"))
        address += length
    return ProcessStorage(minor, *texts)


def read_label_set(read_memory: ReadMemory, address: int, limits: Limits) -> LabelSet:
    """Read the label set at `address` (``custom_labels_labelset_t``) up to `limits`.

    Raises:
        MalformedError: a count (under `SPEC_LIMITS`) or a length is not credible.
        UnreadableError: part of it is not mapped.
    """
    (data,) = read_memory([MemoryRange(address, _LABEL_SET.size)])
    slots_address, count, _capacity = _unpack(_LABEL_SET, data, "a label set")
    if count > limits.slots and limits is SPEC_LIMITS:
        raise MalformedError(f"a label set states {count} labels")
    slot_count = min(count, limits.slots)
    if not slot_count:
        return LabelSet(count, ())
    (data,) = read_memory([MemoryRange(slots_address, slot_count * _SLOT.size)])
    raw = list(_SLOT.iter_unpack(data))
    ranges = []
    for key_length, key, value_length, value in raw:
        if key:
            ranges.append(MemoryRange(key, min(key_length, limits.key_bytes)))
            if value:
                ranges.append(MemoryRange(value, min(value_length, limits.value_bytes)))
    if sum(size for _, size in ranges) > _MAX_LABEL_BYTES:
        raise MalformedError("the keys and values of a label set state more than 1 MiB")
    texts = iter(read_memory(ranges) if ranges else [])
    slots = []
    for key_length, key, value_length, value in raw:
        key_bytes = next(texts) if key else None
        slots.append(Slot(key_length, key_bytes, value_length, next(texts) if key and value else None))
    return LabelSet(count, tuple(slots))


def spec_labels(label_set: LabelSet) -> tuple[Label, ...]:
    """Return the labels by the specification: without empty slots, and of equal keys the first."""
    labels: dict[bytes, Label] = {}
    for slot in label_set.slots:
        if slot.key is not None and slot.value is not None:
            labels.setdefault(slot.key, Label(slot.key, slot.value))
    return tuple(labels.values())


def _unpack(layout: struct.Struct, data: bytes, what: str) -> tuple[Any, ...]:
    if len(data) != layout.size:
        raise MalformedError(f"{what} has {layout.size} bytes, not {len(data)}")
    return layout.unpack(data)
