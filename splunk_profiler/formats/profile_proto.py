"""The wire format of the fields of ``profile.proto`` that our profiles have.

Pure, imports nothing. Written by hand, as the CPU time per sample counts (docs/performance.md). A tag
is the number of a field in ``proto/profile.proto`` of the pprof project, times 8, plus 0 for a varint
or 2 for a length with as many bytes. All numbers are below 16, so a tag is one byte.
"""

from __future__ import annotations

_VARINT, _BYTES = 0, 2
_UINT64 = (1 << 64) - 1
_ONE_BYTE = tuple(bytes((value,)) for value in range(128))
_CONTINUED_BYTE = tuple(bytes((value | 128,)) for value in range(128))  # all bytes of a varint but the last


def _tag(number: int, kind: int) -> bytes:
    return _ONE_BYTE[number << 3 | kind]


PROFILE_SAMPLE_TYPE = _tag(1, _BYTES)
PROFILE_SAMPLE = _tag(2, _BYTES)
PROFILE_MAPPING = _tag(3, _BYTES)
PROFILE_LOCATION = _tag(4, _BYTES)
PROFILE_FUNCTION = _tag(5, _BYTES)
PROFILE_STRING_TABLE = _tag(6, _BYTES)
PROFILE_TIME_NANOS = _tag(9, _VARINT)
PROFILE_DURATION_NANOS = _tag(10, _VARINT)
PROFILE_PERIOD_TYPE = _tag(11, _BYTES)
PROFILE_PERIOD = _tag(12, _VARINT)
PROFILE_COMMENT = _tag(13, _BYTES)
PROFILE_DEFAULT_SAMPLE_TYPE = _tag(14, _VARINT)

VALUE_TYPE_TYPE = _tag(1, _VARINT)
VALUE_TYPE_UNIT = _tag(2, _VARINT)

SAMPLE_LOCATION_ID = _tag(1, _BYTES)
SAMPLE_VALUE = _tag(2, _BYTES)
SAMPLE_LABEL = _tag(3, _BYTES)

LABEL_KEY = _tag(1, _VARINT)
LABEL_STR = _tag(2, _VARINT)
LABEL_NUM = _tag(3, _VARINT)
LABEL_NUM_UNIT = _tag(4, _VARINT)

MAPPING_ID = _tag(1, _VARINT)
MAPPING_FILENAME = _tag(5, _VARINT)
MAPPING_BUILD_ID = _tag(6, _VARINT)
MAPPING_HAS_FUNCTIONS = _tag(7, _VARINT)
MAPPING_HAS_FILENAMES = _tag(8, _VARINT)
MAPPING_HAS_LINE_NUMBERS = _tag(9, _VARINT)

LOCATION_ID = _tag(1, _VARINT)
LOCATION_MAPPING_ID = _tag(2, _VARINT)
LOCATION_LINE = _tag(4, _BYTES)

LINE_FUNCTION_ID = _tag(1, _VARINT)
LINE_LINE = _tag(2, _VARINT)

FUNCTION_ID = _tag(1, _VARINT)
FUNCTION_NAME = _tag(2, _VARINT)
FUNCTION_SYSTEM_NAME = _tag(3, _VARINT)
FUNCTION_FILENAME = _tag(4, _VARINT)
FUNCTION_START_LINE = _tag(5, _VARINT)


def number(tag: bytes, value: int) -> bytes:
    """Return a field with a number; nothing for 0, the value of a missing field."""
    if 0 < value < 128:  # most values are, and saving a call saves a third of the time
        return tag + _ONE_BYTE[value]
    return tag + varint(value) if value else b""


def field(tag: bytes, content: bytes) -> bytes:
    """Return a field with a message, a text in UTF-8 or packed numbers."""
    length = len(content)
    return tag + (_ONE_BYTE[length] if length < 128 else varint(length)) + content


def varint(value: int) -> bytes:
    """Return seven bits a byte, lowest first; a negative number as its 64-bit two's complement."""
    if 0 <= value < 128:
        return _ONE_BYTE[value]
    if 0 < value < 1 << 14:
        return _CONTINUED_BYTE[value & 127] + _ONE_BYTE[value >> 7]
    value &= _UINT64
    encoded = _CONTINUED_BYTE[value & 127]
    while (value := value >> 7) > 127:
        encoded += _CONTINUED_BYTE[value & 127]
    return encoded + _ONE_BYTE[value]
