"""The number of items in a protobuf message, known before it is parsed: two bytes can become hundreds in memory.

Pure. Reads the wire format and the descriptors of messages. Imports nothing of ours.

Specification: Protocol Buffers, "Encoding".
"""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

_STRINGS = (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES)
# Fields that count as items, by number, each with the fields of its own message (empty for strings).
Fields = dict[int, "Fields"]

# What reading costs, in fifths of a microsecond: one for a byte of a tag, a number or a length, two for a field.
# Samples with labels, and records with attributes, cost less for each item.
_COST_OF_FIELD = 2
_MAX_COST_OF_ITEM = 16
_VARINT_BITS = 70
_VARINT, _LENGTH = 0, 2
_FIXED_SIZES = {_VARINT: 0, 1: 8, 3: 0, 4: 0, 5: 4}  # 64 bits, start and end of a group, 32 bits


@cache
def fields_of(descriptor: Any) -> Fields:
    """Return the fields of a message type that are messages or repeated strings."""
    known: dict[str, Fields] = {}

    def fields(kind: Any) -> Fields:
        if kind.full_name not in known:  # types contain themselves
            known[kind.full_name] = {}
            for field in kind.fields:
                if field.message_type is not None:
                    known[kind.full_name][field.number] = fields(field.message_type)
                elif field.default_value == [] and field.type in _STRINGS:  # repeated
                    known[kind.full_name][field.number] = {}
        return known[kind.full_name]

    return fields(descriptor)


def count_items(message: bytes, fields: Fields, most: int) -> int:
    """Return how many messages and repeated strings a message has in it, at all depths; `most` + 1 if there are more.

    Also returns `most` + 1 for a message that costs more to read than `most` items do. Reads no byte twice. Counts the
    items before malformed bytes, which the parser rejects.
    """
    count = cost = 0
    pending = [(fields, 0, len(message))]
    with suppress(LookupError):
        while pending:
            fields, position, end = pending.pop()
            while position < end:
                if count > most or cost > _MAX_COST_OF_ITEM * (most + 1):
                    return most + 1
                tag, content = _varint(message, position)
                kind, size = tag & 7, 0
                if kind in (_VARINT, _LENGTH):
                    size, content = _varint(message, content)
                cost += content - position + _COST_OF_FIELD
                if kind != _LENGTH:
                    position = content + _FIXED_SIZES[kind]
                    continue
                position = content + size
                if position > end:
                    raise IndexError("a field beyond the end of its message")
                inner = fields.get(tag >> 3)
                if inner is not None:
                    count += 1
                    if inner and size:
                        pending.append((inner, content, position))
    return count


def _varint(message: bytes, position: int) -> tuple[int, int]:
    """Return the number at that position, and the position after it."""
    value = message[position]
    if value < 0x80:
        return value, position + 1
    value &= 0x7F
    for shift in range(7, _VARINT_BITS, 7):
        position += 1
        byte = message[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position + 1
    raise IndexError("a number without an end")
