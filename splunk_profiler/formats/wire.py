"""The wire format of protobuf messages, without protobuf's runtime: it takes 1 to 2 MB of memory.

Pure; imports nothing of ours. Specification: "Encoding" of Protocol Buffers.
"""

from __future__ import annotations

_SMALL = 1 << 14  # the most common numbers: lengths, and places in tables
_MASK = (1 << 64) - 1  # a negative number is encoded as its 64 bits
_MAX_VARINT_BYTES = 10
_VARINT, _BYTES = 0, 2  # kinds of fields
_FIXED_SIZES = {1: 8, 5: 4}


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


def number(number: int, value: int) -> bytes:
    """Encode a field of a number."""
    return varint(number << 3) + varint(value)


def numbers(*values: int) -> bytes:
    """Encode the fields 1, 2, 3, … of a message, which are numbers."""
    return b"".join([number(place, value) for place, value in enumerate(values, 1)])


def read_message(message: bytes) -> tuple[dict[int, int], dict[int, bytes]]:
    """Return the last value of each field of `message` by number: of numbers, which are signed, and of bytes.

    Raises:
        ValueError: it is no message.
    """
    values: dict[int, int] = {}
    contents: dict[int, bytes] = {}
    position = 0
    while position < len(message):
        key, position = _read_varint(message, position)
        kind = key & 7
        if kind == _VARINT:
            values[key >> 3], position = _read_varint(message, position)
            continue
        size, position = _read_varint(message, position) if kind == _BYTES else (_FIXED_SIZES.get(kind, -1), position)
        if not 0 <= size <= len(message) - position:
            raise ValueError("a field that has no end")
        contents[key >> 3] = message[position : position + size]
        position += size
    return values, contents


def _read_varint(message: bytes, position: int) -> tuple[int, int]:
    """Return the number at `position`, and the position after it."""
    value = 0
    for place, byte in enumerate(message[position : position + _MAX_VARINT_BYTES]):
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            value &= _MASK
            return value - (value >> 63 << 64), position + place + 1
    raise ValueError("a number that has no end")
