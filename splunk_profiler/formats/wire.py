"""The wire format of protobuf messages, for parts that are encoded once and copied into many messages.

Pure; imports nothing. Specification: "Encoding" of Protocol Buffers.
"""

from __future__ import annotations

_SMALL = 1 << 14  # the most common numbers: lengths, and places in tables
_MASK = (1 << 64) - 1  # a negative number is encoded as its 64 bits


class _Varints(dict[int, bytes]):
    """The encoded small numbers, as far as they were needed; a look-up encodes any number."""

    def __missing__(self, number: int) -> bytes:
        left = number & _MASK
        encoded = bytearray()
        while left > 0x7F:
            encoded.append(left & 0x7F | 0x80)
            left >>= 7
        encoded.append(left)
        if 0 <= number < _SMALL:
            self[number] = bytes(encoded)
        return bytes(encoded)


varint = _Varints().__getitem__  # encodes a number of at most 64 bits


def tag(number: int) -> bytes:
    """Encode the start of a field of text, bytes, a message or packed numbers."""
    return varint(number << 3 | 2)


def field(tag: bytes, content: bytes) -> bytes:
    """Encode such a field."""
    return tag + varint(len(content)) + content
