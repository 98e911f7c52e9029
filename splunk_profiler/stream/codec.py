"""The encoding of records and its reverse, as their classes in `records` ask for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from struct import Struct, calcsize, error, pack, unpack_from
from typing import Annotated, Any, Generic, NoReturn, TypeVar, get_args, get_origin, get_type_hints

from splunk_profiler.stream.records import HEADER, MAX_RECORD_BYTES, RECORD_TYPES, Record

_MAGIC = HEADER[:-1]  # as a length it would be larger than any record


class StreamError(ValueError):
    """A stream that cannot be read; the text says where and why."""


_T = TypeVar("_T")
_LENGTH = Struct("<I")
_PREFIX = Struct("<IB")  # length of the rest, type


class _Layout(Generic[_T]):
    """The encoding of one type of records."""

    def __init__(self, number: int, record_type: type[_T]) -> None:
        hints = get_type_hints(record_type, include_extras=True)
        names = list(hints)
        codes = [_code(hint) for hint in hints.values()]
        fixed_count = sum(code is not None for code in codes)
        if None in codes[:fixed_count]:
            raise TypeError(f"{record_type.__name__} must have its fields of fixed size first")
        self._number, self._record_type = number, record_type
        self._make = maker(record_type)
        fixed = "".join(code or "" for code in codes)
        self._fixed = Struct("<" + fixed)
        self._prefixed = Struct(_PREFIX.format + fixed)
        self._trace_id = names.index("trace_id") if "trace_id" in names else None
        self._fixed_count = fixed_count
        variable = [_variable(hint) for hint in list(hints.values())[fixed_count:]]
        self._encoders = [(place, encode) for place, (encode, _) in enumerate(variable, fixed_count)]
        self._decoders = [decode for _, decode in variable]

    def encode(self, record: Any) -> bytes:
        at = self._trace_id
        if at is not None:
            record = (*record[:at], record[at].to_bytes(16, "big"), *record[at + 1 :])
        if not self._encoders:
            return self._prefixed.pack(self._fixed.size + 1, self._number, *record)
        rest = b"".join([encode(record[place]) for place, encode in self._encoders])
        size = self._fixed.size + len(rest)
        check_size(size, self._record_type)
        return self._prefixed.pack(size + 1, self._number, *record[: self._fixed_count]) + rest

    def decode(self, data: bytes, position: int, end: int) -> tuple[_T, int]:
        after = _check_end(position + self._fixed.size, end)
        values = list(self._fixed.unpack_from(data, position))
        if self._trace_id is not None:
            values[self._trace_id] = int.from_bytes(values[self._trace_id], "big")
        for decode in self._decoders:
            value, after = decode(data, after, end)
            values.append(value)
        return self._make(values), after


def encode(record: Record) -> bytes:
    """Return the bytes of `record`.

    Raises:
        StreamError: a number does not fit into its field, or the record is larger than `MAX_RECORD_BYTES`.
    """
    try:
        return _LAYOUT_OF[type(record)].encode(record)
    except (error, OverflowError) as problem:
        raise StreamError(f"{type(record).__name__} cannot be written: {problem}") from None


def check_size(size: int, record_type: type[Any]) -> None:
    """Raise `StreamError` if a record, of `size` bytes, is larger than readers take."""
    if size >= MAX_RECORD_BYTES:
        raise StreamError(f"{record_type.__name__} of {size} bytes is larger than a record may be")


class RecordDecoder:
    """Turns the bytes of a stream into records, in pieces of any size. `StreamError` at what it does not know."""

    def __init__(self) -> None:
        self._pending = b""
        self._position = 0  # in the stream, of the pending bytes
        self._last_position = 0  # of the record yielded last
        self._has_header = False
        self._error: str | None = None  # nothing after it is read or kept

    @property
    def pending_bytes(self) -> int:
        """Number of bytes of a record that is not complete yet."""
        return len(self._pending) if self._error is None else 0

    def refuse(self, why: str) -> NoReturn:
        """Raise `StreamError` for the record yielded last. Nothing after it is read."""
        self._error = f"byte {self._last_position}: {why}"
        raise StreamError(self._error) from None

    def feed(self, data: bytes) -> Iterator[Record]:
        """Yield the records that `data` completes."""
        if self._error is not None:
            raise StreamError(self._error)
        data = self._pending + data
        start = 0
        try:
            while len(data) - start >= len(HEADER):
                position = self._position + start
                size, number = _PREFIX.unpack_from(data, start)
                if not self._has_header or size > MAX_RECORD_BYTES:
                    if self._has_header and not data.startswith(_MAGIC, start):
                        self._refuse_prefix(size, number, position)
                    self._check_header(data[start : start + len(HEADER)], position)
                    start += len(HEADER)
                    continue
                if not 0 < number <= len(RECORD_TYPES) or size < 1:
                    self._refuse_prefix(size, number, position)
                end = start + _LENGTH.size + size
                if end > len(data):
                    return
                record = self._decode(data, start + _PREFIX.size, end, number, position)
                start, self._last_position = end, position
                yield record
        except StreamError as error:
            self._error = str(error)
            raise
        finally:
            self._pending, self._position = b"" if self._error else data[start:], self._position + start

    def _check_header(self, found: bytes, position: int) -> None:
        if not found.startswith(_MAGIC):
            raise StreamError(f"byte {position}: this is no stream of the profiler: it begins with {found!r}")
        if found != HEADER:
            raise StreamError(
                f"byte {position}: the stream has version {found[-1]}; this profiler reads version {HEADER[-1]}"
            )
        self._has_header = True

    @staticmethod
    def _refuse_prefix(size: int, number: int, position: int) -> NoReturn:
        if not 1 <= number <= len(RECORD_TYPES):
            raise StreamError(f"byte {position}: a record of the unknown type {number}")
        raise StreamError(f"byte {position}: a {RECORD_TYPES[number - 1].__name__} of {size} bytes")

    @staticmethod
    def _decode(data: bytes, start: int, end: int, number: int, position: int) -> Record:
        try:
            record: Record
            record, after = _LAYOUTS[number - 1].decode(data, start, end)
            if after != end:
                raise StreamError(f"it has {end - after} bytes too many")
        except StreamError as problem:
            raise StreamError(f"byte {position}: {RECORD_TYPES[number - 1].__name__}: {problem}") from None
        return record


def _check_end(position: int, end: int) -> int:
    """Return `position`, which must not be beyond the end of the record."""
    if position > end:
        raise StreamError(f"it ends {position - end} bytes too early")
    return position


def maker(record_type: type[_T]) -> Callable[[Iterable[Any]], _T]:
    """Return the constructor of a named tuple from its values, without the Python code of `_make`."""
    new: Any = tuple.__new__
    return partial(new, record_type)


def _code(hint: Any) -> str | None:
    """Return the `struct` code of a field; None if its size varies."""
    return hint.__metadata__[0] if get_origin(hint) is Annotated else None


_Decoder = Callable[[bytes, int, int], tuple[Any, int]]  # data, position, end of the record → value, position after it


def _variable(hint: Any) -> tuple[Callable[[Any], bytes], _Decoder]:
    """Return the encoder and the decoder of a text or a list."""
    if hint is str:
        return _encode_text, _decode_text
    (item,) = get_args(hint)
    if item is str:
        return lambda texts: _LENGTH.pack(len(texts)) + b"".join(map(_encode_text, texts)), _decode_texts
    if (code := _code(item)) is not None:
        return lambda numbers: pack(f"<I{len(numbers)}{code}", len(numbers), *numbers), partial(_decode_numbers, code)
    layout = Struct("<" + "".join(_code(field) or "" for field in get_type_hints(item, include_extras=True).values()))
    make = maker(item)

    def encode_items(items: list[Any]) -> bytes:
        return _LENGTH.pack(len(items)) + b"".join([layout.pack(*each) for each in items])

    def decode_items(data: bytes, position: int, end: int) -> tuple[list[Any], int]:
        count, start = _decode_count(data, position, end)
        after = _check_end(start + count * layout.size, end)
        return list(map(make, layout.iter_unpack(data[start:after]))), after

    return encode_items, decode_items


def _encode_text(text: str) -> bytes:
    encoded = str.encode(text, "utf-8", "backslashreplace")  # a file name may be of a class of the application
    return _LENGTH.pack(len(encoded)) + encoded


def _decode_count(data: bytes, position: int, end: int) -> tuple[int, int]:
    after = _check_end(position + _LENGTH.size, end)
    return _LENGTH.unpack_from(data, position)[0], after


def _decode_text(data: bytes, position: int, end: int) -> tuple[str, int]:
    size, start = _decode_count(data, position, end)
    after = _check_end(start + size, end)
    try:
        return data[start:after].decode(), after
    except UnicodeDecodeError as problem:
        raise StreamError(f"a text is not UTF-8 ({problem.reason})") from None


def _decode_texts(data: bytes, position: int, end: int) -> tuple[list[str], int]:
    count, after = _decode_count(data, position, end)
    texts = []
    for _ in range(count):
        text, after = _decode_text(data, after, end)
        texts.append(text)
    return texts, after


def _decode_numbers(code: str, data: bytes, position: int, end: int) -> tuple[list[int], int]:
    count, start = _decode_count(data, position, end)
    after = _check_end(start + count * calcsize(f"<{code}"), end)
    return list(unpack_from(f"<{count}{code}", data, start)), after


_LAYOUTS: list[_Layout[Any]] = [_Layout(number, record_type) for number, record_type in enumerate(RECORD_TYPES, 1)]
_LAYOUT_OF = dict(zip(RECORD_TYPES, _LAYOUTS, strict=True))
