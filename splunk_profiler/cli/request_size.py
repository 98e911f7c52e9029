"""How much a protobuf message holds, found before it is parsed: two bytes of it can become hundreds in memory.

Pure. Reads the wire format and the descriptors of messages, no messages. Imports nothing of ours.

Specification: Protocol Buffers, "Encoding".
"""

from __future__ import annotations

from functools import cache
from typing import Any

# The fields of a message that may hold many things: by number, those of the message in it (empty for texts).
Fields = dict[int, "Fields"]

_VARINT_BITS = 70
_VARINT, _FIXED64, _LENGTH, _GROUP, _END_GROUP, _FIXED32 = range(6)


@cache
def fields_of(descriptor: Any) -> Fields:
    """Return the fields of a message type that are messages or repeated."""
    known: dict[str, Fields] = {}

    def fields(kind: Any) -> Fields:
        if kind.full_name not in known:  # types contain themselves
            known[kind.full_name] = {}
            for field in kind.fields:
                if field.message_type is not None:
                    known[kind.full_name][field.number] = fields(field.message_type)
                elif field.default_value == []:  # repeated
                    known[kind.full_name][field.number] = {}
        return known[kind.full_name]

    return fields(descriptor)


def exceeds_item_limit(max_items: int, message: bytes, fields: Fields) -> bool:
    """Return True if there are more than `max_items` messages and repeated texts in a message, at all depths.

    Reads no byte twice. False for bytes that are no message: the parser says what is wrong with them.
    """
    count = 0
    pending = [(fields, 0, len(message))]
    try:
        while pending:
            fields, position, end = pending.pop()
            while position < end:
                tag, position = _varint(message, position)
                kind = tag & 7
                if kind == _LENGTH:
                    size, position = _varint(message, position)
                    if position + size > end:
                        return False
                    inner = fields.get(tag >> 3)
                    if inner is not None:
                        count += 1
                        if count > max_items:
                            return True
                        if inner and size:
                            pending.append((inner, position, position + size))
                    position += size
                elif kind == _VARINT:
                    _, position = _varint(message, position)
                elif kind in (_FIXED64, _FIXED32):
                    position += 8 if kind == _FIXED64 else 4
                elif kind not in (_GROUP, _END_GROUP):
                    return False
    except IndexError:  # the message ends too early
        return False
    return False


def _varint(message: bytes, position: int) -> tuple[int, int]:
    """Return the number at that place, and the place after it."""
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
