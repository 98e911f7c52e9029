"""Decoders of the published memory: bytes in, values out.

Written only from the specifications "APM Agent exposed memory" and "Custom Labels ABI v1". Shares
no code with the publisher, so that a mistake there is not repeated here. Each takes the callable that
reads `size` bytes at `address`, and raises its UnreadableError where memory is not mapped.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

from splunk_profiler.inspector.errors import MalformedError
from splunk_profiler.inspector.model import CorrelationRecord, Label, ProcessStorage

ReadMemory = Callable[[int, int], bytes]

_RECORD = struct.Struct("<HBBB16s8s8s")
_LABEL_SET = struct.Struct("<QQQ")
_SLOT = struct.Struct("<QQQQ")
_MINOR_VERSION_BYTES = 2
_LENGTH_BYTES = 4


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
class RawLabelSet:
    """A label set in memory: the `count` that it states, and the `slots` that were read."""

    count: int
    slots: tuple[Slot, ...]


def read_record(read_memory: ReadMemory, address: int) -> CorrelationRecord:
    """Read the thread's record at `address` ("Thread Local Storage Layout")."""
    data = read_memory(address, _RECORD.size)
    minor, valid, present, flags, trace, span, transaction = _RECORD.unpack(data)
    return CorrelationRecord(minor, valid, present, flags, trace.hex(), span.hex(), transaction.hex())


def read_storage(read_memory: ReadMemory, address: int) -> ProcessStorage:
    """Read the process storage at `address` ("Process Storage Layout").

    Raises:
        MalformedError: a length is not credible.
    """
    minor = int.from_bytes(read_memory(address, _MINOR_VERSION_BYTES), "little")
    address += _MINOR_VERSION_BYTES
    texts = []
    for field in ("service-name", "service-environment", "socket-file-path"):
        length = int.from_bytes(read_memory(address, _LENGTH_BYTES), "little")
        if length > _MAX_TEXT_BYTES:
            raise MalformedError(f"{field} states a length of {length} bytes")
        address += _LENGTH_BYTES
        texts.append(read_memory(address, length).decode("utf-8", "surrogateescape"))
        address += length
    return ProcessStorage(minor, *texts)


def read_label_set(read_memory: ReadMemory, address: int, limits: Limits) -> RawLabelSet:
    """Read the label set at `address` (``custom_labels_labelset_t``) up to `limits`.

    Raises:
        MalformedError: a count (under `SPEC_LIMITS`) or a length is not credible.
    """
    slots_address, count, _capacity = _LABEL_SET.unpack(read_memory(address, _LABEL_SET.size))
    if count > limits.slots and limits is SPEC_LIMITS:
        raise MalformedError(f"a label set states {count} labels")
    slot_count = min(count, limits.slots)
    data = read_memory(slots_address, slot_count * _SLOT.size) if slot_count else b""
    slots = []
    remaining_bytes = _MAX_LABEL_BYTES
    for key_length, key_address, value_length, value_address in _SLOT.iter_unpack(data):
        key_bytes = min(key_length, limits.key_bytes) if key_address else 0
        value_bytes = min(value_length, limits.value_bytes) if key_address and value_address else 0
        remaining_bytes -= key_bytes + value_bytes
        if remaining_bytes < 0:
            raise MalformedError("the keys and values of a label set state more than 1 MiB")
        key = read_memory(key_address, key_bytes) if key_address else None
        value = read_memory(value_address, value_bytes) if key_address and value_address else None
        slots.append(Slot(key_length, key, value_length, value))
    return RawLabelSet(count, tuple(slots))


def spec_labels(label_set: RawLabelSet) -> tuple[Label, ...]:
    """Return the labels by the specification: without empty slots, and of equal keys the first."""
    labels: dict[bytes, Label] = {}
    for slot in label_set.slots:
        if slot.key is not None and slot.value is not None:
            labels.setdefault(slot.key, Label(slot.key, slot.value))
    return tuple(labels.values())
