"""The encoding of records and its reverse, as their classes in `records` ask for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from struct import Struct, error, pack, unpack
from typing import Annotated, Any, Generic, TypeVar, get_args, get_origin, get_type_hints

from splunk_profiler.stream.records import HEADER, MAX_RECORD_BYTES, RECORD_TYPES, Record

_MAGIC = HEADER[:-1]  # as a length it would be larger than any record


class StreamError(ValueError):
    """A stream that cannot be read; the text says where and why."""


_T = TypeVar("_T")
_LENGTH = Struct("<I")
_PREFIX = Struct("<IB")  # length of the rest, type


class _Cursor:
    """A position in the bytes of one record. A read past the end raises `StreamError`."""

    def __init__(self, data: bytes, position: int) -> None:
        self._data = data
        self.position = position

    def take(self, size: int) -> bytes:
        end = self.position + size
        if end > len(self._data):
            raise StreamError(f"it ends {end - len(self._data)} bytes too early")
        taken, self.position = self._data[self.position : end], end
        return taken

    def number(self) -> int:
        return int(_LENGTH.unpack(self.take(4))[0])

    def text(self) -> str:
        taken = self.take(self.number())
        try:
            return taken.decode()
        except UnicodeDecodeError as problem:
            raise StreamError(f"a text is not UTF-8 ({problem.reason})") from None

    def texts(self) -> list[str]:
        return [self.text() for _ in range(self.number())]


class _Layout(Generic[_T]):
    """The encoding of one type of records."""

    def __init__(self, record_type: type[_T]) -> None:
        hints = get_type_hints(record_type, include_extras=True)
        names = list(hints)
        codes = [_code(hint) for hint in hints.values()]
        fixed_count = sum(code is not None for code in codes)
        if None in codes[:fixed_count]:
            raise TypeError(f"{record_type.__name__} must have its fields of fixed size first")
        self._make: Callable[..., _T] = record_type
        self._fixed = Struct("<" + "".join(code or "" for code in codes))
        self._trace_id = names.index("trace_id") if "trace_id" in names else None
        self._fixed_count = fixed_count
        variable = [_variable(hint) for hint in list(hints.values())[fixed_count:]]
        self._encoders = [encode for encode, _ in variable]
        self._decoders = [decode for _, decode in variable]

    def encode(self, record: Any) -> bytes:
        fixed = record[: self._fixed_count]
        at = self._trace_id
        if at is not None:
            fixed = (*fixed[:at], fixed[at].to_bytes(16, "big"), *fixed[at + 1 :])
        parts = [self._fixed.pack(*fixed)]
        parts += [encode(value) for encode, value in zip(self._encoders, record[self._fixed_count :], strict=True)]
        return b"".join(parts)

    def decode(self, cursor: _Cursor) -> _T:
        values: list[Any] = list(self._fixed.unpack(cursor.take(self._fixed.size)))
        if self._trace_id is not None:
            values[self._trace_id] = int.from_bytes(values[self._trace_id], "big")
        values += [decode(cursor) for decode in self._decoders]
        return self._make(*values)


def encode(record: Record) -> bytes:
    """Return the bytes of `record`.

    Raises:
        StreamError: a number does not fit into its field, or the record is larger than `MAX_RECORD_BYTES`.
    """
    number, layout = _LAYOUT_BY_TYPE[type(record)]
    try:
        body = layout.encode(record)
    except (error, OverflowError) as problem:
        raise StreamError(f"{type(record).__name__} cannot be written: {problem}") from None
    if len(body) >= MAX_RECORD_BYTES:
        raise StreamError(f"{type(record).__name__} of {len(body)} bytes is larger than a record may be")
    return _PREFIX.pack(len(body) + 1, number) + body


class RecordDecoder:
    """Turns the bytes of a stream into records, in pieces of any size. `StreamError` at what it does not know."""

    def __init__(self) -> None:
        self._pending = b""
        self._position = 0  # in the stream, of the pending bytes
        self._has_header = False
        self._error: str | None = None  # nothing after it is read or kept

    @property
    def pending_bytes(self) -> int:
        """Number of bytes of a record that is not complete yet."""
        return len(self._pending)

    def feed(self, data: bytes) -> Iterator[Record]:
        """Yield the records that `data` completes."""
        data = self._pending + data
        start = 0
        if self._error is not None:
            raise StreamError(self._error)
        try:
            while len(data) - start >= len(HEADER):
                position = self._position + start
                if not self._has_header or data.startswith(_MAGIC, start):
                    self._check_header(data[start : start + len(HEADER)], position)
                    start += len(HEADER)
                    continue
                size, number = _PREFIX.unpack_from(data, start)
                self._check_prefix(size, number, position)
                end = start + _LENGTH.size + size
                if end > len(data):
                    return
                record = self._decode(data[start + _PREFIX.size : end], number, position)
                start = end
                yield record
        except StreamError as error:
            start, self._error = len(data), str(error)
            raise
        finally:
            self._pending, self._position = data[start:], self._position + start

    def _check_header(self, found: bytes, position: int) -> None:
        if not found.startswith(_MAGIC):
            raise StreamError(f"byte {position}: this is no stream of the profiler: it begins with {found!r}")
        if found != HEADER:
            raise StreamError(
                f"byte {position}: the stream has version {found[-1]}; this profiler reads version {HEADER[-1]}"
            )
        self._has_header = True

    @staticmethod
    def _check_prefix(size: int, number: int, position: int) -> None:
        if not 1 <= number <= len(RECORD_TYPES):
            raise StreamError(f"byte {position}: a record of the unknown type {number}")
        if not 1 <= size <= MAX_RECORD_BYTES:
            raise StreamError(f"byte {position}: a {RECORD_TYPES[number - 1].__name__} of {size} bytes")

    @staticmethod
    def _decode(body: bytes, number: int, position: int) -> Record:
        cursor = _Cursor(body, 0)
        record_type = RECORD_TYPES[number - 1]
        try:
            record: Record = _LAYOUT_BY_TYPE[record_type][1].decode(cursor)
            if cursor.position != len(body):
                raise StreamError(f"it has {len(body) - cursor.position} bytes too many")
        except StreamError as problem:
            raise StreamError(f"byte {position}: {record_type.__name__}: {problem}") from None
        return record


def _code(hint: Any) -> str | None:
    """Return the `struct` code of a field; None if its size varies."""
    return hint.__metadata__[0] if get_origin(hint) is Annotated else None


def _variable(hint: Any) -> tuple[Callable[[Any], bytes], Callable[[_Cursor], Any]]:
    """Return the encoder and the decoder of a text or a list."""
    if hint is str:
        return _encode_text, _Cursor.text
    (item,) = get_args(hint)
    if item is str:
        return lambda texts: _LENGTH.pack(len(texts)) + b"".join(map(_encode_text, texts)), _Cursor.texts
    if (code := _code(item)) is not None:
        return lambda numbers: pack(f"<I{len(numbers)}{code}", len(numbers), *numbers), _decode_numbers
    layout = Struct("<" + "".join(_code(field) or "" for field in get_type_hints(item, include_extras=True).values()))

    def encode_items(items: list[Any]) -> bytes:
        return _LENGTH.pack(len(items)) + b"".join([layout.pack(*each) for each in items])

    def decode_items(cursor: _Cursor) -> list[Any]:
        return list(map(item._make, layout.iter_unpack(cursor.take(cursor.number() * layout.size))))

    return encode_items, decode_items


def _encode_text(text: str) -> bytes:
    encoded = text.encode("utf-8", "replace")
    return _LENGTH.pack(len(encoded)) + encoded


def _decode_numbers(cursor: _Cursor) -> list[int]:
    count = cursor.number()
    return list(unpack(f"<{count}I", cursor.take(count * 4)))


_LAYOUT_BY_TYPE: dict[type[Any], tuple[int, _Layout[Any]]] = {
    record_type: (number, _Layout(record_type)) for number, record_type in enumerate(RECORD_TYPES, 1)
}
